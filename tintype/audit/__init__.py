"""Observe in which dtypes a few real steps store and compute, and find where precision is lost."""
