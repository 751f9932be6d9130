"""A DINOv2 with registers, of the real class with random weights: one folder for all tests of a process."""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
import torch

SIZE_PX, PATCH, REGISTERS = 28, 14, 3
FOLDER = Path(os.environ["TINTYPE_CACHE"]) / "tiny-dino"


@lru_cache
def write_dino(folder: Path = FOLDER) -> Path:
    """The folder, with its model in it."""
    dino_model().save_pretrained(folder)
    return folder


def dino_model() -> Any:
    transformers = pytest.importorskip("transformers")
    config = transformers.Dinov2WithRegistersConfig(
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        mlp_ratio=2,
        image_size=SIZE_PX,
        patch_size=PATCH,
        num_register_tokens=REGISTERS,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = transformers.Dinov2WithRegistersModel(config)
        for parameter in model.parameters():  # its own initialisation leaves little of the image in the tokens
            torch.nn.init.normal_(parameter, std=0.3)
    return model.eval()
