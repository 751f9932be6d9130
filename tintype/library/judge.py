"""Verdicts on runs of any trainer, from a file or from values.

The verdicts use the statistics of a study, but no run folders.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from tintype.errors import UserError
from tintype.library.kinds import AnyPath
from tintype.wording import option

if TYPE_CHECKING:
    from tintype.judge.metrics import Direction, Kind, Metric
    from tintype.judge.verdicts import Judgement

OfSeeds: TypeAlias = Mapping[int, float] | Sequence[float]
"""Values by seed, or a list of values for the seeds 0, 1, 2 and so on."""
MARGIN = "3%"
_ONE = "value"
"""Name of the metric, if the given values do not name one."""
_PLACE = "estimate"


def judge(
    path: AnyPath,
    *,
    baseline: str | None = None,
    metric: str | Sequence[str] = (),
    primary: str | Sequence[str] = (),
    margin: str | float = MARGIN,
    arm_column: str = "arm",
    seed_column: str = "seed",
    out: AnyPath | None = None,
) -> Judgement:
    """Give verdicts on the runs of any trainer, from a table of arms, seeds and metrics.

    Args:
        path: CSV, TSV or JSON lines file with one row per run: its arm, its seed, and its metrics.
        baseline: arm with which all other arms are compared; by default the arm named baseline.
        metric: column to judge by, NAME[:lower|higher][:share|distance|loss|raw]: the direction that is better, and
            the scale (repeatable); by default all columns of numbers.
        primary: metric that your question is about (repeatable); primary metrics get four fifths of the error rate.
        margin: largest difference that is too small to matter: 3% of the baseline's mean, or 0.02.
        arm_column: name of the column with the arm.
        seed_column: name of the column with the seed.
        out: folder to write a report to, and the verdicts as JSON and CSV; by default nothing is written.

    Raises:
        UserError: a column or the baseline is missing, a cell is not a number, the table has a run twice, or it is
            unknown whether lower or higher values of a metric are better.
    """
    from tintype.judge.page import write_page
    from tintype.judge.table import read_table, runs_of
    from tintype.judge.verdicts import choose_baseline, judge_runs
    from tintype.study.effect import parse_effect

    table = read_table(Path(path))
    runs = runs_of(table, _texts(metric), _texts(primary), arm_column, seed_column)
    chosen = choose_baseline(list(runs.values), baseline, table.name)
    found = judge_runs(runs, chosen, parse_effect(str(margin), option("margin", margin)), table.name)
    if out is not None:
        write_page(found, Path(out))
    return found


def estimate(
    values: Mapping[str, OfSeeds | Mapping[str, OfSeeds]],
    baseline: str = "baseline",
    *,
    direction: Direction | Mapping[str, Direction] | None = None,
    kind: Kind | Mapping[str, Kind] | None = None,
    primary: str | Sequence[str] = (),
    margin: str | float = MARGIN,
) -> Judgement:
    """Return the verdicts on values of runs: each arm against the baseline, with an interval over seeds.

    Args:
        values: mapping of each arm to the values of its runs, by seed as {0: 0.52, 1: 0.55}, or as a list. For several
            metrics, map each arm to a mapping of metric names to such values. A run with a value that is not finite
            counts as diverged.
        baseline: the arm with which all other arms are compared.
        direction: "lower" or "higher": the direction that is better, for all metrics or as a mapping by metric. Known
            names such as "fid" need no direction.
        kind: scale on which runs are compared, for all metrics or as a mapping by metric: "share", "distance", "loss"
            or "raw".
        primary: the metrics that your question is about. Comparisons on primary metrics get four fifths of the error
            rate.
        margin: largest difference that is too small to matter: "3%" of the baseline's mean, or 0.02.

    Raises:
        UserError: the baseline is missing, a value is not a number, or it is unknown which direction is better.
    """
    from tintype.judge.table import Runs, checked
    from tintype.judge.verdicts import choose_baseline, judge_runs
    from tintype.study.effect import parse_effect

    if not isinstance(values, Mapping) or not values:
        raise UserError(
            f"{_PLACE}: no values are given",
            'give the values of each arm, such as {"baseline": [0.52, 0.55], "muon": [0.57, 0.58]}',
        )
    parsed = {str(arm): _by_seed(str(arm), given) for arm, given in values.items()}
    chosen = choose_baseline(list(parsed), baseline, _PLACE)
    names = dict.fromkeys(name for by_seed in parsed.values() for of_run in by_seed.values() for name in of_run)
    asked = _texts(primary)
    if missing := [name for name in asked if name not in names]:
        raise UserError(f"{_PLACE}: {option('primary', missing[0])}: no such metric", f"there are {', '.join(names)}")
    metrics = [_metric(name, direction, kind, name in asked) for name in names]
    runs = Runs(parsed, [checked(metric, parsed, _PLACE) for metric in metrics])
    return judge_runs(runs, chosen, parse_effect(str(margin), option("margin", margin)))


def _texts(given: str | Sequence[str]) -> list[str]:
    return [given] if isinstance(given, str) else list(given)


def _metric(name: str, direction: Any, kind: Any, primary: bool) -> Metric:
    from tintype.judge.metrics import DIRECTIONS, KINDS, metric_of

    way = direction.get(name) if isinstance(direction, Mapping) else direction
    scale = kind.get(name) if isinstance(kind, Mapping) else kind
    for what, one, valid in (("direction", way, DIRECTIONS), ("kind", scale, KINDS)):
        if one is not None and one not in valid:
            raise UserError(f"{_PLACE}: {what} {one!r} of '{name}' is unknown", f"use one of {', '.join(valid)}")
    found = metric_of(name, way, scale, primary)
    if found is None:
        raise UserError(
            f"{_PLACE}: it is unknown whether lower or higher values of '{name}' are better",
            'declare the direction, for example direction="higher"',
        )
    return found


def _by_seed(arm: str, given: object) -> dict[str, dict[str, float | None]]:
    """Return the values of an arm by seed and metric."""
    nested = isinstance(given, Mapping) and any(isinstance(of, Mapping | Sequence) for of in given.values())
    found: dict[str, dict[str, float | None]] = {}
    for name, of_seeds in given.items() if nested and isinstance(given, Mapping) else [(_ONE, given)]:
        if isinstance(of_seeds, str) or not isinstance(of_seeds, Mapping | Sequence):
            raise UserError(
                f"{_PLACE}: arm '{arm}': {of_seeds!r} is neither a list of values nor a mapping from seeds to values"
            )
        pairs = of_seeds.items() if isinstance(of_seeds, Mapping) else enumerate(of_seeds)
        for seed, value in pairs:
            found.setdefault(str(seed), {})[str(name)] = _number(arm, seed, value)
    if not found:
        raise UserError(f"{_PLACE}: arm '{arm}' has no runs", "leave this arm out, or give its values")
    return found


def _number(arm: str, seed: object, value: object) -> float | None:
    if value is None:
        return None
    try:
        number = float(value)  # type: ignore[arg-type]  # also a number of numpy
    except (TypeError, ValueError, OverflowError):
        raise UserError(f"{_PLACE}: arm '{arm}', seed {seed}: {value!r} is not a number") from None
    return number if math.isfinite(number) else math.nan
