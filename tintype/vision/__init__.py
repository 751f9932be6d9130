"""Frozen image encoders: as teachers for alignment losses, and for the features of metrics."""
