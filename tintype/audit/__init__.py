"""Observe the types in which a few real steps store and compute, and find where precision is lost."""
