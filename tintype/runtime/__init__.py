"""What every room stands on: atomic files, locks, signals, fault points, ranks, copies to a device, rows on disk."""
