"""A store: images and captions in a folder of memory-mapped Arrow files, with random access by row number."""
