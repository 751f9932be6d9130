"""Check the looks of a study by simulation: false verdicts of studies read again, power and cost of planned looks.

Simulated studies go through `verdicts.tested_row` and `looks.replay` as real ones do. `python -m
tools.calibration.looks` writes docs/looks.json, whose figures docs/statistics.md has.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from tintype.rng import stream_key
from tintype.runtime.files import write_json
from tintype.study.adaptive import why_stop
from tintype.study.looks import Look, SeedPlan, planned_looks, replay, unplanned_looks
from tintype.study.results import Comparison, SeedSet
from tintype.study.stats.contrast import Key
from tools.calibration.simulate import cells_of, key_of, rows_of

METRICS = ("primary", "other")
ARMS = ("arm 0", "arm 1", "arm 2")
_PLANNED = [key_of(arm, metric) for arm in ARMS for metric in METRICS]
Values = dict[tuple[str, str], list[float]]
"""The values of an arm's runs by (arm, metric), one for each seed."""


def drawn(studies: int, seeds: int, effect: float = 0.0) -> Iterator[Values]:
    """Draw studies of three arms and a control; `effect` is added to the first arm's primary metric."""
    generator = np.random.default_rng(stream_key(0, f"looks/{seeds}/{effect}") & ((1 << 63) - 1))
    names = ("baseline", "control", *ARMS)
    for _ in range(studies):
        values = generator.normal(size=(len(names), len(METRICS), seeds))
        values[2, 0] += effect
        yield {(name, m): values[i, j].tolist() for i, name in enumerate(names) for j, m in enumerate(METRICS)}


def rows_at(values: Values, count: int, share: float) -> dict[Key, Comparison]:
    """Compare the arms' first seeds at one look."""
    names = ("baseline", "control", *ARMS)
    sheets = {metric: cells_of({name: values[name, metric][:count] for name in names}) for metric in METRICS}
    return rows_of(sheets, METRICS[:1], _PLANNED, share, ARMS)


def false_verdicts(counts: Sequence[int], studies: int, paid: bool) -> float:
    """Return the share of studies without any difference that get a verdict, read after each of these numbers of seeds.

    Where a look is not `paid` for, each reads the study as if it were the only one.
    """
    looks = unplanned_looks([SeedSet(seeds=list(range(count))) for count in counts])
    shares = [look.share if paid else 1.0 for look in looks]
    found = 0
    for values in drawn(studies, counts[-1]):
        rows = replay(rows_at(values, n, share) for n, share in zip(counts, shares, strict=True))
        found += any(row.verdict in ("better", "worse") for row in rows.values())
    return found / studies


@dataclass(frozen=True)
class Planned:
    """The first arm of studies with planned looks: how often its change is found, and the seeds that it takes."""

    found: float
    seeds: float


def planned(looks: Sequence[Look], effect: float, studies: int) -> Planned:
    """Follow the first arm through its looks, with the rule that stops hopeless arms."""
    found, spent, most = 0, 0, len(looks[-1].seeds)
    for values in drawn(studies, most, effect):
        of_looks: list[dict[Key, Comparison]] = []
        for look in looks:
            of_looks.append(rows_at(values, len(look.seeds), look.share))
            row = replay(of_looks)[key_of("arm 0", "primary")]
            if why_stop([row], most):
                break
        found += row.verdict in ("better", "worse")
        spent += len(look.seeds)
    return Planned(found / studies, spent / studies)


def shares(counts: Sequence[int], power: float) -> list[Look]:
    """Return looks whose shares grow with this power of their seeds: 0 for equal shares."""
    weights = [count**power for count in counts]
    return [Look(tuple(range(n)), (), weight / math.fsum(weights)) for n, weight in zip(counts, weights, strict=True)]


EFFECTS = (0.0, 1.0, 1.5, 2.0, 3.0)
STUDIES = {"again": 1_000, "planned": 400, "split": 300}


def split(first: float, studies: int) -> dict[str, float | None]:
    """Find a change of 2 deviations with a share of the error at 5 seeds, then with half of the rest at 8."""
    once = twice = 0
    for values in drawn(studies, 8, 2.0):
        rows = [rows_at(values, 5, first)]
        once += _found(rows)
        if first < 1:
            rows.append(rows_at(values, 8, (1 - first) / 2))
            twice += _found(rows)
    return {"first": first, "found_first": once / studies, "found_second": twice / studies if first < 1 else None}


def _found(rows: Sequence[dict[Key, Comparison]]) -> bool:
    return replay(rows)[key_of("arm 0", "primary")].verdict in ("better", "worse")


def main() -> None:
    """Write docs/looks.json. It takes some ten minutes on one core."""
    plan = SeedPlan(first=4, most=16)
    designs = {
        "fixed 16": [Look(plan.seeds, (), 1.0)],
        "equal": shares(plan.counts, 0),
        "by seeds": planned_looks(plan),
        "by squares": shares(plan.counts, 2),
    }
    again = []
    for counts in ((3, 5, 8), tuple(range(3, 9))):
        unpaid, paid = (false_verdicts(counts, STUDIES["again"], pays) for pays in (False, True))
        again.append({"seeds": counts, "unpaid": unpaid, "paid": paid})
    found = {
        "studies": STUDIES,
        "again": again,
        "planned": [
            {"shares": name, "effect": effect, **asdict(planned(looks, effect, STUDIES["planned"]))}
            for effect in EFFECTS
            for name, looks in designs.items()
        ],
        "split": [split(first, STUDIES["split"]) for first in (1.0, 0.9, 0.8, 0.5)],
    }
    write_json(Path("docs/looks.json"), found)


if __name__ == "__main__":
    main()
