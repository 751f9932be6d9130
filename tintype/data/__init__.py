"""Images and captions: where they come from, in which order, and what the model reads of them."""
