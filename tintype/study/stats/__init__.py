"""Statistics of a study: cells, contrasts of cells, and their estimates. It imports numpy and scipy only.

Cells are the values of one metric by arm and seed. A contrast is a weighted sum of the means of arms. `estimate` gives
its value and interval. Arm against baseline, control, trend, interaction, replication and proposal are contrasts.
"""
