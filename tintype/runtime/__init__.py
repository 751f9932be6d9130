"""Foundations of every room: atomic files, locks, signals, fault points, ranks, copies to a device, rows on disk."""
