"""Frozen pretrained networks: find, hash and load them, and preprocess their inputs."""
