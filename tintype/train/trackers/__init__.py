"""Define the trackers to which a run can be mirrored, with one file for each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec

from tintype.errors import UserError
from tintype.seams import Tracker
from tintype.settings import RunSettings, TrackerName
from tintype.train.trackers.mlflow import MLflow
from tintype.train.trackers.tensorboard import TensorBoard
from tintype.train.trackers.tracked import Tracked
from tintype.train.trackers.trackio import Trackio
from tintype.train.trackers.wandb import Wandb


@dataclass(frozen=True)
class TrackerKind:
    package: str
    """The required package. The optional extra of tintype has the same name as the tracker."""
    open: Callable[[Tracked], Tracker]


TRACKERS: Mapping[TrackerName, TrackerKind] = {
    "tensorboard": TrackerKind("tensorboard", TensorBoard),
    "wandb": TrackerKind("wandb", Wandb),
    "trackio": TrackerKind("trackio", Trackio),
    "mlflow": TrackerKind("mlflow", MLflow),
}


def check_trackers(run: RunSettings) -> None:
    """Raise UserError if the package of a chosen tracker is not installed."""
    missing = [name for name in dict.fromkeys(run.trackers) if find_spec(TRACKERS[name].package) is None]
    if missing:
        names = ", ".join(missing)
        raise UserError(
            f"run.trackers: {names} {'is' if len(missing) == 1 else 'are'} not installed",
            f"pip install 'tintype[{','.join(missing)}]', or leave {'it' if len(missing) == 1 else 'them'} out",
        )
