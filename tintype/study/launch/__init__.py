"""Launchers: each starts workers of a study elsewhere, as `tintype work`, and does nothing else."""
