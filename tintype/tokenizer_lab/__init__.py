"""Train, compare and cache tokenizers."""
