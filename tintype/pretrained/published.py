"""Architectures of published frozen networks for cost estimates, without weights, so nothing is downloaded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

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
_CLIP_TEXT = {"hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12}
_SO400M = {"hidden_size": 1152, "intermediate_size": 4304, "num_hidden_layers": 27, "num_attention_heads": 16}
_SIGLIP_TOKENS = {"vocab_size": 32000, "max_position_embeddings": 64, "bos_token_id": 0, "eos_token_id": 1}
_NO_MASKS = {"full_attention": None, "sliding_attention": None}


@dataclass(frozen=True)
class PublishedNetwork:
    """The architecture of a network in a hub repository."""

    make: Callable[[], Untyped]
    width: int
    """Width of the network's tokens, or the number of its latent channels."""
    patch_px: int = 1
    """Side of a patch of a vision transformer."""
    text_inputs: dict[str, Any] | None = None
    """Further inputs of a text encoder. With them, the encoder does not build masks from the values of its input."""

    def build(self) -> Untyped:
        """Return the network on the meta device, without values."""
        return without_numbers(self.make)


@dataclass(frozen=True)
class Outline:
    """A frozen network for images on the meta device, without values."""

    network: Untyped
    input_px: tuple[int, int]
    """Height and width of the network's input."""
    forward: Callable[[Tensor], object]
    """Function that passes floats [B, 3, height, width] through the network."""
    number_bytes: int = 4
    """Bytes per number with which the network is stored and computes. The outline itself is in fp32."""
    features: int = 0
    """Size of the feature vector of an image; 0 for a teacher, which returns tokens."""

    @property
    def numbers(self) -> int:
        """Return the number of weights. In tintype's own networks, weights are stored as buffers."""
        return sum(one.numel() for one in [*self.network.parameters()] or [*self.network.buffers()])

    @property
    def bytes(self) -> int:
        return self.numbers * self.number_bytes


def outline_of(source: str, input_px: tuple[int, int], number_bytes: int = 4, features: int = 0) -> Outline | None:
    """Return a published vision network for images of this size; None if the table does not have it."""
    if source not in PUBLISHED:
        return None
    network = PUBLISHED[source].build()
    images: Untyped = getattr(network, "vision_model", network)
    return Outline(network, input_px, lambda image: images(pixel_values=image), number_bytes, features)


@cache
def without_numbers(make: Callable[[], Untyped]) -> Untyped:
    """Build a frozen network on the meta device, without values. Each network is built once."""
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
    """Return the encoder of T5Gemma 2B-2B. The encoder's sizes are the defaults of its config class."""
    transformers = transformers_package()
    config = transformers.T5GemmaConfig(is_encoder_decoder=False, attn_implementation="eager")
    return transformers.T5GemmaEncoderModel(config).encoder


_QWEN3_VL = PublishedNetwork(
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
)

PUBLISHED: dict[str, PublishedNetwork] = {
    "google/t5gemma-2b-2b-ul2": PublishedNetwork(_t5gemma, 2304, text_inputs={"attention_mask": _NO_MASKS}),
    "Qwen/Qwen3-VL-2B-Instruct": _QWEN3_VL,
    "Qwen/Qwen3-VL-Embedding-2B": _QWEN3_VL,
    "google/flan-t5-large": PublishedNetwork(
        _transformers(
            "T5EncoderModel",
            "T5Config",
            d_model=1024,
            d_kv=64,
            d_ff=2816,
            num_layers=24,
            num_heads=16,
            feed_forward_proj="gated-gelu",
            vocab_size=32128,
        ),
        1024,
        text_inputs={},
    ),
    "openai/clip-vit-large-patch14": PublishedNetwork(
        _transformers("CLIPTextModel", "CLIPTextConfig", **_CLIP_TEXT), 768, text_inputs={}
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
    "openai/clip-vit-large-patch14-336": PublishedNetwork(
        _transformers(
            "CLIPModel",
            "CLIPConfig",
            text_config={**_CLIP_TEXT, "projection_dim": 768},
            vision_config={**_LARGE, "intermediate_size": 4096, "image_size": 336, "patch_size": 14},
            projection_dim=768,
        ),
        768,
        14,
    ),
    "google/siglip-so400m-patch14-384": PublishedNetwork(
        _transformers(
            "SiglipModel",
            "SiglipConfig",
            text_config={**_SO400M, **_SIGLIP_TOKENS, "projection_size": 1152},
            vision_config={**_SO400M, "image_size": 384, "patch_size": 14},
        ),
        1152,
        14,
    ),
    "mit-han-lab/dc-ae-f32c32-sana-1.0-diffusers": PublishedNetwork(
        _diffusers(
            "AutoencoderDC",
            latent_channels=32,
            encoder_block_types=("ResBlock",) * 3 + ("EfficientViTBlock",) * 3,
            decoder_block_types=("ResBlock",) * 3 + ("EfficientViTBlock",) * 3,
            encoder_block_out_channels=(128, 256, 512, 512, 1024, 1024),
            decoder_block_out_channels=(128, 256, 512, 512, 1024, 1024),
            encoder_layers_per_block=(2, 2, 2, 3, 3, 3),
            decoder_layers_per_block=(3, 3, 3, 3, 3, 3),
            encoder_qkv_multiscales=((), (), (), (5,), (5,), (5,)),
            decoder_qkv_multiscales=((), (), (), (5,), (5,), (5,)),
            upsample_block_type="interpolate",
            downsample_block_type="conv",
        ),
        32,
    ),
    "madebyollin/taef1": PublishedNetwork(_diffusers("AutoencoderTiny", latent_channels=16), 16),
}
"""Published networks by repository."""
