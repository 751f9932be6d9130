"""Estimate the cost of a plan before it is trained, as parameters, operations, peak memory, and time on GPUs."""
