"""Doors out and in: runs in the forms of others, models of others as runs, the card that says what a model is, the hub."""
