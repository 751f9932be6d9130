"""Initial weights from another run, given by its folder or as an arm of a study."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Literal

from pydantic import Field

from tintype.errors import UserError
from tintype.runtime.identity import Pin
from tintype.settings import Part, PathText


class StartPart(Part):
    weights: Literal["raw", "average"] = Field(
        "raw", description="Weights to start from, either the trained weights (raw) or the run's weight average"
    )

    def parent(self, run: Path) -> Path:
        """Return the folder of the other run. `run` is the folder of the run that starts."""
        raise NotImplementedError

    @property
    def pinned(self) -> str | None:
        """Return the first digits of the required hash of the weights; None to accept any weights."""
        return None

    @property
    def parent_plan(self) -> str | None:
        """Return the required hash of the other run's plan; None to accept any plan."""
        return None


class RunStart(StartPart):
    """Start from any run. `sha256` pins the weights. The other run's folder is then not part of this run's identity."""

    kind: Literal["run"] = "run"
    folder: PathText = Field(min_length=1, description="Folder of the run to start from")
    sha256: Pin = Field(None, description="First digits of the weights' SHA-256; weights with another hash are refused")

    def left_out_of_hash(self) -> Collection[str]:
        return ("folder",) if self.sha256 is not None else ()

    def parent(self, run: Path) -> Path:
        return Path(self.folder).expanduser()

    @property
    def pinned(self) -> str | None:
        return self.sha256


class ArmStart(StartPart):
    """Start from the run of another arm of the same study with the same seed.

    The other run's folder is next to this run's folder. The study fills in `plan`. The plan determines the run, so the
    plan's hash is enough to identify the weights.
    """

    kind: Literal["arm"] = "arm"
    name: str = Field(min_length=1, description="Name of the arm to start from")
    plan: str | None = Field(
        None, pattern="^[0-9a-f]{16}$", description="Hash of the plan of the arm to start from; the study fills it in"
    )

    def left_out_of_hash(self) -> Collection[str]:
        return ("name",) if self.plan is not None else ()

    def parent(self, run: Path) -> Path:
        if self.plan is None:
            raise UserError(
                f"start.name: '{self.name}' is the name of an arm, and arms exist only in a study",
                "run the study with `tintype ablate`, or start from the folder of a run: start.kind=run, "
                "start.folder=DIR",
            )
        return run.parent / self.plan

    @property
    def parent_plan(self) -> str | None:
        return self.plan


STARTS: tuple[type[StartPart], ...] = (RunStart, ArmStart)
