"""Loads a trained run for sampling and scoring."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from tintype.errors import UserError
from tintype.plan import Plan, plan_from_folder
from tintype.train import checkpoint
from tintype.train.folder import RunFolder
from tintype.train.parts import Parts, build_parts


def load_run(path: Path, device: str | None = None) -> tuple[Parts, int]:
    """The parts of a run with its newest good weights (the average, if it keeps one), and their step."""
    plan = plan_from_folder(path)
    if device is not None:
        plan = Plan(**{**dict(plan), "run": plan.run.model_copy(update={"device": device})})
    tensors, scalars = _newest_good(path)
    parts = build_parts(plan)
    weights = {name.removeprefix("modules/"): t for name, t in tensors.items() if name.startswith("modules/")}
    weights |= {name.removeprefix("ema/"): t for name, t in tensors.items() if name.startswith("ema/")}
    parts.modules.load_state_dict(weights)
    parts.modules.eval()
    return parts, int(scalars["step"])


def _newest_good(path: Path) -> tuple[dict[str, Tensor], dict[str, int]]:
    folder = RunFolder(path)
    for step in reversed(checkpoint.steps(folder.checkpoints)):
        try:
            return checkpoint.read(checkpoint.folder_of(folder.checkpoints, step))
        except checkpoint.DamagedError as error:
            folder.log_event("damaged-checkpoint", step, reason=str(error), left_in_place=True)
    raise UserError(f"{path} has no whole checkpoint yet; `tintype train RECIPE --out {path}` trains it")
