"""Score a model or any set of images. The package has the protocol, the samples, the reference and the result."""
