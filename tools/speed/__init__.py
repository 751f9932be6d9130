"""Measure by one command, on a GPU, everything that docs/speed.md lists as not measured."""
