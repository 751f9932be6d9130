"""Studies: a baseline, arms that each change one thing, several seeds, and a verdict per arm."""
