"""Frozen pretrained networks: find, hash, load and preprocess for them."""
