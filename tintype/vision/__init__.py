"""Frozen image encoders: used as teachers for alignment losses, and for the features of metrics."""
