"""Weights kept at chosen steps for scoring after the training: those that sampling would load, without any other state.

They are in the format of a checkpoint, in `kept/step-N` of the run's folder. Like snapshots of the weight average, they
are written before the checkpoint of their step, and a run that resumes from a checkpoint removes those of later steps,
since it does these again. So a kill loses none, and none is of another training than the checkpoints.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from tintype.plan import Plan
from tintype.runtime.dist import World
from tintype.runtime.layout import whole
from tintype.train import checkpoint
from tintype.train.load import KEPT, weights_in
from tintype.train.saving import Saver
from tintype.train.state import TrainState


def keep_weights(folder: Path, plan: Plan, state: TrainState, saver: Saver) -> None:
    """Write the weights that sampling would load at this step, the average if there is one. Every rank must call it.

    They are fp32, as an average is; weights that are stored in bf16 lose nothing by that.
    """
    weights = weights_in(state.tensors(), plan.ema)
    tensors = {
        KEPT + name: whole(one.detach().float() if one.is_floating_point() else one) for name, one in weights.items()
    }
    step, about = state.step, {"step": state.step, "images_seen": state.images_seen}

    def commit(tensors: Mapping[str, Tensor], world: World) -> None:
        checkpoint.commit(folder, step, tensors, about, what="kept weights", stage="keep", world=world)

    saver.write(step, tensors, commit)


def drop_kept(folder: Path, step: int) -> None:
    """Remove the kept weights of a step, and the folder with the last of them."""
    shutil.rmtree(checkpoint.folder_of(folder, step), ignore_errors=True)
    if folder.is_dir() and not checkpoint.steps(folder):
        shutil.rmtree(folder, ignore_errors=True)
