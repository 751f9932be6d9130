"""One update of the weights: micro-batches forward and backward, the non-finite guard, clipping, the optimizer.

B: samples of a micro-batch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from tintype.data.captions import captions_of
from tintype.data.order import ids_at
from tintype.plan import Plan
from tintype.seams import Draws, View
from tintype.train import fault
from tintype.train.clock import Clock
from tintype.train.parts import Parts
from tintype.train.state import TrainState


@dataclass(frozen=True)
class StepResult:
    losses: dict[str, Tensor]
    """Mean over the batch of each part of the loss, and of their weighted sum as `loss`."""
    grad_norm: float
    finite: bool


def update(parts: Parts, state: TrainState, clock: Clock) -> StepResult:
    """Advances the state by one step. A step whose gradient is not finite leaves the weights and optimizer alone."""
    plan = parts.plan
    micro = plan.train.batch // plan.train.accumulate
    losses: dict[str, Tensor] = {}
    state.optimizer.zero_grad(set_to_none=True)
    for index in range(plan.train.accumulate):
        part_losses = micro_batch_losses(parts, state.images_seen + index * micro, micro, state.step, clock)
        with clock.part("backward"):
            (part_losses["loss"] / plan.train.accumulate).backward()
        for name, value in part_losses.items():
            losses[name] = losses.get(name, torch.zeros_like(value)) + value.detach() / plan.train.accumulate
        fault.point("step.backward")

    with clock.part("optimizer"):
        grad_norm = _clip(parts, plan)
        finite = math.isfinite(grad_norm)
        if finite:
            for group in state.optimizer.param_groups:
                group["lr"] = group["base_lr"] * lr_factor(plan, state.step)
            state.optimizer.step()
            if state.ema:
                state.ema.update(dict(parts.modules.named_parameters()))
    fault.point("step.optimizer")
    state.skips_in_a_row = 0 if finite else state.skips_in_a_row + 1
    state.step += 1
    state.images_seen += plan.train.batch
    return StepResult(losses, grad_norm, finite)


def micro_batch_losses(parts: Parts, first: int, count: int, step: int, clock: Clock) -> dict[str, Tensor]:
    """The losses of the samples at positions first … first + count - 1."""
    plan, device = parts.plan, parts.device
    with clock.part("data"):
        ids = ids_at(plan.seed, first, count, len(parts.source)).tolist()
        image_BCHW = parts.source.images(ids).to(device, non_blocking=True)
        records = parts.source.records(ids)
        draws = Draws(plan.seed, torch.arange(first, first + count, device=device))
        captions = captions_of(records, parts.captions, plan.captions.dropout, draws)
        fault.point("step.data")
    with parts.compute():
        with clock.part("text"):
            text = parts.text.encode(captions)
        with clock.part("tokenizer"), torch.no_grad():
            z_BCHW = parts.tokenizer.encode(image_BCHW)
        with clock.part("forward"):
            sample = parts.objective.draw(z_BCHW, draws)
            grid = (z_BCHW.shape[2] // plan.model.patch, z_BCHW.shape[3] // plan.model.patch)
            route = parts.router.plan(grid, step, draws) if parts.router else None
            output = parts.denoiser(sample.x_t_BCHW, sample.t_B, text, route=route, taps=parts.taps)
            losses = {"loss": parts.objective.loss(output, sample).mean()}
            view = View(output, sample, image_BCHW, step)
            for term in parts.terms:
                losses[term.name] = term(view).mean()
                losses["loss"] = losses["loss"] + term.weight(step) * losses[term.name]
    return losses


def lr_factor(plan: Plan, step: int) -> float:
    """Linear warm-up, then constant or a cosine to zero at the last step."""
    train = plan.train
    if step < train.warmup_steps:
        return (step + 1) / train.warmup_steps
    if train.schedule == "constant":
        return 1.0
    share = (step - train.warmup_steps) / max(1, train.steps - train.warmup_steps)
    return 0.5 * (1 + math.cos(math.pi * share))


def _clip(parts: Parts, plan: Plan) -> float:
    """Clips the global norm and returns what it was before."""
    most = plan.train.clip_norm if plan.train.clip_norm is not None else math.inf
    return float(torch.nn.utils.clip_grad_norm_(parts.modules.parameters(), most))
