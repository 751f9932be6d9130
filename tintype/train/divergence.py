"""End runs that have diverged, because too many steps were skipped, or weights are not finite or extremely large.

AdamW and Muon move a weight by about the learning rate per step. So the root mean square of a tensor grows by at most
steps × learning rate; for example, 100,000 steps at 1e-4 add at most 10. The limit, `train.most_weight_rms`, is 1000 by
default.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
import torch.distributed as dist
from torch import Tensor

from tintype.errors import DivergedError
from tintype.runtime.layout import ONE, Layout, is_sharded, local
from tintype.settings import SKIP_WINDOW_STEPS, TrainSettings
from tintype.train.folder import RunFolder
from tintype.train.session import Session
from tintype.train.state import TrainState
from tintype.train.update import StepResult
from tintype.wording import option

NON_FINITE, SPIKE = "non-finite-step", "skipped-spike"
SKIPS = (NON_FINITE, SPIKE)
"""Names of the events for skipped steps."""
_FIX = f"lower optimizer.lr or lengthen train.warmup_steps, with another {option('out')}"


def count_step(folder: RunFolder, parts: Session, state: TrainState, result: StepResult) -> None:
    """Count a step. Log a skipped step, and raise DivergedError if too many steps were skipped."""
    state.recent_skips = [step for step in state.recent_skips if step > result.step - SKIP_WINDOW_STEPS]
    if not result.skipped:
        state.skips_in_a_row = 0
        return
    state.skips_in_a_row += 1
    state.skips += 1
    state.recent_skips.append(result.step)
    batch = parts.plan.train.batch_at(result.step - 1)
    folder.log_event(
        SPIKE if result.finite else NON_FINITE,
        result.step,
        loss=str(result.loss),
        grad_norm=str(result.grad_norm),
        first_position=result.first_position,
        last_position=result.first_position + batch - 1,
        ids=parts.order.ids(result.first_position, batch),
    )
    if found := _too_many(parts.plan.train, state, result.step):
        raise DivergedError(
            f"the run diverged: {found} (up to step {result.step}); none of these steps changed the weights",
            f"{_FIX}; {folder.events_file} has the details",
        )


def _too_many(train: TrainSettings, state: TrainState, step: int) -> str:
    """Describe the exceeded limit on skipped steps; '' if no limit is exceeded."""
    if state.skips_in_a_row >= train.most_skips:
        return f"{state.skips_in_a_row} steps in a row were skipped"
    share = f"more than train.most_skipped, {train.most_skipped:.0%}"
    if len(state.recent_skips) > train.most_skipped * SKIP_WINDOW_STEPS:
        return f"{len(state.recent_skips)} of {SKIP_WINDOW_STEPS} steps were skipped, {share}"
    if state.skips > train.most_skipped * train.steps:
        return f"{state.skips} of the run's {train.steps} steps were skipped, {share}"
    return ""


def check_weights(parts: Session, state: TrainState) -> None:
    """Raise DivergedError if a parameter is not finite or too large. Every rank must call this function."""
    named = dict(parts.modules.named_parameters())
    if found := too_large(named, parts.plan.train.most_weight_rms, parts.layout):
        raise DivergedError(f"the run diverged at step {state.step}: {found}", _FIX)


def too_large(named: Mapping[str, Tensor], most_rms: float | None, layout: Layout = ONE) -> str:
    """Describe the tensor that is not finite or has a root mean square above `most_rms`; '' if there is none."""
    weights = {name: tensor.detach() for name, tensor in named.items() if tensor.numel()}
    numbers = torch.tensor([float(tensor.numel()) for tensor in weights.values()])
    rms = (_square_sums(list(weights.values()), layout) / numbers).sqrt()
    for name, value in zip(weights, rms.tolist(), strict=True):
        if not math.isfinite(value):
            return f"{name} is not finite"
        if most_rms is not None and value > most_rms:
            return f"the root mean square of {name} is {value:.3g}, above train.most_weight_rms, {most_rms:g}"
    return ""


def _square_sums(weights: list[Tensor], layout: Layout) -> Tensor:
    """Return the sum of squares of each tensor over all shards, in float64 on the CPU, since fp32 overflows at 1e19."""
    norms = torch._foreach_norm([local(weight) for weight in weights], 2, dtype=torch.float64)
    sums = torch.stack([norm.double() for norm in norms]).square()
    in_pieces = torch.tensor([is_sharded(weight) for weight in weights], device=sums.device)
    if bool(in_pieces.any()):
        whole = torch.where(in_pieces, sums, 0.0)
        dist.all_reduce(whole, group=layout.shard_group)
        sums = torch.where(in_pieces, whole, sums)
    return sums.cpu()
