"""Generate images from captions, for the command line, evaluation and reports."""
