"""Measure on a GPU all that docs/speed.md names as not measured, by one command."""
