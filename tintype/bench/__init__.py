"""Measure speed: training, sampling, rendering, and reading data."""
