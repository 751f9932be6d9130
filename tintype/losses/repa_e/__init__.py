"""REPA-E (arXiv 2504.10483): train the tokenizer's autoencoder with the denoiser."""
