"""Measure the speed of training, sampling, rendering and reading data."""
