"""Optimizers and weight averages."""
