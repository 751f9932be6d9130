"""Implement `tintype bench --out`, which stores figures, and `--against`, which checks whether they are still reached.

A figure is a rate or a ratio, and higher is faster. A ratio within one run is preferred, since machines of one kind
differ in speed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, TypeAdapter, ValidationError

from tintype.bench.data import DataSpeeds, ImportSpeed
from tintype.bench.run import AGAIN, DENSE, Comparison, Speeds
from tintype.bench.study import StudySpeeds
from tintype.config.strict import first_problem
from tintype.errors import UserError
from tintype.runtime.files import Json, read_object
from tintype.runtime.identity import check_same
from tintype.wording import option

AnyResult = Speeds | Comparison | StudySpeeds | DataSpeeds | ImportSpeed | dict[str, dict[str, float]]
"""Results of all kinds of benches. The dictionary has the seconds of the metrics."""


@dataclass(frozen=True)
class Record:
    """The part of a bench's JSON that is used in comparisons."""

    environment: dict[str, Json]
    work: dict[str, Json]
    """Kind of bench, plan, and all other settings that must be equal in a comparison."""
    figures: dict[str, Annotated[float, Field(gt=0, allow_inf_nan=False)]]
    command: str = ""


@dataclass(frozen=True)
class Change:
    """The recorded and the new value of one figure; None for a missing value."""

    name: str
    recorded: float | None
    now: float | None

    @property
    def ratio(self) -> float | None:
        return self.now / self.recorded if self.now and self.recorded else None

    def is_slower(self, tolerance: float) -> bool:
        """Return whether the figure fell by more than the tolerance, or was recorded and is missing now."""
        return self.recorded is not None and (self.ratio or 0.0) < 1 - tolerance


@dataclass(frozen=True)
class Measurement:
    """A bench's measurement, and the recorded figures with which it was compared."""

    result: AnyResult
    work: dict[str, Json]
    """Kind of bench, plan, and all other settings that must be equal in a comparison."""
    command: str = ""
    """The command line of the measurement; empty for a call in Python."""
    recorded: Record | None = None
    tolerance: float = 0.0
    """Accepted slowdown of a figure, as a share of the recorded figure."""

    @property
    def figures(self) -> dict[str, float]:
        return figures_of(self.result)

    @property
    def content(self) -> dict[str, Any]:
        """Return all numbers as plain data, and the figures if there are any."""
        content = self.result if isinstance(self.result, dict) else asdict(self.result)
        if not self.figures:
            return content
        return {**content, "command": self.command, "work": self.work, "figures": self.figures}

    @property
    def changes(self) -> list[Change]:
        """Return each figure with its recorded value; empty if nothing was compared."""
        return [] if self.recorded is None else changes(self.recorded, self.figures)

    @property
    def exit_code(self) -> int:
        """1 if a figure is slower than recorded."""
        return int(bool(slower(self.changes, self.tolerance)))


def read_record(path: Path) -> Record:
    remake = "`tintype bench … --out FILE` writes such a file"
    try:
        return TypeAdapter(Record).validate_python(read_object(path))
    except ValidationError as error:
        what = first_problem(error)
        raise UserError(
            f"{option('against', path)} does not contain the results of a benchmark ({what})", remake
        ) from None
    except ValueError as error:
        raise UserError(f"{option('against', path)} {error}", remake) from None


def refuse_other_work(path: Path, recorded: Record, device: Json, work: dict[str, Json]) -> None:
    """Raise if the figures were recorded on another kind of device or for other work."""
    there = {"device": recorded.environment.get("device"), **recorded.work}
    here = {"device": device, **work}
    remedy = f"it was made by `{recorded.command or 'tintype bench … --out FILE'}`"
    for keys in (("device", "bench"), there | here):
        some, others = ({key: values.get(key) for key in keys} for values in (there, here))
        check_same(option("against", path), "device or other work", some, others, remedy)


def changes(recorded: Record, figures: dict[str, float]) -> list[Change]:
    """Return the recorded figures with their new values, then the figures that were not recorded."""
    names = dict.fromkeys([*recorded.figures, *figures])
    return [Change(name, recorded.figures.get(name), figures.get(name)) for name in names]


def slower(found: Sequence[Change], tolerance: float) -> list[str]:
    """Return the names of the figures that are slower than recorded."""
    return [one.name for one in found if one.is_slower(tolerance)]


def figures_of(result: AnyResult) -> dict[str, float]:
    """Return the figures to compare; for training, the plan's speed, and each technique's speed relative to it."""
    if isinstance(result, StudySpeeds):
        warm = result.warm_runs_per_hour
        found = {"runs an hour": result.runs_per_hour, "runs an hour once the workers are warm": warm}
    elif isinstance(result, Speeds):
        rendering = result.render_images_per_s_at_64_px
        found = {
            "training, images/s": result.train_images_per_s,
            "sampling at 10 steps, images/s": result.sample_images_per_s_at_10_steps,
            **{f"rendering {style}, images/s": rate for style, rate in rendering.items()},
        }
    elif isinstance(result, Comparison):
        found = {f"{row.title}, images/s": row.images_per_s for row in result.rows if row.technique == DENSE}
        techniques = [row for row in result.rows if row.technique not in (DENSE, AGAIN)]
        found |= {f"{row.title}, × dense": row.times_dense for row in techniques}
    else:
        found = {}
    return {name: value for name, value in found.items() if value is not None}
