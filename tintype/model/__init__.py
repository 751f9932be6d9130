"""The denoiser: PRX's transformer, in any size."""

from tintype.model.transformer import TextCache, Transformer

__all__ = ["TextCache", "Transformer"]
