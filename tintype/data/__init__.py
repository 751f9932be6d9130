"""Images and captions: their sources, their order, and the captions that the model reads."""
