"""Convert the denoiser between tintype's and diffusers' formats.

This module converts settings in both directions, infers settings from tensor shapes, and maps tensor names. tintype's
tensors have the names of diffusers' `PRXTransformer2DModel`. PRX's training code uses other names.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from torch import Tensor

from tintype.config.strict import problem_words
from tintype.errors import UserError
from tintype.model import Transformer
from tintype.runtime.forms import Form, forms_of, misfits
from tintype.settings import ModelSettings, plain
from tintype.wording import setting

CLASS = "PRXTransformer2DModel"
_TELLING = (
    "txt_in.weight",
    "final_layer.linear.weight",
    "blocks.0.attention.norm_q.weight",
    "blocks.0.gate_proj.weight",
)
_OF_A_BLOCK = {
    "attention.img_qkv_proj.weight": "img_qkv_proj.weight",
    "attention.txt_kv_proj.weight": "txt_kv_proj.weight",
    "attention.norm_q.weight": "qk_norm.query_norm.scale",
    "attention.norm_k.weight": "qk_norm.key_norm.scale",
    "attention.norm_added_k.weight": "k_norm.scale",
    "attention.to_out.0.weight": "attn_out.weight",
}
"""Maps diffusers' names to PRX's names, after the prefix `blocks.N.`. All other names are equal."""
_BLOCK = re.compile(r"(blocks\.\d+\.)(.+)")

_TRAINED = {"average": "ema_denoiser.model.", "raw": "denoiser."}
"""Prefixes of the denoiser's tensors in checkpoints of PRX's training."""
_ELSEWHERE = ("model.diffusion_model.", "transformer.")
"""Prefixes of the denoiser's tensors in single files from other tools."""
_OTHER_ROOMS = (*_TRAINED.values(), "vae.", "vae_tower.", "text_encoder.", "text_tower.")
_OF_NO_CONSEQUENCE = {"_class_name", "_diffusers_version", "_name_or_path"}
_FLOATS = (torch.float32, torch.bfloat16, torch.float16)


class PrxConfig(BaseModel):
    """Settings of the denoiser under tintype's names, with diffusers' different names as aliases.

    A config may leave out settings with default values. `to_config` and `from_config` convert between the two forms.
    """

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    channels: int = Field(16, alias="in_channels")
    text_dim: int = Field(2304, alias="context_in_dim")
    axes: list[int] = Field([32, 32], alias="axes_dim")
    patch: int = Field(2, alias="patch_size")
    width: int = Field(1792, alias="hidden_size")
    mlp_ratio: float = 3.5
    heads: int = Field(28, alias="num_heads")
    depth: int = 16
    rope_theta: int = Field(10000, alias="theta")
    time_factor: float = 1000.0
    time_max_period: int = 10000
    bottleneck: int | None = Field(None, alias="bottleneck_size")
    resolution_embeds: bool = False

    @property
    def model(self) -> dict[str, Any]:
        """Return these settings as the section `model` of a plan."""
        return self.model_dump(exclude={"channels", "text_dim", "axes"})


def to_config(model: ModelSettings, channels: int, text_dim: int) -> dict[str, Any]:
    axis = model.width // model.heads // 2
    ours = {**plain(model), "channels": channels, "text_dim": text_dim, "axes": [axis, axis]}
    return {field.alias or name: ours[name] for name, field in PrxConfig.model_fields.items()}


def from_config(stated: Mapping[str, Any], place: str) -> PrxConfig:
    if stated.get("_class_name", CLASS) != CLASS:
        raise UserError(f"{place} is a model of the class '{stated['_class_name']}', but only {CLASS} can be imported")
    try:
        config = PrxConfig.model_validate({key: stated[key] for key in stated if key not in _OF_NO_CONSEQUENCE})
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = first["loc"][0]
        if first["type"] == "extra_forbidden":
            raise UserError(f"{place} has the setting {key}, which this version of tintype does not know") from None
        raise UserError(f"{place} has the value {first['input']!r} for '{key}': {problem_words(first)}") from None
    half = config.width // max(1, config.heads) // 2
    if config.axes != [half, half]:
        raise UserError(
            f"{place}: axes_dim is {config.axes}, but must be {[half, half]} for heads of width {2 * half}, "
            f"since tintype uses half of a head for rows and half for columns"
        )
    return config


def from_tensors(tensors: Mapping[str, Tensor], channels: int | None, place: str) -> dict[str, Any]:
    """Return the section `model` of a plan, inferred from the shapes of the tensors.

    Shapes only give the product of channels and patch area, so the tokenizer's `channels` must be given.
    """
    blocks = {int(found[1]) for name in tensors if (found := re.match(r"blocks\.(\d+)\.", name))}
    lacking = [name for name in _TELLING if name not in tensors]
    if lacking or not blocks:
        raise UserError(
            f"{place} is not a PRX transformer, neither with diffusers' names nor with those of PRX's training "
            f"code: it lacks "
            f"{', '.join(lacking) or 'blocks'}"
        )
    width = tensors["txt_in.weight"].shape[0]
    head = tensors["blocks.0.attention.norm_q.weight"].shape[0]
    hidden, flat = tensors["blocks.0.gate_proj.weight"].shape[0], tensors["final_layer.linear.weight"].shape[0]
    if channels is None:
        raise UserError(
            f"{place}: the tensor shapes do not determine both the number of channels and the patch size (a "
            f"patch has {flat} numbers)",
            f"name the tokenizer: {setting('tokenizer.kind', 'flux1')}, or {setting('tokenizer.kind', 'pixels')}",
        )
    patch = math.isqrt(flat // channels)
    if patch * patch * channels != flat:
        raise UserError(
            f"{place}: patches of {flat} numbers cannot be squares with {channels} channels",
            "name the model's tokenizer",
        )
    bottleneck = tensors.get("img_in.0.weight")
    return {
        "depth": max(blocks) + 1,
        "width": width,
        "heads": width // head,
        "mlp_ratio": _ratio(hidden, width),
        "patch": patch,
        "bottleneck": None if bottleneck is None else bottleneck.shape[0],
        "resolution_embeds": any(name.startswith("resolution_embedder.") for name in tensors),
    }


def _ratio(hidden: int, width: int) -> float:
    """Return the ratio with the fewest digits such that int(width × ratio) equals `hidden`."""
    for digits in range(1, 18):
        ratio = round(hidden / width, digits)
        if int(width * ratio) == hidden:
            return ratio
    return math.nextafter(hidden / width, math.inf)


def check_tensors(
    tensors: Mapping[str, Tensor], model: ModelSettings, channels: int, text_dim: int, place: str
) -> None:
    """Raise if a tensor is missing or unknown, or if its shape differs from the architecture's."""
    with torch.device("meta"):
        wanted = Transformer(model.model_copy(update={"compile": False}), channels, text_dim).state_dict()
    if found := misfits(forms_of(tensors), {name: Form(tensor.shape) for name, tensor in wanted.items()}):
        raise UserError(f"{place} does not match the PRX transformer in its config: {found}")
    strange = sorted({str(tensor.dtype) for tensor in tensors.values() if tensor.dtype not in _FLOATS})
    if strange:
        raise UserError(f"{place} has tensors of {', '.join(strange)}, but tintype reads only fp32, bf16 and fp16")


def _renamed(name: str, table: Mapping[str, str]) -> str:
    found = _BLOCK.fullmatch(name)
    return name if found is None else found[1] + table.get(found[2], found[2])


to_training = partial(_renamed, table=_OF_A_BLOCK)
to_diffusers = partial(_renamed, table={theirs: ours for ours, theirs in _OF_A_BLOCK.items()})


def denoiser_in(tensors: Mapping[str, Tensor], weights: str | None, place: str) -> tuple[dict[str, Tensor], str]:
    """Return the denoiser's tensors under diffusers' names, and whether the weights are `raw`, `average` or `unknown`.

    Tensors with the prefix of another network are left out. Unknown tensors stay, so that a later check refuses them.
    """
    there = [kind for kind, prefix in _TRAINED.items() if any(name.startswith(prefix) for name in tensors)]
    if weights is not None and weights not in (there or [weights]):
        raise UserError(f"{place} has no {weights} weights; it has: {', '.join(there)}")
    kind = (weights or there[0]) if there else "unknown"
    whole = (prefix for prefix in _ELSEWHERE if tensors and all(name.startswith(prefix) for name in tensors))
    prefix = _TRAINED[kind] if there else next(whole, "")
    left = tuple(room for room in _OTHER_ROOMS if room != prefix)
    found = {name: tensor for name, tensor in tensors.items() if not name.startswith(left)}
    return {to_diffusers(name.removeprefix(prefix)): tensor for name, tensor in found.items()}, kind
