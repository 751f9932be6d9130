"""Autoencoders of diffusers' real classes with random weights, in the form of public checkpoints: 4 px a latent, 4
channels, latents of about mean 0 and deviation 1 on the embedded scenes."""

from __future__ import annotations

import os
from collections.abc import Callable
from copy import deepcopy
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tintype.data.scenes.source import SceneSource, ScenesSettings

FOLDER = Path(os.environ["TINTYPE_CACHE"]) / "tiny-autoencoders"
CHANNELS, STRIDE_PX = 4, 4
_KL = {
    "block_out_channels": (8, 8, 8),
    "down_block_types": ("DownEncoderBlock2D",) * 3,
    "up_block_types": ("UpDecoderBlock2D",) * 3,
    "layers_per_block": 1,
    "norm_num_groups": 4,
    "latent_channels": CHANNELS,
}
_DC = {
    "latent_channels": CHANNELS,
    "attention_head_dim": 4,
    "encoder_block_types": ("ResBlock", "ResBlock", "EfficientViTBlock"),
    "decoder_block_types": ("ResBlock", "ResBlock", "EfficientViTBlock"),
    "encoder_block_out_channels": (8, 8, 8),
    "decoder_block_out_channels": (8, 8, 8),
    "encoder_layers_per_block": (1, 1, 1),
    "decoder_layers_per_block": (1, 1, 1),
    "encoder_qkv_multiscales": ((), (), (5,)),
    "decoder_qkv_multiscales": ((), (), (5,)),
}
_TINY = {
    "latent_channels": CHANNELS,
    "encoder_block_out_channels": (8, 8, 8),
    "decoder_block_out_channels": (8, 8, 8),
    "num_encoder_blocks": (1, 1, 1),
    "num_decoder_blocks": (1, 1, 1),
}
CLASSES: dict[str, tuple[str, dict[str, Any]]] = {
    "flux1": ("AutoencoderKL", _KL),
    "e2e-flux": ("AutoencoderKL", _KL),
    "flux2": ("AutoencoderKLFlux2", _KL),
    "dc-ae": ("AutoencoderDC", _DC),
    "taef1": ("AutoencoderTiny", _TINY),
}
"""By the tokenizer's kind."""
RAW: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "AutoencoderKL": lambda network, x: network.encode(x).latent_dist.mean,
    "AutoencoderKLFlux2": lambda network, x: network.encode(x).latent_dist.mean,
    "AutoencoderDC": lambda network, x: network.encode(x).latent,
    "AutoencoderTiny": lambda network, x: network.encode(x).latents,
}
"""diffusers' own latents, as they are before any normalisation."""


@lru_cache
def write_autoencoder(kind: str) -> Path:
    """The folder, with the network in it."""
    network(kind).save_pretrained(FOLDER / kind)
    return FOLDER / kind


def network(kind: str) -> Any:
    diffusers = pytest.importorskip("diffusers")
    name, config = CLASSES[kind]
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        made = getattr(diffusers, name)(**config).eval()
        for parameter in made.parameters():
            if parameter.ndim == 1:  # else a bias or a norm's weight that went missing would not be seen
                parameter.add_(torch.randn_like(parameter) * 0.1)
            elif name == "AutoencoderTiny":  # it has no norms: its own initialisation leaves little of the image
                parameter.mul_(2)
        if "KL" in name:
            made.quant_conv.bias[CHANNELS:] -= 5  # a posterior that is narrow beside its means, as in trained ones
        # float64, then rounded: the statistics are the same in every process, whatever ran before
        raw = RAW[name](deepcopy(made).double(), sample_images(64).double() / 127.5 - 1)
        if name == "AutoencoderKLFlux2":
            folded = raw.reshape(len(raw), CHANNELS, 2, 2, 2, 2).permute(0, 1, 3, 5, 2, 4).flatten(1, 3)
            made.bn.running_mean.copy_(folded.mean((0, 2, 3)).round(decimals=6))
            made.bn.running_var.copy_(folded.var((0, 2, 3)).round(decimals=6))
        else:
            stated = {"scaling_factor": round(1 / float(raw.std()), 6)}
            made.register_to_config(
                **stated, **({} if name == "AutoencoderDC" else {"shift_factor": round(float(raw.mean()), 6)})
            )
    return made


def sample_images(count: int, size_px: int = 16) -> Tensor:
    return SceneSource(ScenesSettings(size_px=size_px), "train", torch.device("cpu")).images(list(range(count)))


def chosen(kind: str) -> dict[str, Any]:
    """The settings that name the tiny network."""
    return {"kind": kind, "weights": str(write_autoencoder(kind)), "channels": CHANNELS, "stride_px": STRIDE_PX}


def option(kind: str = "taef1") -> str:
    """The technique's option for the tiny network, which `write_autoencoder` must have made."""
    size = f"to.channels={CHANNELS},to.stride_px={STRIDE_PX}"
    return f"tokenizer:to.kind={kind},to.weights={FOLDER / kind},{size}"
