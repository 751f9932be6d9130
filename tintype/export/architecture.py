"""The denoiser's settings as diffusers states them, and back; or as they can be read off the tensors."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from tintype.errors import UserError
from tintype.model import Transformer
from tintype.runtime.forms import Form, forms_of, misfits
from tintype.settings import ModelSettings

CLASS = "PRXTransformer2DModel"
_SAME = {
    "patch": "patch_size",
    "width": "hidden_size",
    "mlp_ratio": "mlp_ratio",
    "heads": "num_heads",
    "depth": "depth",
    "rope_theta": "theta",
    "time_factor": "time_factor",
    "time_max_period": "time_max_period",
    "bottleneck": "bottleneck_size",
    "resolution_embeds": "resolution_embeds",
}
"""Our name -> diffusers'."""
_DEFAULTS: dict[str, Any] = {
    "in_channels": 16,
    "patch_size": 2,
    "context_in_dim": 2304,
    "hidden_size": 1792,
    "mlp_ratio": 3.5,
    "num_heads": 28,
    "depth": 16,
    "axes_dim": [32, 32],
    "theta": 10000,
    "time_factor": 1000.0,
    "time_max_period": 10000,
    "bottleneck_size": None,
    "resolution_embeds": False,
}
"""diffusers': a config may leave them out."""
_TELLING = (
    "txt_in.weight",
    "final_layer.linear.weight",
    "blocks.0.attention.norm_q.weight",
    "blocks.0.gate_proj.weight",
)
"""Tensors whose shapes imply the sizes."""
_OF_NO_CONSEQUENCE = {"_class_name", "_diffusers_version", "_name_or_path"}


def to_config(model: ModelSettings, channels: int, text_dim: int) -> dict[str, Any]:
    """Return the arguments of `PRXTransformer2DModel`."""
    axis = model.width // model.heads // 2
    same = {theirs: getattr(model, ours) for ours, theirs in _SAME.items()}
    return {**same, "in_channels": channels, "context_in_dim": text_dim, "axes_dim": [axis, axis]}


def from_config(stated: Mapping[str, Any], place: str) -> tuple[dict[str, Any], int, int]:
    """Return the section `model` of a plan, the channels, and the width of the text encoder."""
    if stated.get("_class_name", CLASS) != CLASS:
        raise UserError(f"{place} is a '{stated['_class_name']}'; only {CLASS} can be imported")
    if strange := sorted(set(stated) - set(_DEFAULTS) - _OF_NO_CONSEQUENCE):
        raise UserError(f"{place} says {', '.join(strange)}, which this version of tintype does not know")
    config = {**_DEFAULTS, **{key: value for key, value in stated.items() if key in _DEFAULTS}}
    numbers = (int, float)
    for key, usual in _DEFAULTS.items():
        good = isinstance(config[key], type(usual) if not isinstance(usual, float) else numbers)
        if not good and not (key == "bottleneck_size" and isinstance(config[key], int)):
            raise UserError(f"{place} says {config[key]!r} for '{key}', which should be like {usual!r}")
    head = config["hidden_size"] // max(1, config["num_heads"])
    if list(config["axes_dim"]) != [head // 2, head // 2]:
        raise UserError(
            f"{place}: axes_dim is {config['axes_dim']}, and tintype has {[head // 2, head // 2]} for heads of {head}: "
            "half of a head turns with the row, half with the column"
        )
    section = {ours: config[theirs] for ours, theirs in _SAME.items()}
    section |= {key: float(section[key]) for key in ("mlp_ratio", "time_factor")}
    return section, config["in_channels"], config["context_in_dim"]


def from_tensors(tensors: Mapping[str, Tensor], channels: int | None, place: str) -> tuple[dict[str, Any], int]:
    """Return the section `model` of a plan that the shapes imply, and the width of the text encoder.

    Shapes do not tell channels and patch apart: `channels` are the tokenizer's.
    """
    blocks = {int(found[1]) for name in tensors if (found := re.match(r"blocks\.(\d+)\.", name))}
    lacking = [name for name in _TELLING if name not in tensors]
    if lacking or not blocks:
        raise UserError(
            f"{place} is not a PRX transformer, in diffusers' names or in those of PRX's training: it has no "
            f"{', '.join(lacking) or 'blocks'}"
        )
    width, text_dim = tensors["txt_in.weight"].shape
    head = tensors["blocks.0.attention.norm_q.weight"].shape[0]
    hidden, flat = tensors["blocks.0.gate_proj.weight"].shape[0], tensors["final_layer.linear.weight"].shape[0]
    if channels is None:
        raise UserError(
            f"{place}: its shapes do not tell channels and patch apart (a patch has {flat} numbers); name the "
            "tokenizer: --set tokenizer.kind=flux1, or --set tokenizer.kind=pixels"
        )
    patch = math.isqrt(flat // channels)
    if patch * patch * channels != flat:
        raise UserError(
            f"{place}: patches of {flat} numbers are not squares of {channels} channels; name its tokenizer"
        )
    bottleneck = tensors.get("img_in.0.weight")
    section = {
        "depth": max(blocks) + 1,
        "width": width,
        "heads": width // head,
        "mlp_ratio": _ratio(hidden, width),
        "patch": patch,
        "bottleneck": None if bottleneck is None else bottleneck.shape[0],
        "resolution_embeds": any(name.startswith("resolution_embedder.") for name in tensors),
    }
    return section, text_dim


def _ratio(hidden: int, width: int) -> float:
    """Return the shortest ratio for which int(width × ratio) is `hidden`."""
    for digits in range(1, 18):
        ratio = round(hidden / width, digits)
        if int(width * ratio) == hidden:
            return ratio
    return math.nextafter(hidden / width, math.inf)


def check_tensors(
    tensors: Mapping[str, Tensor], model: ModelSettings, channels: int, text_dim: int, place: str
) -> None:
    """Refuse tensors that are missing, too many, or of another shape than the architecture's."""
    with torch.device("meta"):
        wanted = Transformer(model.model_copy(update={"compile": False}), channels, text_dim).state_dict()
    if found := misfits(forms_of(tensors), {name: Form(tensor.shape) for name, tensor in wanted.items()}):
        raise UserError(f"{place} is not the PRX transformer that it says it is: {found}")
    strange = sorted({str(tensor.dtype) for tensor in tensors.values() if tensor.dtype not in _FLOATS})
    if strange:
        raise UserError(f"{place} has tensors of {', '.join(strange)}; only fp32, bf16 and fp16 are read")


_FLOATS = (torch.float32, torch.bfloat16, torch.float16)
