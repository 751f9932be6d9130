"""Inputs of an alignment term: a small context, and inputs with features of block 2 (1 counted from 0)."""

from __future__ import annotations

import torch
from torch import Tensor

from tintype.data.scenes.source import SceneSource, ScenesSettings
from tintype.seams import Draws, LossContext, LossInputs, Output, Route, Sample

CPU = torch.device("cpu")
WIDTH, GRID, SAMPLES = 8, (2, 3), 4


def place() -> LossContext:
    data = ScenesSettings(size_px=16, count=24, max_objects=2)
    return LossContext(WIDTH, GRID, CPU, SceneSource(data, "train", CPU), data.model_dump_json())


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def view(token_BKD: Tensor, seen_BLT: Tensor | None, route: Route | None = None) -> LossInputs:
    x = torch.zeros(SAMPLES, 3, 8, 12)
    output = Output(x, {1: token_BKD}, route)
    sample = Sample(x, x, torch.zeros(SAMPLES), x)
    return LossInputs(
        output, sample, x, x, None, x.byte(), [""] * SAMPLES, Draws(0, torch.arange(SAMPLES)), 0, seen_BLT
    )
