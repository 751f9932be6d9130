"""Files of packaged plans, studies, evaluation protocols, and presets of data sets.

The module `packaged` reads them.
"""
