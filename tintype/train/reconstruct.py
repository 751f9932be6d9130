"""Snapshots of the weight averages, whose weighted sums give averages of any length (EDM2, arXiv 2312.02696).

Snapshots are never deleted automatically. Snapshots are in `snapshots/step-N`, in the format of a checkpoint. Snapshots
are fp32, because a short average is a sum of snapshots with coefficients of ten and more, of both signs
(`power_function.fit`). These coefficients would amplify fp16's rounding errors.

A snapshot is written before the checkpoint of its step. A run that resumes from a checkpoint removes the snapshots of
later steps and writes them again. So all snapshots belong to one training, each step has at most one snapshot, and a
kill loses none.
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
"""Largest allowed residual of a reconstruction, as a fraction of the norm of the average's weight profile."""


def take_snapshot(folder: Path, plan: Plan, state: TrainState, saver: Saver | None = None) -> None:
    """Save the averages if a snapshot is due at this step, but leave out parameters that sampling does not need."""
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
    """Recorded SHA-256 of the tensors."""


def read_snapshots(folder: Path) -> list[Snapshot]:
    """Return all snapshots, oldest first; raise if any snapshot is damaged. The snapshots' tensors are not read."""
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
    """An average as a sum of snapshots. `residual` is the fraction of its weight profile that the sum misses."""

    length: float
    step: int
    residual: float
    terms: tuple[tuple[Snapshot, float, float], ...]
    """Triples of a snapshot, the length of one of its averages, and the weight of this average in the sum."""

    @property
    def words(self) -> str:
        return f"average {self.length!r}"

    @property
    def name(self) -> str:
        """Return a name for files. A different length or different snapshots give a different name."""
        content = [[snapshot.sha256, length] for snapshot, length, _ in self.terms]
        return f"ema-{self.length!r}-{hashlib.sha256(json.dumps(content).encode()).hexdigest()[:8]}"

    def weights(self) -> dict[str, Tensor]:
        """Return the average, summed in float64 and stored in fp32, with one tensor in memory at a time."""
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
    """Return the average of a length at the last snapshot or `step`; raise if the snapshots cannot represent it."""
    found = try_reconstruction(run, length, step)
    if found.residual > MOST_RESIDUAL:
        count = len({snapshot.path for snapshot, _, _ in found.terms})
        tracked = ", ".join(f"{one:g}" for one in sorted({one for _, one, _ in found.terms}))
        raise UserError(
            f"the {count} snapshots of {run} (lengths {tracked}) cannot represent an average of length {length:g}: "
            f"{found.residual:.0%} of its weighting would be missing, but at most {MOST_RESIDUAL:.0%} may be missing",
            "choose a length closer to the stored lengths, or train with more snapshots",
        )
    return found


def try_reconstruction(run: Path, length: float, step: int | None = None) -> Reconstruction:
    """Return the same average as `reconstruction`, but accept any residual."""
    if not 0 < length < LONGEST:
        raise UserError(
            f"the length of an average is {length:g}, but must lie between 0 and {LONGEST:.4f}, which is the plain mean"
        )
    snapshots = _snapshots(run)
    if step is not None:
        snapshots = [snapshot for snapshot in snapshots if snapshot.step <= step]
        if not snapshots or snapshots[-1].step != step:
            steps = ", ".join(str(snapshot.step) for snapshot in _snapshots(run))
            raise UserError(f"{run} has no snapshot of step {step}; it has snapshots of the steps {steps}")
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
        f"{run} has no snapshots of weight averages, so an average of another length cannot be reconstructed",
        f"to reconstruct other lengths, train with {technique('power-ema')}",
    )


def _forms(file: Any, before: str) -> dict[str, Form]:
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
