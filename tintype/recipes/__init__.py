"""Packaged plans, studies, evaluation protocols, and presets of data sets: files, which `packaged` reads."""
