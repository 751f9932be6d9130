"""Code that every other package uses: atomic files, locks, signals, fault points, ranks, device copies, rows on
disk.
"""
