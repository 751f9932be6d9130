"""Verdicts on the runs of any trainer: a table of arms, seeds and metrics in, the verdicts of a study out.

It imports numpy and scipy, and never torch: a table of numbers needs no GPU.
"""
