"""Snapshots of the weight averages, and the average of any length after the run: a weighted sum of snapshots (EDM2,
arXiv 2312.02696).

Snapshots are for good: `snapshots/step-N`, in the format of a checkpoint. They are fp32. A reconstruction takes
differences of snapshots, with weights that reach ten and more for a short average (`power_function.fit`), and the
rounding of fp16 would be as much larger.

A snapshot is written before the checkpoint of its step, and a run that resumes from a checkpoint removes the snapshots
of later steps, since it does these again. So they are of one training, each step once, and none is lost.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from tintype.errors import UserError
from tintype.optim.ema import UPDATES
from tintype.optim.power_ema import prefix
from tintype.optim.power_function import LONGEST, Profile, fit
from tintype.plan import Plan
from tintype.runtime.forms import Form, misfits
from tintype.runtime.layout import whole
from tintype.runtime.notes import note_once
from tintype.train import checkpoint
from tintype.train.parts import LOSSES
from tintype.train.record import RunRecord
from tintype.train.saving import Saver
from tintype.train.state import TrainState
from tintype.wording import again, technique

_TYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
MOST_RESIDUAL = 0.15
"""The share of a profile's norm that may be missed."""


def take_snapshot(folder: Path, plan: Plan, state: TrainState, saver: Saver | None = None) -> None:
    """Save the averages if it is time. What sampling does not need is left out."""
    if plan.ema is None or state.ema is None or not plan.ema.snapshot_due(state.step, plan.train.steps):
        return
    stored = state.ema.tensors()
    updates = int(stored.pop(UPDATES))
    if not updates:  # every step so far was skipped
        return
    kept = {name: tensor for name, tensor in stored.items() if not name.partition("/")[2].startswith(LOSSES)}
    tensors = {name: whole(tensor).cpu() for name, tensor in kept.items()}
    lengths = sorted({float(name.partition("/")[0]) for name in tensors})
    about = {"step": state.step, UPDATES: updates, "lengths": lengths}

    saver = saver or Saver()
    commit = partial(checkpoint.commit, folder, state.step, scalars=about, what="snapshot", stage="snapshot")
    saver.write(state.step, tensors, commit)


@dataclass(frozen=True)
class Snapshot:
    path: Path
    step: int
    updates: int
    lengths: tuple[float, ...]
    sha256: str
    """SHA-256 that its tensors should have."""


def read_snapshots(folder: Path) -> list[Snapshot]:
    """Return all whole snapshots, oldest first. Their tensors are not read."""
    found = []
    for step in checkpoint.steps(folder):
        path = checkpoint.folder_of(folder, step)
        with _refuse_damaged(path):
            about, sha256 = checkpoint.describe(path)
        found.append(Snapshot(path, step, int(about[UPDATES]), tuple(about["lengths"]), sha256))
    return found


@contextmanager
def _refuse_damaged(path: Path) -> Iterator[None]:
    try:
        yield
    except checkpoint.DamagedError as error:
        without = f"remove it and {again()} again to do without it, less exactly"
        raise UserError(f"the snapshot {path} is damaged ({error})", without) from None


@dataclass(frozen=True)
class Reconstruction:
    """How the average of a length, at a step, is made of the snapshots; `residual` is the share that they miss."""

    length: float
    step: int
    residual: float
    terms: tuple[tuple[Snapshot, float, float], ...]
    """Snapshot, which of its averages (by length), and the weight."""

    @property
    def words(self) -> str:
        return f"average {self.length!r}"

    @property
    def name(self) -> str:
        """Stands in the names of what is made with it: another length, or other snapshots, have another."""
        content = [[snapshot.sha256, length] for snapshot, length, _ in self.terms]
        return f"ema-{self.length!r}-{hashlib.sha256(json.dumps(content).encode()).hexdigest()[:8]}"

    def weights(self) -> dict[str, Tensor]:
        """The average, summed in float64 and kept in fp32. One tensor of one snapshot is in memory at a time."""
        used = [term for term in self.terms if term[2]]
        with ExitStack() as stack:
            files = {}
            for path in dict.fromkeys(snapshot.path for snapshot, _, _ in used):
                with _refuse_damaged(path):
                    checkpoint.verify(path)
                files[path] = stack.enter_context(safe_open(checkpoint.tensors_file(path), "pt"))
            terms = [(files[snapshot.path], prefix(length), weight) for snapshot, length, weight in used]
            wanted = {name: Form(form.shape, torch.float32) for name, form in _forms(*terms[0][:2]).items()}
            for (file, before, _), (snapshot, _, _) in zip(terms, used, strict=True):
                if found := misfits(_forms(file, before), wanted):
                    raise UserError(f"the snapshot {snapshot.path} does not fit {used[0][0].path}: {found}")
            return {name: _sum(terms, name) for name in wanted}


def reconstruction(run: Path, length: float, step: int | None = None) -> Reconstruction:
    """Return the average of a length at the last snapshot or at `step`; refuse what the snapshots cannot give."""
    found = try_reconstruction(run, length, step)
    if found.residual > MOST_RESIDUAL:
        count = len({snapshot.path for snapshot, _, _ in found.terms})
        tracked = ", ".join(f"{one:g}" for one in sorted({one for _, one, _ in found.terms}))
        raise UserError(
            f"the {count} snapshots of {run} (lengths {tracked}) cannot represent an average of length {length:g}: "
            f"{found.residual:.0%} of its profile would be missed, and at most {MOST_RESIDUAL:.0%} may be",
            "choose a length nearer to these, or train with more snapshots",
        )
    return found


def try_reconstruction(run: Path, length: float, step: int | None = None) -> Reconstruction:
    """The same, however much is missed."""
    if not 0 < length < LONGEST:
        raise UserError(f"a length of {length:g}: it lies between 0 and {LONGEST:.4f}, which is the plain mean")
    snapshots = _snapshots(run)
    if step is not None:
        snapshots = [snapshot for snapshot in snapshots if snapshot.step <= step]
        if not snapshots or snapshots[-1].step != step:
            steps = ", ".join(str(snapshot.step) for snapshot in _snapshots(run))
            raise UserError(f"{run} has no snapshot of step {step}; it has those of {steps}")
    basis = [(snapshot, one) for snapshot in snapshots for one in snapshot.lengths]
    last = snapshots[-1]
    mixture = fit([Profile(one, snapshot.updates) for snapshot, one in basis], Profile(length, last.updates))
    terms = tuple((*pair, weight) for pair, weight in zip(basis, mixture.weights, strict=True))
    return Reconstruction(float(length), last.step, mixture.residual, terms)


def _snapshots(run: Path) -> list[Snapshot]:
    record = RunRecord(run)
    plan, found = record.plan, read_snapshots(record.snapshots)
    steps = plan.train.steps
    due = [step for step in range(1, steps + 1) if plan.ema is not None and plan.ema.snapshot_due(step, steps)]
    if found:
        there = {one.step for one in found}
        if lost := ", ".join(str(step) for step in due if step <= found[-1].step and step not in there):
            note_once(str(run), f"{run} has no snapshot of the steps {lost}; averages of its weights are less exact")
        return found
    if due:
        raise UserError(f"{run} has no snapshot of its weight averages yet; the first is written at step {due[0]}")
    raise UserError(
        f"{run} has no snapshots of weight averages, so no other length can be had",
        f"train with {technique('power-ema')} for that",
    )


def _forms(file: Any, before: str) -> dict[str, Form]:
    """The forms of the tensors of one average, without reading them."""
    slices = {name: file.get_slice(name) for name in file.keys() if name.startswith(before)}  # noqa: SIM118
    return {
        name.removeprefix(before): Form(torch.Size(one.get_shape()), _TYPES.get(one.get_dtype(), torch.uint8))
        for name, one in slices.items()
    }


def _sum(terms: list[tuple[Any, str, float]], name: str) -> Tensor:
    file, before, weight = terms[0]
    total: Tensor = weight * file.get_tensor(before + name).double()
    for file, before, weight in terms[1:]:
        total.add_(file.get_tensor(before + name), alpha=weight)
    return total.to(torch.float32)
