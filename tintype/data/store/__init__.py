"""A store: images and captions in a folder of memory-mapped Arrow files, any of them found at once by its number."""
