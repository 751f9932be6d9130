"""How a model, or any set of images, is scored: the protocol, the samples, the reference and the result."""
