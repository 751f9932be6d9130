"""Measure the live page under load."""
