"""One update of the weights, with passes per micro-batch, clipping, the decision to skip, and the optimizer.

The tensor dimension B is the number of samples in a micro-batch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from tintype.flow.path import interpolate
from tintype.losses.class_token import noised_class_tokens
from tintype.plan import Plan
from tintype.runtime import fault
from tintype.runtime.clock import Clock
from tintype.runtime.gradients import backward_start, clip_factor, gradient_norm, multiply_gradients
from tintype.runtime.layout import local, share_of_batch
from tintype.runtime.transfer import PendingNumbers
from tintype.seams import LossInputs, Sample, Tapped
from tintype.train.average_teacher import AverageTeacher
from tintype.train.batch import Batch, StepText, read_batch, read_text
from tintype.train.session import Session
from tintype.train.state import TrainState

TIME_BINS = 8
"""Number of equal bins of t. The middles of the bins are the times of the validation loss."""


@dataclass(frozen=True)
class StepResult:
    losses: dict[str, Tensor]
    """Each loss term's mean over this rank's share of the batch, and the weighted sum of these means as `loss`."""
    by_time: Tensor
    """[2, bins]: sum and number of the samples' unweighted main losses, in equal bins of t."""
    step: int
    """Number of the step, counted from 1."""
    first_position: int
    without_caption: int
    """Number of samples in this rank's share that get the null caption because they have no other caption."""
    _numbers: PendingNumbers
    """Gradient norm, whether the step is skipped, and loss, which are still being copied from the device."""

    @property
    def grad_norm(self) -> float:
        return self._numbers.numbers()[0]

    @property
    def finite(self) -> bool:
        return math.isfinite(self.grad_norm)

    @property
    def skipped(self) -> bool:
        """Return whether the step was skipped because it was not finite or a spike."""
        return self._numbers.numbers()[1] > 0

    @property
    def loss(self) -> float:
        """Return the mean loss over the batch if spikes are skipped, otherwise over this rank's share of the batch."""
        return self._numbers.numbers()[2]


def update(parts: Session, state: TrainState, clock: Clock) -> StepResult:
    """Advance the state by one step. If a step is not finite or is a spike, weights and optimizer do not change.

    The host does not wait for the GPU in this function, unless a loss term requires it. The decision to skip is made on
    the device, where the optimizer reads it through `found_inf`, as with torch's gradient scaler. So the host can
    prepare the next step while the GPU works.
    """
    plan = parts.plan
    batch = plan.train.batch_at(state.step)
    micro = batch // plan.train.accumulate
    share = share_of_batch(batch, plan.train.accumulate, parts.world)
    losses: dict[str, Tensor] = {}
    without_caption = 0
    by_time = torch.zeros(2, TIME_BINS, device=parts.device)
    scale, accumulate = plan.precision.loss_scale, plan.train.accumulate
    joint = parts.joint.begin_step(parts, clock, scale, accumulate) if parts.joint else None
    state.optimizer.zero_grad(set_to_none=True)
    firsts = [state.images_seen + index * micro + parts.world.rank * share for index in range(accumulate)]
    step_text = read_text(parts, firsts, share, state.step, clock)
    for index, first in enumerate(firsts):
        last = index == accumulate - 1
        latents = partial(joint.latents, last=last) if joint else None
        found = micro_batch_losses(parts, first, share, state.step, clock, latents, state.teacher, step_text)
        with clock.part("backward"), parts.gradients.over(last):
            loss = found.parts["loss"] / accumulate * scale
            loss.backward(backward_start(loss))
        by_time += found.by_time
        without_caption += found.without_caption
        for name, value in found.parts.items():
            losses[name] = losses.get(name, torch.zeros_like(value)) + value.detach() / accumulate
        fault.point("step.backward")

    with clock.part("optimizer"):
        _undo_loss_scale(state, plan)
        apart = {id(parameter) for parameter in parts.joint.clipped_apart} if parts.joint else set[int]()
        clipped = [parameter for parameter in state.parameters if id(parameter) not in apart]
        grad_norm = _clip(state.optimizer, clipped, parts)
        if joint:
            grad_norm = joint.clip(grad_norm)
        loss, skipped = _decide(parts, state, losses["loss"], grad_norm)
        for group in state.optimizer.param_groups:
            group["lr"] = group["base_lr"] * lr_factor(plan, state.step)
        state.optimizer.found_inf, state.optimizer.update_number = skipped, state.step  # type: ignore[attr-defined]
        averaged = state.ema and plan.ema and plan.ema.update_due(state.step + 1)
        averaging = state.ema.begin(skipped) if state.ema and averaged else None
        state.optimizer.averaging, state.optimizer.copies = averaging, parts.denoiser.copies()  # type: ignore[attr-defined]
        state.optimizer.step()
        if averaging:
            averaging.finish()
        if joint:
            losses |= joint.finish(skipped)
    fault.point("step.optimizer")
    first = state.images_seen
    numbers = PendingNumbers(torch.stack([grad_norm, skipped, loss.to(grad_norm)]))
    result = StepResult(losses, by_time, state.step + 1, first, without_caption, numbers)
    state.step += 1
    state.images_seen += batch
    return result


def _clip(optimizer: torch.optim.Optimizer, parameters: Sequence[Tensor], parts: Session) -> Tensor:
    """Clip the gradients, or let the optimizer clip them as part of its update. Return their norm."""
    norm = gradient_norm(parameters, parts.layout)
    factor = clip_factor(norm, parts.plan.train.clip_norm)
    if getattr(optimizer, "clips", False) and parts.joint is None:
        optimizer.gradient_factor = factor  # type: ignore[attr-defined]
    else:
        multiply_gradients(parameters, factor)
    return norm


def _decide(parts: Session, state: TrainState, loss: Tensor, grad_norm: Tensor) -> tuple[Tensor, Tensor]:
    """Return the loss, and 1 if the step must be skipped, otherwise 0. The result is the same on every rank."""
    skipped = grad_norm.isfinite().logical_not().float()
    if state.spikes is None:
        return loss, skipped
    loss, grad_norm = parts.world.all_reduce_mean(torch.stack([loss, grad_norm])).unbind()
    return loss, torch.maximum(skipped, state.spikes.is_spike(loss, grad_norm))


@dataclass(frozen=True)
class Losses:
    """The losses of a micro-batch, as each term's mean, the weighted sum of means (`loss`), and the errors by time."""

    parts: dict[str, Tensor]
    by_time: Tensor
    without_caption: int


Latents = Callable[[Batch], Tensor]
"""Function from a micro-batch to the latents on which the denoiser is trained."""


def micro_batch_losses(
    parts: Session,
    first: int,
    count: int,
    step: int,
    clock: Clock,
    latents: Latents | None = None,
    teacher: AverageTeacher | None = None,
    step_text: StepText | None = None,
) -> Losses:
    """Compute the losses of the samples at positions first to first + count - 1.

    `latents` replaces the tokenizer's latents as the denoiser's input. Loss terms learn from `teacher`, the averaged
    denoiser. Without `step_text`, this function reads the captions.
    """
    batch = read_batch(parts, first, count, step, clock, step_text)
    z_BCHW = frozen_latents(parts, batch, clock) if latents is None else latents(batch)
    with parts.compute():
        with clock.part("forward"):
            sample = parts.draw(z_BCHW, batch.draws)
            route = parts.route(z_BCHW, step, batch.draws)
            taps = frozenset[int]().union(*(term.part.taps for term in batch.terms))
            output = parts.denoiser(
                sample.x_t_BCHW,
                sample.t_B,
                batch.text,
                route=route,
                taps=taps,
                attention_taps=frozenset[int]().union(*(term.part.attention_taps for term in batch.terms)),
                class_BT=noised_class_tokens(parts.plan.model.class_token, batch.seen, batch.draws, sample.t_B),
            )
        with clock.part("losses"):
            velocity_BCHW = parts.objective.velocity(output.prediction_BCHW, sample.x_t_BCHW, sample.t_B)
            target_BCHW = parts.objective.target(sample)
            weight_B = parts.weighting(sample.t_B) if parts.weighting else None
            seen_by_all = (output, sample, velocity_BCHW, target_BCHW, weight_B)
            view = LossInputs(*seen_by_all, batch.image_BCHW, batch.captions, batch.draws, step, world=parts.world)
            view = replace(view, averaged=partial(_tap_average, parts, teacher, sample, batch))
            error_B = parts.main_loss(velocity_BCHW, target_BCHW, sample.t_B)
            flow = (error_B if weight_B is None else weight_B * error_B).mean()
            losses = {"loss": flow, "flow": flow}
            for term in batch.terms:
                losses[term.name] = term.part.loss(replace(view, seen=batch.seen.get(term.name))).mean()
                losses["loss"] = losses["loss"] + term.settings.weight_at(step) * losses[term.name]
    return Losses(losses, _by_time(error_B.detach(), sample.t_B), batch.without_caption)


@torch.no_grad()
def _tap_average(
    parts: Session,
    teacher: AverageTeacher | None,
    sample: Sample,
    batch: Batch,
    t_B: Tensor,
    taps: frozenset[int],
) -> Tapped:
    """Run the averaged denoiser up to the last tapped block, on the samples' images and noise at different times."""
    network = parts.denoiser if teacher is None else teacher.network(parts.denoiser)
    x_t_BCHW = interpolate(sample.x_BCHW, sample.noise_BCHW, t_B)
    class_BT = noised_class_tokens(parts.plan.model.class_token, batch.seen, batch.draws, t_B)
    route = parts.router.whole()
    tapped: Tapped = network(x_t_BCHW, t_B, batch.text, route=route, taps=taps, only_taps=True, class_BT=class_BT)
    return tapped


def frozen_latents(parts: Session, batch: Batch, clock: Clock) -> Tensor:
    with clock.part("tokenizer"), torch.no_grad(), parts.compute():
        return parts.latents(batch.ids, batch.image_BCHW, batch.draws)


def _by_time(error_B: Tensor, t_B: Tensor) -> Tensor:
    """Return the sum and number of errors in each bin of t, without atomic additions, so that repeated runs agree."""
    bin_TB = (t_B * TIME_BINS).long() == torch.arange(TIME_BINS, device=t_B.device)[:, None]
    return torch.stack([torch.where(bin_TB, error_B.float(), 0.0).sum(1), bin_TB.sum(1).float()])


def lr_factor(plan: Plan, step: int) -> float:
    """Return the factor on the learning rate, which is a linear warm-up, then 1 or a cosine to zero."""
    train = plan.train
    if step < train.warmup_steps:
        return (step + 1) / train.warmup_steps
    if train.schedule == "constant":
        return 1.0
    share = (step - train.warmup_steps) / max(1, train.steps - train.warmup_steps)
    return 0.5 * (1 + math.cos(math.pi * share))


def _undo_loss_scale(state: TrainState, plan: Plan) -> None:
    """Divide the gradients by the loss scale. Division by a power of two loses no precision."""
    if plan.precision.loss_scale != 1:
        gradients = [local(one.grad) for one in state.parameters if one.grad is not None]
        torch._foreach_div_(gradients, plan.precision.loss_scale)
