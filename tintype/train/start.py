"""Resume a run from its newest intact checkpoint, or start a run from the weights of another run.

A run that starts from another run takes over the weights of the denoiser, the text encoder and the router. The
optimizer, the weight average and parameters of losses start from their initial state. The new run records its origin in
`lineage.json`, together with the other run's lineage. After its first checkpoint, the new run no longer needs the other
run. If the other run was imported, its `imported.json` is copied too.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tintype.errors import UserError, as_user_error
from tintype.model.start import StartPart
from tintype.plan import Plan, diff
from tintype.runtime.identity import check_pin, in_words
from tintype.runtime.layout import is_sharded
from tintype.settings import plain
from tintype.train import checkpoint
from tintype.train.folder import RunFolder
from tintype.train.load import weight_misfits, weights_in
from tintype.train.record import FAILURES, LINEAGE, RunRecord
from tintype.train.session import Session
from tintype.train.state import StateMismatchError, TrainState, new_state
from tintype.wording import option

_MUST_FIT = ("objective.kind", "tokenizer.kind", "tuning")
_MAY_DIFFER = ("model.compile", "model.activation_checkpointing", "text.max_tokens")
_PLACES = tuple(f"text.{key}" for key in ("weights", "subfolder", "tokenizer_subfolder", "revision", "sha256"))
"""Settings of a frozen text encoder's location. The encoder's identity is compared separately."""


def resume(folder: RunFolder, state: TrainState) -> None:
    """Restore damaged files and the newest intact checkpoint; delete later log lines, snapshots and kept weights."""

    def on_damage(moved_to: Path, reason: str) -> None:
        folder.log_event("damaged-checkpoint", 0, moved_to=str(moved_to), reason=reason)

    with folder.world.fail_together():
        folder.restore_files()
    misfit = f"the checkpoint in {folder.checkpoints} does not fit this plan and version"
    with as_user_error(StateMismatchError, misfit):
        checkpoint.restore(folder.checkpoints, state, on_damage, folder.world)
    with folder.world.fail_together():
        folder.forget_after(state.step)
        if folder.writes:
            for kept in (folder.snapshots, folder.kept):
                checkpoint.remove_after(kept, state.step, folder.fence)


def begin(folder: RunFolder, parts: Session, state: TrainState) -> TrainState:
    """Return the state after loading the plan's start weights, or unchanged for a resumed run or a random start."""
    start = parts.plan.start
    if start is None or state.step:
        return state
    with folder.world.fail_together():
        parent = find_parent(parts.plan, start, folder.path)
        parent.check_identity("tokenizer", parts.tokenizer.identity)
        tokens = plain(parent.plan.text)[
            "max_tokens"
        ]  # part of the encoder's identity, but may differ between the runs
        parent.check_identity("text", parts.text.identity_at(tokens))
    cut = any(map(is_sharded, state.parameters))
    newest = checkpoint.folder_of(parent.checkpoints, parent.saved_step)
    damaged = f"start: the checkpoint {newest} is damaged"
    with as_user_error(checkpoint.DamagedError, damaged, "remove the damaged file, or start from another run"):
        tensors, _ = checkpoint.read(newest, state if cut else None)
        whole = checkpoint.read(newest)[0] if cut and folder.writes else tensors
    with folder.world.fail_together():
        average = parent.plan.ema if start.weights == "average" and not parent.about else None
        if found := weight_misfits(tensors, parts.modules, parent.plan, average, parent.about):
            unlike = [key for key in diff(parent.plan, parts.plan) if key.partition(".")[0] in ("route", "tuning")]
            more = f" (the settings {', '.join(unlike)} differ too)" if unlike else ""
            raise UserError(f"start: the weights of the run in {parent.path} do not fit this plan: {found}{more}")
        weights = weights_in(tensors, average)
        if folder.writes:
            sha256 = identity(weights_in(whole, average))
            what = f"the {start.weights} weights of the run in {parent.path}"
            check_pin("start.sha256", start.pinned, what, sha256, "give the right folder")
            lineage = _lineage(parent, start, sha256)
            if folder.record.lineage != lineage:  # recorded once, however often the run begins
                started = {key: lineage[key] for key in ("folder", "plan", "at_step", "sha256")}
                folder.log_event("started-from", 0, **started)
                folder.write_record(LINEAGE, lineage)
    parts.modules.load_state_dict(weights, strict=False)  # parameters of losses are not among these weights
    return new_state(parts)  # a new average starts from these weights


def find_parent(plan: Plan, start: StartPart, run: Path) -> RunRecord:
    """Return the run from which a plan starts; raise UserError if it does not fit. The run's tensors are not read."""
    path = start.parent(run)
    if path.resolve() == run.resolve():
        raise UserError(
            f"start: {path} is the folder of this run itself",
            f"start from another run, or choose another {option('out')}",
        )
    if not path.is_dir():
        raise UserError(f"start: there is no run in {path}", "give the folder of a run that was trained")
    parent = RunRecord(path)
    found = parent.plan
    if parent.failure == "diverged":
        raise UserError(
            f"start: the run in {path} diverged (the reason is in {path / FAILURES['diverged']})", "use another run"
        )
    if not parent.saved_steps:
        raise UserError(f"start: the run in {path} was not trained yet: it has no checkpoints")
    if start.parent_plan is not None and (found.hash, parent.saved_step) != (start.parent_plan, found.train.steps):
        raise UserError(
            f"start: the run in {path} is at step {parent.saved_step} of {found.train.steps} of the plan {found.hash}, "
            f"but the last weights of the plan {start.parent_plan} are needed",
            "finish the training of that run first",
        )
    about = parent.about
    if about and about["weights"] != start.weights and {about["weights"], start.weights} <= {"raw", "average"}:
        raise UserError(
            f"start.weights is {start.weights}, but the exported model in {path} contains only the "
            f"{about['weights']} weights",
            f"use start.weights={about['weights']}",
        )
    if start.weights == "average" and found.ema is None:
        raise UserError(
            f"start.weights is average, but the run in {path} has no average of its weights", "use start.weights=raw"
        )
    if reasons := unfit_settings(plan, found):
        raise UserError(f"start: the weights of the run in {path} do not fit this plan: {reasons}")
    return parent


def unfit_settings(plan: Plan, parent: Plan) -> str:
    changes = diff(parent, plan)
    free = _MAY_DIFFER if "text.kind" in changes else (*_MAY_DIFFER, *_PLACES)
    different = {
        key: change
        for key, change in changes.items()
        if (key in _MUST_FIT or key.partition(".")[0] in ("model", "text")) and key not in free
    }
    if "text.kind" in different:  # the other text settings differ because the kinds differ
        different = {key: change for key, change in different.items() if key in _MUST_FIT or key == "text.kind"}
    return in_words(different)


def identity(weights: Mapping[str, Tensor]) -> str:
    """Return the SHA-256 over the names, dtypes, shapes and values of the weights."""
    digest = hashlib.sha256()
    for name, tensor in sorted(weights.items()):
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)} ".encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _lineage(parent: RunRecord, start: StartPart, sha256: str) -> dict[str, Any]:
    return {
        "folder": str(parent.path),
        "plan": parent.plan.hash,
        "seed": parent.plan.seed,
        "at_step": parent.saved_step,
        "steps": parent.plan.train.steps,
        "weights": start.weights,
        "sha256": sha256,
        "lineage": parent.lineage or None,
        **({"imported": parent.imported} if parent.imported else {}),
    }
