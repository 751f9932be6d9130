"""Build the line of `metrics.jsonl` for the steps since the last line."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import Any

import torch

from tintype.runtime.clock import Clock
from tintype.runtime.dist import World
from tintype.train.session import Session
from tintype.train.state import TrainState
from tintype.train.update import TIME_BINS, StepResult


def window_line(parts: Session, state: TrainState, window: Sequence[StepResult], clock: Clock) -> dict[str, Any]:
    """Return the log line of a window, with means over the steps that were not skipped.

    A loss term's mean covers only the steps at which the term had a weight. The logged mean weight of a term covers all
    steps. So the product of mean loss and mean weight is the term's contribution to the window's mean loss.
    """
    seconds, split = clock.read()
    taken = [result for result in window if not result.skipped]
    weights = {term.name: fmean(term.settings.weight_at(r.step - 1) for r in window) for term in parts.terms}
    line = {
        "step": state.step,
        "images": state.images_seen,
        **({"size_px": parts.plan.size_px_at(state.step - 1)} if parts.plan.train.stages else {}),
        **_mean_losses(window, taken, parts.world),
        **({"weights": weights} if weights else {}),
        "flow_by_time": _by_time(taken, parts.world),
        "grad_norm": taken[-1].grad_norm if taken else None,
        "lr": state.optimizer.param_groups[0]["lr"],
        "images_per_s": sum(parts.plan.train.batch_at(result.step - 1) for result in window) / seconds,
        "seconds": seconds,
        "parts": split,
    }
    mine = torch.tensor(float(sum(result.without_caption for result in window)), device=parts.device)
    if without := round(float(parts.world.all_reduce_mean(mine)) * parts.world.size):  # samples of all ranks
        line["without_caption"] = without
    if parts.device.type == "cuda":
        line["memory_gb"] = torch.cuda.memory_allocated(parts.device) / 1e9
    return line


def _mean_losses(window: Sequence[StepResult], taken: Sequence[StepResult], world: World) -> dict[str, float | None]:
    names = dict.fromkeys(name for result in window for name in result.losses)
    found = {name: [result.losses[name] for result in taken if name in result.losses] for name in names}
    return {
        name: float(world.all_reduce_mean(torch.stack(values).mean())) if values else None
        for name, values in found.items()
    }


def _by_time(taken: Sequence[StepResult], world: World) -> dict[str, float | None]:
    """Return the mean squared error of the velocity in each bin of t, by the middle of the bin."""
    sums = torch.stack([result.by_time for result in taken]).sum(0) if taken else torch.zeros(2, TIME_BINS)
    total, count = world.all_reduce_mean(sums).tolist()
    return {
        f"{(index + 0.5) / TIME_BINS:g}": total[index] / count[index] if count[index] else None
        for index in range(TIME_BINS)
    }
