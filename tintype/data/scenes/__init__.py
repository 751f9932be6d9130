"""The embedded data set: scenes drawn, rendered and captioned on the spot, from (seed, index) alone.

It needs no download, has captions that are exactly true, and holds out combinations of colour and shape, so that a
model's reading of the text can be measured rather than judged.
"""
