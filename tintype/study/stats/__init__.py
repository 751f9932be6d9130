"""Compute the statistics of a study, which are cells, contrasts of cells, and estimates of contrasts. The package
imports only numpy and scipy.

Cells are the values of one metric by arm and seed. A contrast is a weighted sum of the means of arms. `estimate`
computes the value and the interval of a contrast. Contrasts include an arm against the baseline, the control, a trend,
an interaction, a replication and a proposal.
"""
