"""Score a model or any set of images: the protocol, the samples, the reference and the result."""
