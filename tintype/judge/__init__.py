"""Verdicts on runs of any trainer, from a table of arms, seeds and metrics. A table needs no GPU and no torch."""
