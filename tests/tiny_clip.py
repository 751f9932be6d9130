"""A CLIP of the real class with random weights and a vocabulary of nine words, in the form of a public checkpoint."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

SIZE_PX, PATCH = 28, 14
TOWER = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}
VISION = {**TOWER, "image_size": SIZE_PX, "patch_size": PATCH}
WORDS = ["[PAD]", "[UNK]", "a", "red", "ball", "on", "blue", "grass", "[EOS]"]
PROCESSOR = {
    "size": {"shortest_edge": SIZE_PX},
    "crop_size": {"height": SIZE_PX, "width": SIZE_PX},
    "resample": 3,
    "image_mean": [0.48, 0.46, 0.41],
    "image_std": [0.27, 0.26, 0.28],
}


def write_clip(folder: Path, seed: int = 0) -> Path:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(seed)
    config = transformers.CLIPConfig(text_config=text_tower(), vision_config=VISION, projection_dim=12)
    write(folder, transformers.CLIPModel(config), PROCESSOR)
    write_tokenizer(folder)
    return folder


def write(folder: Path, model: Any, processor: dict[str, Any] | None = None) -> Path:
    model.save_pretrained(folder)
    if processor is not None:
        (folder / "preprocessor_config.json").write_text(json.dumps(processor))
    return folder


def write_tokenizer(folder: Path) -> None:
    tokenizers, transformers = pytest.importorskip("tokenizers"), pytest.importorskip("transformers")
    core = tokenizers.Tokenizer(tokenizers.models.WordLevel({w: i for i, w in enumerate(WORDS)}, unk_token="[UNK]"))
    core.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    core.post_processor = tokenizers.processors.TemplateProcessing("$A [EOS]", special_tokens=[("[EOS]", 8)])
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=core, pad_token="[PAD]", unk_token="[UNK]", eos_token="[EOS]"
    ).save_pretrained(folder)


def text_tower() -> dict[str, Any]:
    ids = {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 8}
    return {**TOWER, "vocab_size": len(WORDS), "max_position_embeddings": 7, **ids}
