"""From captions to images: the one path of the command line, evaluation and reports."""
