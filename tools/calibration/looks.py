"""Check the looks of a study by simulation: false verdicts of studies that are read again.

Simulated studies go through `verdicts.tested_row` and `looks.replay` like real ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from tintype.rng import stream_key
from tintype.study.looks import replay, unplanned_looks
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

    If a look is not `paid` for, each reads the study as if it were the only one.
    """
    looks = unplanned_looks([SeedSet(seeds=list(range(count))) for count in counts])
    shares = [look.share if paid else 1.0 for look in looks]
    found = 0
    for values in drawn(studies, counts[-1]):
        rows = replay(rows_at(values, n, share) for n, share in zip(counts, shares, strict=True))
        found += any(row.verdict in ("better", "worse") for row in rows.values())
    return found / studies
