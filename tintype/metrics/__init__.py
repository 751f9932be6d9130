"""Metrics: numbers from arrays, each with its error of sampling."""
