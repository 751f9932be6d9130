"""`tintype bench`: images per second of training, sampling and rendering, measured in one process."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

from tintype.data.scenes.render import render
from tintype.data.scenes.scene import STYLES, draw_scenes
from tintype.generate import SamplerSettings, generate
from tintype.plan import Plan
from tintype.train.clock import Clock
from tintype.train.folder import environment
from tintype.train.parts import build_parts, exact_fp32
from tintype.train.state import new_state
from tintype.train.update import update

_WARM_UP_STEPS = 3
_RENDER_PX, _RENDER_COUNT = 64, 1024


@exact_fp32()
def measure(plan: Plan, steps: int) -> dict[str, Any]:
    parts = build_parts(plan)
    for term in parts.terms:
        term.part.ready()
    state = new_state(parts)
    clock = Clock(parts.device)
    for _ in range(_WARM_UP_STEPS):
        update(parts, state, clock)
    clock.read()
    for _ in range(steps):
        update(parts, state, clock)
    seconds, split = clock.read()
    images = steps * plan.train.batch
    total = max(seconds, sum(split.values()))  # a host's time can run beside a GPU's
    sampler = SamplerSettings(steps=10)
    captions = [record.captions["long"] for record in parts.source.records(range(sampler.batch))]
    sampling_s = _seconds(lambda: generate(parts, captions, sampler, seed=0, size_px=plan.data.size_px), parts.device)
    return {
        "environment": environment(parts.device),
        "plan": plan.hash,
        "parameters": sum(parameter.numel() for parameter in parts.modules.parameters()),
        "train_images_per_s": images / seconds,
        "time_split": {name: value / total for name, value in split.items()},
        "sample_images_per_s_at_10_steps": len(captions) / sampling_s,
        "render_images_per_s_at_64_px": {style: _render_rate(style, parts.device) for style in STYLES},
    }


def _render_rate(style: Any, device: torch.device) -> float:
    indices = list(range(_RENDER_COUNT))

    def work() -> None:
        render(draw_scenes(0, indices, "train", style), _RENDER_PX, 0, indices, device)

    return _RENDER_COUNT / _seconds(work, device)


def _seconds(work: Callable[[], Any], device: torch.device) -> float:
    """Time of the second call."""
    work()
    _wait(device)
    began = time.perf_counter()
    work()
    _wait(device)
    return time.perf_counter() - began


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
