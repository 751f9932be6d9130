"""The weight average of any length, after the run: a weighted sum of snapshots (EDM2, arXiv 2312.02696)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from tintype.errors import UserError
from tintype.optim.power_ema import prefix
from tintype.optim.power_function import LONGEST, Profile, fit
from tintype.plan import plan_from_folder
from tintype.runtime.forms import Form, misfits
from tintype.runtime.notes import note_once
from tintype.train import checkpoint
from tintype.train.folder import RunFolder
from tintype.train.snapshots import Snapshot, damaged, read_snapshots

_TYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
MOST_RESIDUAL = 0.15
"""The share of a profile's norm that may be missed."""


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
        for path in dict.fromkeys(snapshot.path for snapshot, _, _ in used):
            _verify(path)
        with ExitStack() as stack:
            files = {
                path: stack.enter_context(safe_open(checkpoint.tensors_file(path), "pt"))
                for path in {snapshot.path for snapshot, _, _ in used}
            }
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
            f"{found.residual:.0%} of its profile would be missed, and at most {MOST_RESIDUAL:.0%} may be. "
            "Choose a length nearer to these, or train with more snapshots"
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
    plan = plan_from_folder(run)
    found = read_snapshots(RunFolder(run).snapshots)
    steps = plan.train.steps
    due = [step for step in range(1, steps + 1) if plan.ema is not None and plan.ema.snapshot_due(step, steps)]
    if found:
        _note_lost(run, [step for step in due if step <= found[-1].step and step not in {one.step for one in found}])
        return found
    if due:
        raise UserError(f"{run} has no snapshot of its weight averages yet; the first is written at step {due[0]}")
    raise UserError(
        f"{run} has no snapshots of weight averages, so no other length can be had: "
        "train with --technique power-ema for that"
    )


def _note_lost(run: Path, steps: Sequence[int]) -> None:
    """Say once in a process that averages will be less exact than they could be."""
    if steps:
        listed = ", ".join(map(str, steps))
        note_once(str(run), f"{run} has no snapshot of the steps {listed}; averages of its weights are less exact")


def _verify(path: Path) -> None:
    try:
        checkpoint.verify(path)
    except checkpoint.DamagedError as error:
        raise damaged(path, error) from None


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
