"""Compute the statistics of a study: cells, contrasts and estimates. The package imports only numpy and scipy.

Cells are the values of one metric by arm and seed. A contrast is a weighted sum of the means of arms, such as an arm
against the baseline, the control, a trend, an interaction, a replication or a proposal.
"""
