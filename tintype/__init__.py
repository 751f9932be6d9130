"""tintype trains text-to-image models from scratch and says which training decisions are worth it."""

__version__ = "0.1.0"
