"""Log the verdicts of a study to the trackers of its baseline."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from tintype.study.results import StudyResults
from tintype.study.study import Study
from tintype.train.trackers.mirror import mirror_more


def track_verdicts(study: Study, out: Path, results: StudyResults) -> None:
    """Log the table of verdicts, unless the trackers already have it."""
    rows = [row.data for row in results.rows()]
    digest = hashlib.sha256(json.dumps(rows, sort_keys=True).encode()).hexdigest()[:16]
    with mirror_more(study.arms[0].plans[0], out, study.name, group=out.resolve().name) as mirror:
        mirror.log_verdicts(f"verdicts-{digest}", rows)
