"""Code that every other package uses, such as atomic files, locks, signals, fault points, ranks, device copies and rows
on disk.
"""
