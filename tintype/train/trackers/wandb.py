"""Weights & Biases, with its own environment variables WANDB_MODE=offline, WANDB_ENTITY and WANDB_API_KEY."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from tintype.seams import Tracker, TrackerStatus, VerdictRow
from tintype.train.trackers.tracked import Tracked

_STEP = "step"
"""The x axis of all numbers. W&B's own step counter cannot go back, and scores of earlier steps arrive late."""


class Wandb(Tracker):
    def __init__(self, about: Tracked) -> None:
        import wandb

        about.place.mkdir(exist_ok=True)
        self._wandb = wandb
        self._run = wandb.init(
            project=about.project,
            id=about.id,
            name=about.name,
            group=about.group or None,
            config=dict(about.settings),
            dir=str(about.place),
            resume="allow",
            reinit="create_new",  # the caller may have a W&B run of its own
            settings=wandb.Settings(console="off", silent=True),  # otherwise W&B would capture stdout
        )
        self._run.define_metric(_STEP)
        self._run.define_metric("*", step_metric=_STEP)

    def log(self, step: int, numbers: Mapping[str, float]) -> None:
        self._run.log({_STEP: step, **numbers})

    def log_images(self, step: int, files: Mapping[str, Path]) -> None:
        self._run.log({_STEP: step, **{name: self._wandb.Image(str(file)) for name, file in files.items()}})

    def log_verdicts(self, rows: Sequence[VerdictRow]) -> None:
        keys = list(rows[0])
        data = [[row[key] for key in keys] for row in rows]
        self._run.log({"verdicts": self._wandb.Table(columns=keys, data=data)})

    def close(self, status: TrackerStatus) -> None:
        self._run.finish(exit_code=0 if status == "finished" else 1)
