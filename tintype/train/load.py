"""Load a trained run for sampling and scoring, and select the weights among a checkpoint's tensors.

Training can store the weights of chosen steps ("kept weights"), to score them after the run. Kept weights are the
weights that sampling would load at their step, without any other state. Kept weights are in `kept/step-N` of the run's
folder, in the format of a checkpoint. Like snapshots of the weight average, kept weights are written before the
checkpoint of their step. A run that resumes from a checkpoint removes kept weights of later steps and writes them
again. So a kill loses no kept weights, and all kept weights belong to the same training as the checkpoints.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from shlex import quote
from typing import Any

import torch
from torch import Tensor, nn

from tintype.errors import DivergedError, UserError
from tintype.optim.part import AverageSettings
from tintype.plan import Plan
from tintype.runtime.dist import current
from tintype.runtime.forms import Form, forms_of, misfits, under
from tintype.runtime.layout import whole
from tintype.runtime.notes import note
from tintype.train import checkpoint
from tintype.train.divergence import too_large
from tintype.train.parts import JOINT, JOINT_ONLY, LOSSES, TOKENIZER, Model, build_model, storage_dtype
from tintype.train.reconstruct import Reconstruction
from tintype.train.record import RunRecord
from tintype.train.saving import Saver
from tintype.train.state import TrainState

KEPT = "kept/"
"""Prefix of the names of kept weights. No other saved tensor has this prefix."""
OWN = (LOSSES, JOINT_ONLY)
"""Prefixes of parameters that are needed only to train the run."""
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
_KEPT_AS = {"dtype": "fp32"}


def load_run(
    path: Path,
    device: str | None = None,
    average: Reconstruction | None = None,
    raw: bool = False,
    kept_step: int | None = None,
) -> tuple[Model, int]:
    """Load the newest intact weights of a run, averaged unless `raw` is true; return the model and the weights' step.

    If the run has several averages, the average with the first length is loaded. `average` is a different average,
    computed from the run's snapshots. With `kept_step`, the weights that training kept at this step are loaded.
    """
    record = RunRecord(path)
    record.refuse_diverged()
    record.check_plugins()
    plan = record.plan
    if device is not None:
        plan = Plan(**{**dict(plan), "run": plan.run.model_copy(update={"device": device})})
    if record.about:
        record.check_files()
    if kept_step is None:
        tensors, scalars = newest_good(path)
    else:
        kept, scalars = checkpoint.read(checkpoint.folder_of(record.kept, kept_step))
        tensors = {f"modules/{name}": tensor for name, tensor in under(KEPT, kept).items()}  # as in a checkpoint
    parts = build_model(plan)
    for name, part in (("tokenizer", parts.tokenizer), ("text", parts.text)):
        record.check_identity(name, part.identity)
    own_average = None if raw or record.about or average is not None or kept_step is not None else plan.ema
    stored_as = record.about if kept_step is None else _KEPT_AS
    if found := weight_misfits(tensors, parts.modules, plan, own_average, stored_as):
        raise UserError(
            f"the checkpoint in {path} does not fit its plan.yaml and this version: {found}",
            "if the plan was changed after the training, restore the original",
        )
    weights = weights_in(tensors, own_average)
    if average is not None:
        weights |= _all_parameters(parts, average)
    trained = {name: weights[name] for name, _ in parts.modules.named_parameters()}
    if found := too_large(trained, plan.train.most_weight_rms):
        raise DivergedError(f"{path} has diverged: {found}", "train the run again with a lower optimizer.lr")
    parts.modules.load_state_dict(weights)
    parts.modules.eval()
    step = int(scalars["step"]) if average is None else average.step
    if plan.tuning is not None and step != int(scalars["step"]) and current().leads:
        note(
            f"the weight average is that of step {step}; the tuned tokenizer has no average, so its weights "
            f"are those of step {scalars['step']}"
        )
    return replace(parts, trained_steps=step), step


def weights_words(path: Path, plan: Plan, average: Reconstruction | None = None) -> str:
    """Describe the weights that `load_run` loads (raw or average); for an export, the weights in the export."""
    if average is not None:
        return average.words
    return str(RunRecord(path).about.get("weights") or ("average" if plan.ema else "raw"))


def _all_parameters(parts: Model, average: Reconstruction) -> dict[str, Tensor]:
    """Return the average of every parameter except a tokenizer's. Raise if a parameter has no average."""
    weights = average.weights()
    named = parts.modules.named_parameters()
    wanted = {name: Form(one.shape, torch.float32) for name, one in named if not name.startswith(TOKENIZER)}
    if found := misfits(forms_of(weights), wanted):
        raise UserError(f"the snapshots do not fit this plan and version: {found}")
    return weights


def newest_good(path: Path, state: TrainState | None = None) -> tuple[dict[str, Tensor], dict[str, int]]:
    record, found = RunRecord(path), []
    for step in reversed(record.saved_steps):
        folder = checkpoint.folder_of(record.checkpoints, step)
        try:
            return checkpoint.read(folder, state)
        except checkpoint.DamagedError as error:
            if record.about:
                raise UserError(
                    f"the weights in {path} are damaged: {error}", "export or download the weights again"
                ) from None
            found.append(f"{folder} is damaged ({error})")
            if not current().leads:
                continue
            note(f"the checkpoint of step {step} in {path} is damaged ({error}); trying the previous checkpoint")
    command = f"`tintype train RECIPE --out {quote(str(path))}` trains it"
    if found:
        raise UserError(f"{path} has no complete checkpoint: {'; '.join(found)}", f"{command} again")
    raise UserError(f"{path} has no complete checkpoint yet", command)


def keep_weights(folder: Path, plan: Plan, state: TrainState, saver: Saver) -> None:
    """Write the weights that sampling would load at this step. Every rank must call this function.

    The weights are stored in fp32, like averages. Weights in bf16 can be converted to fp32 without loss.
    """
    weights = weights_in(state.tensors(), plan.ema)
    tensors = {
        KEPT + name: whole(one.detach().float() if one.is_floating_point() else one) for name, one in weights.items()
    }
    about = {"step": state.step, "images_seen": state.images_seen}
    commit = partial(checkpoint.commit, folder, state.step, scalars=about, what="kept weights", stage="keep")
    saver.write(state.step, tensors, commit)


def drop_kept(folder: Path, step: int) -> None:
    """Remove the kept weights of a step. If no kept weights remain, remove their folder."""
    shutil.rmtree(checkpoint.folder_of(folder, step), ignore_errors=True)
    if folder.is_dir() and not checkpoint.steps(folder):
        shutil.rmtree(folder, ignore_errors=True)


def weights_in(tensors: Mapping[str, Tensor], average: AverageSettings | None) -> dict[str, Tensor]:
    """Return averaged or else raw weights, by their names in the modules, without parameters only for training."""
    weights = under("modules/", tensors)
    if average is not None:
        weights |= average.sampled(under("ema/", tensors))
    return {name: tensor for name, tensor in weights.items() if not name.startswith(OWN)}


def weight_misfits(
    tensors: Mapping[str, Tensor],
    modules: nn.Module,
    stored_by: Plan,
    average: AverageSettings | None = None,
    about: Mapping[str, Any] | None = None,
) -> str:
    """List the differences between the modules and a checkpoint's weights and average; '' if there are none.

    The expected dtypes follow from the plan `stored_by`, or from the description in an export.
    """
    if about and about.get("dtype") not in DTYPES:
        return f"its record says the type {about.get('dtype')!r}, and exports have {' or '.join(DTYPES)}"
    exported = DTYPES[about["dtype"]] if about else None
    parameters = dict(modules.named_parameters())
    wanted = {
        name: Form(tensor.shape, _dtype(name, tensor, stored_by, exported, name in parameters))
        for name, tensor in modules.state_dict().items()
        if not name.startswith(OWN)
    }
    reasons = [misfits(forms_of(weights_in(tensors, None)), wanted)]
    if average is not None:
        followed = {
            name: torch.empty(one.shape, device="meta")
            for name, one in parameters.items()
            if not name.startswith((*OWN, *JOINT))
        }
        averages = under("ema/", tensors)  # if there are several averages, each name begins with its average's length
        kept = {name: one for name, one in averages.items() if not name.rpartition("/")[2].startswith(LOSSES)}
        reasons.append(misfits(forms_of(kept), forms_of(average.build(followed).tensors())))
    return "; ".join(filter(None, reasons))


def _dtype(name: str, tensor: Tensor, plan: Plan, exported: torch.dtype | None, is_parameter: bool) -> torch.dtype:
    if exported is not None and tensor.is_floating_point():
        return exported
    return storage_dtype(plan, name) if is_parameter else tensor.dtype
