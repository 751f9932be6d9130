"""Metrics: functions from arrays to numbers, each with its sampling error."""
