"""Gaussian data, on which the best linear prediction is known, in the real training step.

The data are numbers x ~ N(MEAN, STD²) in the place of images, all in float64; the denoiser is a line in x_t.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor

from tintype import rng
from tintype.model import Transformer
from tintype.plan import Plan
from tintype.runtime.clock import Clock
from tintype.seams import Draws, Output, Record, TextTokens
from tintype.tokenizers.pixels import Pixels
from tintype.train.session import Session, build_session
from tintype.train.update import micro_batch_losses

MEAN, STD = 0.7, 0.5
COUNT = 40_000


def best_slope(t: float) -> float:
    """k of E[v | x_t] = k (x_t - (1 - t) MEAN) - MEAN."""
    return (t - (1 - t) * STD**2) / ((1 - t) ** 2 * STD**2 + t**2)


def best_velocity(x: Tensor, t: float) -> Tensor:
    """E[noise - x | x_t] for independent Gaussian data and noise."""
    return best_slope(t) * (x - (1 - t) * MEAN) - MEAN


def at_one_time(t: float) -> list[str]:
    """Settings under which every t drawn is this one, to the last bits of fp32."""
    mean = torch.logit(torch.tensor(t, dtype=torch.float64)).item()
    return ["time.kind=logit-normal", f"time.mean={mean}", "time.std=1e-9"]


def best_line(plan: Plan, count: int = COUNT) -> tuple[float, float]:
    """Slope and offset of the prediction that minimises the loss of the plan: the loss is quadratic in them."""
    line = torch.zeros(2, dtype=torch.float64, requires_grad=True)
    parts = _on_numbers(plan, line)
    loss = micro_batch_losses(parts, 0, count, 0, Clock(parts.device)).parts["loss"]
    (slope,) = torch.autograd.grad(loss, line, create_graph=True)
    curvature = torch.stack([torch.autograd.grad(one, line, retain_graph=True)[0] for one in slope])
    assert bool((torch.linalg.eigvalsh(curvature) > 0).all()), "the loss has no minimum"
    a, b = torch.linalg.solve(curvature, -slope).tolist()
    return a, b


def _on_numbers(plan: Plan, line: Tensor) -> Session:
    denoiser = cast(Transformer, Line(line))
    return replace(build_session(plan), opened=Numbers(), denoiser=denoiser, tokenizer=AsTheyAre(), text=NoText())


class Numbers:
    """Each with its own caption."""

    identity = "numbers"
    columns = frozenset({"long", "short"})

    def __len__(self) -> int:
        return COUNT

    def prepare(self, ids: Sequence[int]) -> None:
        pass

    def expect(self, ids: Sequence[int]) -> None:
        pass

    def images(self, ids: Sequence[int]) -> Tensor:
        return MEAN + STD * rng.normal(0, "numbers", torch.tensor(ids), (1, 1, 1)).double()

    def records(self, ids: Sequence[int]) -> list[Record]:
        return [Record({"long": f"number {id_}", "short": f"number {id_}"}, None) for id_ in ids]


class AsTheyAre(Pixels):
    channels = 1

    def encode(self, image_BCHW: Tensor, draws: Draws | None = None) -> Tensor:
        return image_BCHW

    def decode(self, z_BCHW: Tensor) -> Tensor:
        return z_BCHW


class NoText:
    dim, identity = 1, None

    def identity_at(self, max_tokens: int) -> None:
        return None

    def truncate(self, captions: Sequence[str], max_tokens: int) -> list[str]:
        raise AssertionError("the toy has no tokens")

    def transformers_form(self) -> None:
        return None

    def encode(self, captions: Sequence[str]) -> TextTokens:
        return TextTokens(torch.zeros(len(captions), 1, 1), torch.ones(len(captions), 1, dtype=torch.bool))


@dataclass(frozen=True)
class Line:
    line: Tensor

    def __call__(self, x_t_BCHW: Tensor, t_B: Tensor, text: Any, route: Any = None, **others: Any) -> Output:
        return Output(self.line[0] * x_t_BCHW + self.line[1], {}, route)
