"""New captions for a store, written by a vision-language model."""
