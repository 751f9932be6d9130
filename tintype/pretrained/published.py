"""Sizes of published frozen networks, for costs: the networks without their weights, so that nothing is downloaded.

A test counts the parameters of each and compares them with the published number.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from tintype.pretrained.packages import Untyped, diffusers_package, transformers_package

_KL = {
    "block_out_channels": (128, 256, 512, 512),
    "down_block_types": ("DownEncoderBlock2D",) * 4,
    "up_block_types": ("UpDecoderBlock2D",) * 4,
    "layers_per_block": 2,
    "latent_channels": 16,
    "use_quant_conv": False,
    "use_post_quant_conv": False,
}
_LARGE = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16}
_NO_MASKS = {"full_attention": None, "sliding_attention": None}


@dataclass(frozen=True)
class PublishedNetwork:
    """A network of a hub's repository, by its sizes."""

    make: Callable[[], Untyped]
    width: int
    """Width of its tokens, or the channels of its latents."""
    patch_px: int = 1
    """Side of a patch of a vision transformer."""
    text_inputs: dict[str, Any] | None = None
    """Further inputs of a text encoder, which has to make no masks from the numbers of its input."""

    def build(self) -> Untyped:
        """Return the network with shapes and no numbers."""
        return _built(self.make)


@cache
def _built(make: Callable[[], Untyped]) -> Untyped:
    with torch.device("meta"):
        return make().eval().requires_grad_(False)


def _transformers(model: str, config: str, **sizes: Any) -> Callable[[], Untyped]:
    def make() -> Untyped:
        transformers = transformers_package()
        return getattr(transformers, model)(getattr(transformers, config)(**sizes))

    return make


def _diffusers(model: str, **sizes: Any) -> Callable[[], Untyped]:
    return lambda: getattr(diffusers_package(), model)(**sizes)


def _t5gemma() -> Untyped:
    """Return the encoder of T5Gemma 2B-2B, whose sizes are the defaults of its config."""
    transformers = transformers_package()
    config = transformers.T5GemmaConfig(is_encoder_decoder=False, attn_implementation="eager")
    return transformers.T5GemmaEncoderModel(config).encoder


PUBLISHED: dict[str, PublishedNetwork] = {
    "google/t5gemma-2b-2b-ul2": PublishedNetwork(_t5gemma, 2304, text_inputs={"attention_mask": _NO_MASKS}),
    "Qwen/Qwen3-VL-2B-Instruct": PublishedNetwork(
        _transformers(
            "Qwen3VLTextModel",
            "Qwen3VLTextConfig",
            vocab_size=151936,
            hidden_size=2048,
            intermediate_size=6144,
            num_hidden_layers=28,
            num_attention_heads=16,
            num_key_value_heads=8,
            head_dim=128,
        ),
        2048,
        text_inputs={},
    ),
    "sentence-transformers/all-MiniLM-L6-v2": PublishedNetwork(
        _transformers("BertModel", "BertConfig", hidden_size=384, num_hidden_layers=6, intermediate_size=1536),
        384,
        text_inputs={},
    ),
    "black-forest-labs/FLUX.1-schnell": PublishedNetwork(_diffusers("AutoencoderKL", **_KL), 16),
    "REPA-E/e2e-flux-vae": PublishedNetwork(_diffusers("AutoencoderKL", **_KL), 16),
    "black-forest-labs/FLUX.2-klein-4B": PublishedNetwork(_diffusers("AutoencoderKLFlux2"), 32),
    "facebook/dinov2-base": PublishedNetwork(
        _transformers("Dinov2Model", "Dinov2Config", image_size=518, patch_size=14), 768, 14
    ),
    "facebook/dinov2-large": PublishedNetwork(
        _transformers("Dinov2Model", "Dinov2Config", image_size=518, patch_size=14, **_LARGE), 1024, 14
    ),
    "facebook/dinov2-with-registers-base": PublishedNetwork(
        _transformers("Dinov2WithRegistersModel", "Dinov2WithRegistersConfig", image_size=518, patch_size=14), 768, 14
    ),
    "facebook/dinov2-with-registers-large": PublishedNetwork(
        _transformers("Dinov2WithRegistersModel", "Dinov2WithRegistersConfig", image_size=518, patch_size=14, **_LARGE),
        1024,
        14,
    ),
    "facebook/dinov3-vitl16-pretrain-lvd1689m": PublishedNetwork(
        _transformers(
            "DINOv3ViTModel",
            "DINOv3ViTConfig",
            patch_size=16,
            intermediate_size=4096,
            num_register_tokens=4,
            **_LARGE,
        ),
        1024,
        16,
    ),
}
"""By repository."""
