"""Numbers that say how good generated pictures are."""
