"""Text encoders of transformers' real classes with random weights and a tokenizer of a few words, in the form of public
checkpoints: one folder of each for all tests of a process."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
import torch

FOLDER = Path(os.environ["TINTYPE_CACHE"]) / "tiny-text"
SPECIAL = ["<pad>", "<eos>", "<bos>", "<unk>"]
WORDS = [
    *SPECIAL,
    *("a", "the", "one", "two", "and", "with", "on", "of", "left", "right", "under", ",", ".", "!"),
    *("red", "green", "blue", "small", "large", "ball", "cube", "cone", "grass"),
]
WIDTH, MAX_TOKENS = 16, 24
_CORE = {"num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24, "hidden_size": WIDTH}
_IDS = {"pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 2, "vocab_size": len(WORDS)}
_GEMMA = {**_CORE, **_IDS, "num_key_value_heads": 1, "head_dim": 8, "sliding_window": 8, "query_pre_attn_scalar": 8}
_ROPE = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 1, 1], "mrope_interleaved": True}


def t5gemma(transformers: Any) -> Any:
    config = transformers.T5GemmaConfig(encoder=_GEMMA, decoder=_GEMMA, vocab_size=len(WORDS))
    return transformers.T5GemmaForConditionalGeneration(config)


def t5(transformers: Any) -> Any:
    sizes = {"d_model": WIDTH, "d_kv": 8, "d_ff": 24, "num_layers": 2, "num_heads": 2, "vocab_size": len(WORDS)}
    return transformers.T5ForConditionalGeneration(transformers.T5Config(**sizes, decoder_start_token_id=0))


def qwen3_vl(transformers: Any) -> Any:
    text = {**_CORE, **_IDS, "num_key_value_heads": 1, "head_dim": 8, "max_position_embeddings": 64}
    vision = {"depth": 2, "hidden_size": 8, "intermediate_size": 8, "num_heads": 2, "patch_size": 4}
    vision |= {"out_hidden_size": WIDTH, "num_position_embeddings": 16}
    config = transformers.Qwen3VLConfig(text_config={**text, "rope_parameters": _ROPE}, vision_config=vision)
    return transformers.Qwen3VLForConditionalGeneration(config)


def clip(transformers: Any) -> Any:
    text = {**_CORE, **_IDS, "max_position_embeddings": MAX_TOKENS}
    vision = {**_CORE, "image_size": 8, "patch_size": 4}
    return transformers.CLIPModel(transformers.CLIPConfig(text_config=text, vision_config=vision, projection_dim=8))


def minilm(transformers: Any) -> Any:
    return transformers.BertModel(transformers.BertConfig(**_CORE, **_IDS, max_position_embeddings=32))


def gpt2(transformers: Any) -> Any:
    sizes = {"n_embd": WIDTH, "n_layer": 2, "n_head": 2, "n_positions": 64}
    return transformers.GPT2Model(transformers.GPT2Config(**sizes, **_IDS))


MODELS: dict[str, Callable[[Any], Any]] = {
    "t5gemma": t5gemma,
    "t5": t5,
    "qwen3-vl": qwen3_vl,
    "qwen3-vl-embedding": qwen3_vl,
    "clip": clip,
    "minilm": minilm,
    "transformers": gpt2,
}
"""By the encoder's kind; of the last, one of many."""
ENDS: dict[str, str] = {
    "t5gemma": "<bos> $A",
    "t5": "$A <eos>",
    "qwen3-vl": "$A",
    "qwen3-vl-embedding": "$A",
    "clip": "<bos> $A <eos>",
    "minilm": "<bos> $A <eos>",
    "transformers": "$A",
}
"""Tokens that their tokenizers put around a text: three of them nothing."""


@lru_cache
def write_text_encoder(kind: str, seed: int = 0) -> Path:
    """The folder, with the model and its tokenizer in it."""
    folder = FOLDER / f"{kind}-{seed}"
    model(kind, seed).save_pretrained(folder)
    write_tokenizer(folder, ENDS[kind])
    return folder


def model(kind: str, seed: int = 0) -> Any:
    transformers = pytest.importorskip("transformers")
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        made = MODELS[kind](transformers).eval()
        for parameter in made.parameters():  # as they begin, words hardly change each other
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return made


def write_tokenizer(folder: Path, ends: str) -> None:
    tokenizers, transformers = pytest.importorskip("tokenizers"), pytest.importorskip("transformers")
    core = tokenizers.Tokenizer(tokenizers.models.WordLevel({w: i for i, w in enumerate(WORDS)}, unk_token="<unk>"))
    core.normalizer = tokenizers.normalizers.Lowercase()
    core.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    core.post_processor = tokenizers.processors.TemplateProcessing(
        ends, special_tokens=[(token, place) for place, token in enumerate(SPECIAL)]
    )
    names = {"pad_token": "<pad>", "eos_token": "<eos>", "bos_token": "<bos>", "unk_token": "<unk>"}
    transformers.PreTrainedTokenizerFast(tokenizer_object=core, **names).save_pretrained(folder)


def option(kind: str = "minilm") -> str:
    """The technique that reads with it."""
    return f"text-encoder:to.kind={kind},to.weights={FOLDER / f'{kind}-0'},to.max_tokens={MAX_TOKENS}"
