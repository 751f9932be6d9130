"""Tokenizers, from pixels to the space in which the denoiser works, behind one protocol (`seams.Tokenizer`)."""
