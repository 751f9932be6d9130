"""Verdicts on runs of any trainer.

The input is a table of arms, seeds and metrics; the output is the verdicts of a study. This package imports numpy and
scipy, but not torch, since a table of numbers needs no GPU.
"""
