"""The sources of images and captions, their order, and the captions that the model reads."""
