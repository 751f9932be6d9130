"""The embedded data set. Its scenes are drawn, rendered and captioned on the fly, from (seed, index) alone.

The data set needs no download. The captions are exactly true, so a score can measure how well a model follows its
prompt, without human judgement. Certain combinations of colour and shape never occur in training.
"""
