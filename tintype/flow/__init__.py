"""Rectified flow: the path, the density of t, the samplers and guidance."""
