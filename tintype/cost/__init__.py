"""Cost of a plan before it is trained: parameters, operations, peak memory, and time on GPUs."""
