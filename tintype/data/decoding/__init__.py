"""Decode images in threads or in separate processes, while training runs."""
