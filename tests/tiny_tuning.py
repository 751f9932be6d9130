"""A tiny small-vae on a disk, the settings of the tiny plan with it, and what its steps are looked at with."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor

from tests.tiny import TINY
from tests.tiny_autoencoders import sample_images
from tintype.losses.repa_e.training import RepaE, RepaEStep
from tintype.plan import Plan, plan_from_yaml
from tintype.runtime.clock import Clock
from tintype.techniques.apply import apply_techniques
from tintype.tokenizer_lab.train_small_vae import latent_statistics
from tintype.tokenizers.small_vae import SmallVaeShape, Vae, write_vae
from tintype.train.session import Session, build_session
from tintype.train.state import TrainState

# Two channels in each group of the norms: with one, the biases before them would have no gradient.
FOLDER = Path(os.environ["TINTYPE_CACHE"]) / "tiny-small-vae"
SHAPE = SmallVaeShape(channels=3, stride_px=4, width=16, blocks=1)
BASELINE = (f'tokenizer={{"kind":"small-vae","folder":"{FOLDER}"}}', "model.patch=1")
"""Overrides of the tiny plan: the same grid of tokens, on latents."""
REPA_E = "repa-e:teacher=scenes,hidden=32,perceptual.kind=scenes"
NO_PERCEPTUAL = "repa-e:teacher=scenes,hidden=32,perceptual.kind=none"
REPA = "repa:teacher=scenes,hidden=32"


@lru_cache
def write_small_vae() -> Path:
    """Random weights, its second convolutions included, with narrow posteriors as trained ones have them."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        network = Vae(SHAPE)
        for parameter in network.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)
        dict(network.encoder.named_parameters())[f"{len(network.encoder) - 1}.bias"][SHAPE.channels :] -= 3
        mean_C, std_C = latent_statistics(network, [sample_images(64)])
        network.latent_mean.copy_(mean_C.view(1, -1, 1, 1))
        network.latent_std.copy_(std_C.view(1, -1, 1, 1))
    write_vae(FOLDER, network, {"held_out": 0})
    return FOLDER


def tuned_plan(*assignments: str, techniques: Sequence[str] = (REPA_E,)) -> Plan:
    write_small_vae()
    return apply_techniques(plan_from_yaml(TINY, "tiny", [*BASELINE, *assignments]), techniques)


def ready(plan: Plan) -> tuple[Session, RepaE]:
    parts = build_session(plan)
    parts.ready()
    assert isinstance(parts.joint, RepaE)
    return parts, parts.joint


def step_of(parts: Session, tuning: RepaE) -> RepaEStep:
    return tuning.begin_step(parts, clock(), parts.plan.precision.loss_scale, parts.plan.train.accumulate)


def clock() -> Clock:
    return Clock(torch.device("cpu"))


def gradients(parts: Session, *, without: tuple[str, ...] = ()) -> dict[str, Tensor]:
    named = parts.modules.named_parameters()
    return {name: p.grad.clone() for name, p in named if p.grad is not None and not name.startswith(without)}


def equal(first: dict[str, Tensor], second: dict[str, Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def everything(state: TrainState) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in state.tensors().items()}
