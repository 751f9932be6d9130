"""Frozen image encoders: teachers for alignment, features for metrics."""
