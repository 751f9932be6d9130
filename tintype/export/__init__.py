"""Doors out and in: runs in the forms of others, models of others as runs, model cards, and the hub."""
