"""Loads a trained run for sampling and scoring."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from shlex import quote

import torch
from torch import Tensor

from tintype.errors import DivergedError, UserError
from tintype.plan import Plan, plan_from_folder
from tintype.runtime.dist import current
from tintype.runtime.forms import Form, forms_of, misfits
from tintype.runtime.notes import note
from tintype.train import checkpoint
from tintype.train.divergence import too_large
from tintype.train.folder import RunFolder
from tintype.train.model_folder import check_files, read_about
from tintype.train.parts import TOKENIZER, Model, build_model
from tintype.train.reconstruct import Reconstruction
from tintype.train.state import TrainState
from tintype.train.weights import weight_misfits, weights_in


def load_run(
    path: Path, device: str | None = None, average: Reconstruction | None = None, raw: bool = False
) -> tuple[Model, int]:
    """The parts of a run with its newest good weights (its average, if it keeps one and not `raw`), and their step.

    Of several averages it is that of the first length; `average` is any other, made of the run's snapshots.
    """
    RunFolder(path).refuse_diverged()
    plan = plan_from_folder(path)
    if device is not None:
        plan = Plan(**{**dict(plan), "run": plan.run.model_copy(update={"device": device})})
    about = read_about(path)
    if about:
        check_files(path, about)
    tensors, scalars = newest_good(path)
    parts = build_model(plan)
    for name, part in (("tokenizer", parts.tokenizer), ("text", parts.text)):
        RunFolder(path).check_identity(name, part.identity)
    own_average = None if raw or about or average is not None else plan.ema
    if found := weight_misfits(tensors, parts.modules, plan, own_average, about):
        raise UserError(
            f"the checkpoint in {path} does not fit its plan.yaml and this version: {found}. Was the plan changed "
            "after the training? Put the first one back"
        )
    weights = weights_in(tensors, own_average)
    if average is not None:
        weights |= _all_parameters(parts, average)
    trained = {name: weights[name] for name, _ in parts.modules.named_parameters()}
    if found := too_large(trained, plan.train.most_weight_rms):
        raise DivergedError(f"{path} has diverged: {found}; train it with a lower optimizer.lr")
    parts.modules.load_state_dict(weights)
    parts.modules.eval()
    step = int(scalars["step"]) if average is None else average.step
    if plan.tuning is not None and step != int(scalars["step"]) and current().leads:
        note(f"the average is of step {step}; the tuned tokenizer has none and is of step {scalars['step']}")
    return replace(parts, trained_steps=step), step


def weights_words(path: Path, plan: Plan, average: Reconstruction | None = None) -> str:
    """Return what `load_run` loads in words: raw or average; of an export what it holds."""
    if average is not None:
        return average.words
    return str(read_about(path).get("weights") or ("average" if plan.ema else "raw"))


def _all_parameters(parts: Model, average: Reconstruction) -> dict[str, Tensor]:
    """Return the average of every parameter but a tokenizer's, or some would silently not be averaged."""
    weights = average.weights()
    named = parts.modules.named_parameters()
    wanted = {name: Form(one.shape, torch.float32) for name, one in named if not name.startswith(TOKENIZER)}
    if found := misfits(forms_of(weights), wanted):
        raise UserError(f"the snapshots do not fit this plan and version: {found}")
    return weights


def newest_good(path: Path, state: TrainState | None = None) -> tuple[dict[str, Tensor], dict[str, int]]:
    folder, found = RunFolder(path).checkpoints, []
    for step in reversed(checkpoint.steps(folder)):
        try:
            return checkpoint.read(checkpoint.folder_of(folder, step), state)
        except checkpoint.DamagedError as error:
            if read_about(path):
                raise UserError(f"the weights in {path} are damaged: {error}. Export or download them again") from None
            found.append(f"{checkpoint.folder_of(folder, step)} is damaged ({error})")
            if not current().leads:
                continue
            note(f"the checkpoint of step {step} in {path} is damaged ({error}); trying the one before")
    command = f"`tintype train RECIPE --out {quote(str(path))}` trains it"
    if found:
        raise UserError(f"{path} has no whole checkpoint: {'; '.join(found)}; {command} again")
    raise UserError(f"{path} has no whole checkpoint yet; {command}")
