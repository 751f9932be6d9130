"""The names of the denoiser's tensors: ours are those of diffusers' `PRXTransformer2DModel`; PRX trains with others."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from torch import Tensor

from tintype.errors import UserError

_OF_A_BLOCK = {
    "attention.img_qkv_proj.weight": "img_qkv_proj.weight",
    "attention.txt_kv_proj.weight": "txt_kv_proj.weight",
    "attention.norm_q.weight": "qk_norm.query_norm.scale",
    "attention.norm_k.weight": "qk_norm.key_norm.scale",
    "attention.norm_added_k.weight": "k_norm.scale",
    "attention.to_out.0.weight": "attn_out.weight",
}
"""diffusers' name -> PRX's, after `blocks.N.`; all others are the same in both."""
_BACK = {theirs: ours for ours, theirs in _OF_A_BLOCK.items()}
_BLOCK = re.compile(r"(blocks\.\d+\.)(.+)")

AVERAGE, RAW = "ema_denoiser.model.", "denoiser."
"""Prefixes of the averaged and of the raw weights in PRX's training."""
_ELSEWHERE = ("model.diffusion_model.", "transformer.")
"""Prefixes in single files of others."""
_OTHER_ROOMS = (AVERAGE, RAW, "vae.", "vae_tower.", "text_encoder.", "text_tower.")


def to_training(name: str) -> str:
    return _renamed(name, _OF_A_BLOCK)


def to_diffusers(name: str) -> str:
    return _renamed(name, _BACK)


def _renamed(name: str, table: Mapping[str, str]) -> str:
    found = _BLOCK.fullmatch(name)
    return name if found is None else found[1] + table.get(found[2], found[2])


def kinds_in(names: Iterable[str]) -> list[str]:
    """Return which weights a file of PRX's training has, the average first."""
    names = list(names)
    prefixes = {"average": AVERAGE, "raw": RAW}
    return [kind for kind, prefix in prefixes.items() if any(name.startswith(prefix) for name in names)]


def denoiser_in(tensors: Mapping[str, Tensor], weights: str | None, place: str) -> tuple[dict[str, Tensor], str]:
    """Return the denoiser's tensors under diffusers' names, and which weights they are: `raw`, `average` or `unknown`.

    Tensors with a prefix of another network are left out; anything else stays, to be refused.
    """
    there = kinds_in(tensors)
    if weights is not None and weights not in (there or [weights]):
        raise UserError(f"{place} has no {weights} weights; it has: {', '.join(there)}")
    kind = (weights or there[0]) if there else "unknown"
    prefix = {"average": AVERAGE, "raw": RAW}.get(kind, "") if there else _prefix_elsewhere(tensors)
    left = tuple(room for room in _OTHER_ROOMS if room != prefix)
    found = {name: tensor for name, tensor in tensors.items() if not name.startswith(left)}
    return {to_diffusers(name.removeprefix(prefix)): tensor for name, tensor in found.items()}, kind


def _prefix_elsewhere(names: Iterable[str]) -> str:
    names = list(names)
    return next((prefix for prefix in _ELSEWHERE if names and all(name.startswith(prefix) for name in names)), "")
