"""Runs to export: tiny real models with every weight random, in the form that training leaves behind."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from tests import tiny_autoencoders, tiny_text
from tests.tiny import tiny_plan
from tintype.optim.ema import UPDATES
from tintype.plan import Plan
from tintype.train import checkpoint
from tintype.train.folder import RunFolder
from tintype.train.session import build_session
from tintype.train.state import new_state

PIXELS = (
    "objective.kind=x-prediction",
    "model.bottleneck=6",
    "model.resolution_embeds=true",
    "time.shift=3.0",
    "sampling.shift=3.0",
)


def text_settings(kind: str) -> list[str]:
    folder = tiny_text.write_text_encoder(kind)
    said = f"{{kind: {kind}, weights: {folder}, max_tokens: {tiny_text.MAX_TOKENS}, compute: fp32}}"
    return [f"text={said}"]


def tokenizer_settings(kind: str) -> list[str]:
    chosen = tiny_autoencoders.chosen(kind)
    return [f"tokenizer={{{', '.join(f'{key}: {value}' for key, value in chosen.items())}}}", "model.patch=2"]


def latent_plan(text: str, tokenizer: str, *assignments: str) -> Plan:
    return tiny_plan(
        *text_settings(text), *tokenizer_settings(tokenizer), "time.shift=3.0", "sampling.shift=3.0", *assignments
    )


def pixel_plan(text: str, *assignments: str) -> Plan:
    return tiny_plan(*text_settings(text), *PIXELS, *assignments)


def write_run(path: Path, plan: Plan) -> Path:
    """A run of one step whose every weight matters."""
    parts = build_session(plan)
    generator = torch.Generator().manual_seed(0)
    for name, parameter in parts.modules.named_parameters():
        if not name.startswith("tokenizer."):
            nn.init.normal_(parameter, std=0.15, generator=generator)
    state = new_state(parts)
    state.step, state.images_seen = 1, plan.train.batch
    if state.ema is not None:
        state.ema.update(torch.zeros(()))
        for name, tensor in state.ema.tensors().items():
            if name != UPDATES:
                tensor.mul_(0.5)
    folder = RunFolder(path)
    with folder.claim(plan):
        checkpoint.save(folder.checkpoints, state, keep=2)
        folder.keep_identities(parts.identities, 0)
        folder.write_about(parts)
    return path
