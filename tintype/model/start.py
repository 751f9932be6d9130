"""Where a run's first weights come from, where it is not chance: another run, by its folder or as an arm of a study."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from tintype.errors import UserError
from tintype.runtime.identity import Pin
from tintype.settings import Part, PathText, Plain, plain


class StartPart(Part):
    weights: Literal["raw", "average"] = Field("raw", description="The trained weights, or the run's average of them")

    def parent(self, run: Path) -> Path:
        """Return the folder of the run that a run in the folder `run` starts from."""
        raise NotImplementedError

    @property
    def pinned(self) -> str | None:
        """First digits of the hash that the weights must have; None where any will do."""
        return None

    @property
    def parent_plan(self) -> str | None:
        """Hash of the plan that the other run must have; None where any will do."""
        return None


class RunStart(StartPart):
    """Any run. `sha256` pins its weights, and then the folder is no part of the run's name."""

    kind: Literal["run"] = "run"
    folder: PathText = Field(min_length=1, description="The folder of the other run")
    sha256: Pin = Field(None, description="The first digits of the weights' hash: refuse any others")

    def in_hash(self) -> Plain:
        content = plain(self)
        if self.sha256 is not None:
            del content["folder"]
        return content

    def parent(self, run: Path) -> Path:
        return Path(self.folder).expanduser()

    @property
    def pinned(self) -> str | None:
        return self.sha256


class ArmStart(StartPart):
    """The run of another arm of the same study, with the same seed; it lies beside this one.

    The study fills in `plan`. A run is what its plan says, so the plan's hash stands for the weights.
    """

    kind: Literal["arm"] = "arm"
    name: str = Field(min_length=1, description="The other arm's name")
    plan: str | None = Field(None, pattern="^[0-9a-f]{16}$", description="The hash of its plan; the study knows it")

    def in_hash(self) -> Plain:
        content = plain(self)
        if self.plan is not None:
            del content["name"]
        return content

    def parent(self, run: Path) -> Path:
        if self.plan is None:
            raise UserError(
                f"start.name: '{self.name}' is an arm, and only a study knows its arms",
                "run the study with `tintype ablate`, or start from a folder: start.kind=run, start.folder=DIR",
            )
        return run.parent / self.plan

    @property
    def parent_plan(self) -> str | None:
        return self.plan


STARTS: tuple[type[StartPart], ...] = (RunStart, ArmStart)
