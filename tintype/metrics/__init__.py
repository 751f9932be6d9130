"""Metrics are functions from arrays to numbers. Each number has a sampling error."""
