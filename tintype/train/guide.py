"""Use earlier weights of a run to guide the run's own sampling (autoguidance, arXiv 2406.02507).

The weights come from a snapshot of the weight average (`reconstruct`), or from a checkpoint that still exists.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from tintype.errors import UserError
from tintype.flow.guidance import Guide
from tintype.optim.power_ema import PowerEmaSettings
from tintype.plan import Plan
from tintype.runtime.forms import Form, forms_of, misfits
from tintype.train import checkpoint
from tintype.train.load import weights_in
from tintype.train.parts import Model, build_twin
from tintype.train.reconstruct import Reconstruction, read_snapshots, reconstruction
from tintype.train.record import RunRecord
from tintype.wording import option, technique

_ROUNDING = 1e-9
"""Rounding tolerance in steps for a fraction of the training; 0.07 of 100 steps is slightly above 7 as a float."""


def with_guides(run: Path, parts: Model, step: int, guides: Iterable[Guide | None]) -> Model:
    """Return the model, whose weights are of `step`, with the same run's earlier weights that guidance needs."""
    wanted = {one for one in guides if one is not None}
    return replace(parts, guides={one: _load(run, parts, step, one) for one in wanted}) if wanted else parts


def guide_step(plan: Plan, guide: Guide) -> int:
    """Return the step of the guide's weights. A fraction means the plan's first snapshot at or after this point."""
    if isinstance(guide.step, int):
        return guide.step
    steps = plan.train.steps
    first = max(1, math.ceil(guide.step * steps - _ROUNDING))
    due = (step for step in range(first, steps) if plan.ema is not None and plan.ema.snapshot_due(step, steps))
    return next(due, first)


def guide_problem(plan: Plan, guide: Guide, scored_at: Iterable[int] = ()) -> str | None:
    """Return why the guide's weights will be missing, or that a score is due before their step; None if neither."""
    step, steps = guide_step(plan, guide), plan.train.steps
    if plan.ema is None or not plan.ema.snapshot_due(step, steps):
        return (
            f"autoguidance needs the weights of step {step:,}, and the plan keeps no snapshot of that step; let the "
            "baseline have power-ema, and choose a step at which a snapshot is due, or a share of the training"
        )
    if early := [one for one in (*scored_at, steps) if one <= step]:
        return f"autoguidance leads away from the weights of step {step:,}, but the run is scored at step {early[0]:,}"
    return None


def _load(run: Path, parts: Model, step: int, guide: Guide) -> Model:
    at = guide_step(parts.plan, guide)
    if at >= step:
        raise UserError(
            f"autoguidance leads away from earlier weights, but step {at:,} is not before step {step:,}, the "
            f"step of the sampled weights",
            f"choose an earlier step (guidance.step, {option('guide-step')})",
        )
    twin = build_twin(parts)
    weights = _weights(run, parts.plan, at, guide.length)
    trained = dict(twin.modules.named_parameters())
    wanted = {name: Form(one.shape, torch.float32) for name, one in trained.items()}
    found = {name: weights[name].float() for name in wanted if name in weights}
    if wrong := misfits(forms_of(found), wanted):
        raise UserError(f"the weights of step {at} of {run} do not fit its plan: {wrong}")
    own = parts.modules.state_dict()
    twin.modules.load_state_dict({name: own[name] for name in twin.modules.state_dict()} | found)
    twin.modules.eval()
    return replace(twin, trained_steps=at)


def _weights(run: Path, plan: Plan, step: int, length: float | None) -> dict[str, Tensor]:
    """Return the weights from a snapshot, or else from a checkpoint, by their names in the modules."""
    record = RunRecord(run)
    snapshots = {one.step: one for one in read_snapshots(record.snapshots)}
    if step in snapshots and isinstance(plan.ema, PowerEmaSettings):
        wanted = plan.ema.lengths[0] if length is None else length
        if wanted in snapshots[step].lengths:
            return Reconstruction(wanted, step, 0.0, ((snapshots[step], wanted, 1.0),)).weights()
        return reconstruction(run, wanted, step).weights()
    if step in record.saved_steps and length is None:
        try:
            tensors, _ = checkpoint.read(checkpoint.folder_of(record.checkpoints, step))
        except checkpoint.DamagedError as error:
            raise UserError(
                f"the checkpoint of step {step} in {run} is damaged ({error})", "choose another step"
            ) from None
        return weights_in(tensors, plan.ema)
    raise UserError(
        f"autoguidance: {run} has no {'weights' if length is None else f'average of length {length:g}'} of step "
        f"{step:,}. Steps with a snapshot: {_listed(snapshots)}; with a checkpoint: {_listed(record.saved_steps)}",
        f"choose one of these steps (guidance.step, {option('guide-step')}); training with "
        f"{technique('power-ema')} takes "
        "snapshots",
    )


def _listed(steps: Iterable[int]) -> str:
    return ", ".join(f"{step:,}" for step in steps) or "none"
