"""Decode images in parallel to the training, in threads or in separate processes."""
