"""Log the verdicts of a study to the trackers of its baseline."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from pathlib import Path

from tintype.seams import VerdictRow
from tintype.study.results import StudyResults
from tintype.study.study import Study
from tintype.train.trackers.mirror import mirror_more


def track_verdicts(study: Study, out: Path, results: StudyResults) -> None:
    """Log the table of verdicts, unless the trackers have this one."""
    rows = verdict_rows(results)
    digest = hashlib.sha256(json.dumps(rows, sort_keys=True).encode()).hexdigest()[:16]
    with mirror_more(study.arms[0].plans[0], out, study.name, group=out.resolve().name) as mirror:
        mirror.log_verdicts(f"verdicts-{digest}", rows)


def verdict_rows(results: StudyResults) -> Sequence[VerdictRow]:
    """Return a row for each comparison of an arm with its baseline, or with another arm."""
    return [
        {
            "arm": of.label,
            "metric": metric,
            "verdict": row.words,
            "baseline": _finite(row.baseline_mean),
            "mean": _finite(row.mean),
            "difference": _finite(row.difference),
            "low": row.low,
            "high": row.high,
            "runs": float(len(row.differences)),
        }
        for of in results.compared
        for metric, row in of.comparisons.items()
    ]


def _finite(value: float) -> float | None:
    """Return None for the mean of an arm whose runs are all lost."""
    return value if math.isfinite(value) else None
