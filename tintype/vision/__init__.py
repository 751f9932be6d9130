"""Frozen image encoders are teachers for alignment losses, and compute the features of metrics."""
