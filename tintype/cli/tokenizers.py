"""Commands on tokenizers, and on the packaged scene encoder."""

from __future__ import annotations

from tintype.cli.derive import command
from tintype.cli.shared import group

encoder_app = group("encoder", "Train the scene encoder that comes with tintype.")
tokenizer_app = group("tokenizer", "Train tokenizers, save tuned ones, compare any of them, and cache their latents.")

command(encoder_app, "train", "tokenizers:train_encoder", "tokenizers:EncoderTraining")
command(tokenizer_app, "train", "tokenizers:train_tokenizer", "tokenizers:Training")
command(tokenizer_app, "cache", "tokenizers:cache_latents", "tokenizers:Caching")
command(tokenizer_app, "save", "tokenizers:save_tokenizer", "tokenizers:Saving")
command(tokenizer_app, "report", "tokenizers:compare_tokenizers", "tokenizers:Comparison")
