"""Code that every other package uses, such as atomic files, locks, signals, ranks, device copies and rows on disk."""
