"""Replication of a study's verdicts on fresh seeds: what is run again, and whether each verdict holds.

A verdict is of a difference that came out large, so its first estimate tends to be too large (the winner's curse).
Fresh seeds have no such luck. The replicated comparisons are one family of their own: their intervals share 5%.

A verdict of better or worse
- holds where the fresh interval excludes zero on the same side and reaches the first estimate, corrected for selection;
- is weaker where it excludes zero on the same side and lies wholly short of that estimate;
- fails otherwise.

A verdict of same
- holds where the fresh interval lies within the margin;
- is weaker where it reaches beyond the margin, but not wholly;
- fails where it lies wholly outside.

Where fresh runs diverged, failed or fell off, a verdict fails; where they are not done, it is incomplete. Where all
fresh seeds differ by the same amount, that amount is the interval.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from pydantic import ValidationError

from tintype.errors import UserError
from tintype.runtime.files import damaged, read_checked, write_checked
from tintype.study.results import (
    SPEED,
    Comparison,
    Outcome,
    Replicated,
    Replication,
    StudyResults,
    arm_label,
)
from tintype.study.stats.contrast import Key
from tintype.study.study import Study

FOLDER = "replication"
"""Folder in a study's own that has the fresh runs."""
_FILE = "replication.json"
_FIRST_FRESH = 10_000
Claimed = Literal["better", "worse", "same"]
CLAIMED: tuple[Claimed, ...] = ("better", "worse", "same")


@dataclass(frozen=True)
class Claim:
    """A verdict that is held against fresh seeds."""

    key: Key
    verdict: Claimed
    estimate: float
    """The first difference, corrected for selection where that is known."""
    margin: float | None

    @property
    def metric(self) -> str:
        return self.key.metric

    @property
    def arm(self) -> str:
        """Return the arm's label."""
        return arm_label(self.key.arm, self.key.resolution)


def claims_of(results: StudyResults) -> list[Claim]:
    """Return a study's verdicts of better, worse and same; not those on throughput, which is measured, not tested."""
    return [
        Claim(Key(arm.name, metric, arm.resolution), row.verdict, _estimate(row), row.margin)
        for arm in results.arms
        if arm.role == "arm"
        for metric, row in arm.comparisons.items()
        if row.verdict in CLAIMED and metric != SPEED
    ]


def _estimate(row: Comparison) -> float:
    return row.difference if row.corrected is None else row.corrected


def fresh_seeds(used: Iterable[int], count: int) -> list[int]:
    """Return the first seeds from 10,000 on that were never used. The same files give the same seeds, to resume."""
    known = set(used)
    last = _FIRST_FRESH + count + len(known)
    return [seed for seed in range(_FIRST_FRESH, last) if seed not in known][:count]


def used_seeds(study: Study, results: StudyResults, plans: Iterable[int]) -> set[int]:
    """Return every seed that the study has used or may use. `plans` are the seeds of the runs in its folder."""
    every = study.settings.every_seed
    read = [seed for look in results.looks for seed in (*look.seeds, *look.control_seeds)]
    runs = [run.seed for arm in results.arms for run in arm.runs]
    return {*every.seeds, *every.control_seeds, *study.settings.tune_seeds, *read, *runs, *plans}


def claimed_arms(study: Study, claims: Collection[Claim]) -> Study:
    """Return the study with the arms of the claims, the arms that they start from, and their baselines."""
    wanted = {claim.arm for claim in claims}
    if unknown := wanted - {arm.label for arm in study.arms}:
        raise UserError(
            f"the results have verdicts on arms that study.yaml does not have: {', '.join(sorted(unknown))}"
        )
    resolutions = {arm.resolution for arm in study.arms if arm.label in wanted}
    there = [arm for arm in study.arms if arm.resolution in resolutions]
    while True:
        parents = {(arm.parent, arm.resolution) for arm in there if arm.label in wanted and arm.parent}
        missing = {arm.label for arm in there if (arm.name, arm.resolution) in parents} - wanted
        if not missing:
            break
        wanted |= missing
    return replace(study, arms=tuple(arm for arm in there if arm.role == "baseline" or arm.label in wanted))


def judge(claim: Claim, fresh: Comparison | None) -> Outcome:
    """Hold a verdict against the comparison of the fresh runs; see the head of this file."""
    if fresh is None or fresh.verdict == "incomplete":
        return "incomplete"
    if fresh.verdict in ("identical", "no spread"):
        low = high = fresh.difference
    elif fresh.low is None or fresh.high is None or fresh.verdict in ("diverged", "failed", "unstable"):
        return "fails"
    else:
        low, high = fresh.low, fresh.high
    if claim.verdict == "same":
        return _judge_same(low, high, claim.margin if fresh.margin is None else fresh.margin)
    sign = 1.0 if claim.estimate > 0 else -1.0
    near, far = sorted((sign * low, sign * high))
    if near <= 0:
        return "fails"
    return "holds" if far >= abs(claim.estimate) else "weaker"


def _judge_same(low: float, high: float, margin: float | None) -> Outcome:
    if margin is None:
        return "incomplete"
    if low >= -margin and high <= margin:
        return "holds"
    return "fails" if low > margin or high < -margin else "weaker"


def replicated(claim: Claim, fresh: Comparison | None) -> Replicated:
    """Return a verdict with what fresh seeds show."""
    measured = fresh is not None and bool(fresh.differences)
    return Replicated(
        arm=claim.arm,
        metric=claim.metric,
        verdict=claim.verdict,
        first=claim.estimate,
        difference=fresh.difference if fresh and measured else None,
        low=fresh.low if fresh else None,
        high=fresh.high if fresh else None,
        words=fresh.words if fresh else "incomplete",
        outcome=judge(claim, fresh),
    )


def write_replication(replication: Replication, out: Path) -> None:
    (out / FOLDER).mkdir(parents=True, exist_ok=True)
    write_checked(out / FOLDER / _FILE, replication.model_dump(mode="json"))


def read_replication(out: Path) -> Replication | None:
    """Return the replication of a study; None where none was made."""
    file = out / FOLDER / _FILE
    if not file.exists():
        return None
    remake = "remove it and run `tintype replicate` again: it reads the fresh runs that are there"
    content = read_checked(file, remake)
    try:
        return Replication.model_validate_json(
            json.dumps({k: v for k, v in content.items() if k in Replication.model_fields})
        )
    except ValidationError as error:
        raise damaged(file, str(error.errors()[0]["msg"]), remake) from None
