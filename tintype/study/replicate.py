"""Replicate a study's verdicts on fresh seeds by choosing the runs to make and testing whether each verdict holds.

A verdict comes from a large measured difference, so its first estimate tends to be too large (the winner's curse).
Fresh seeds do not have this selection bias. The first study gave each claim a sign, so each claim is tested separately
and one-sided at 95%, by a fresh interval with a confidence of 90%. A verdict of better or worse
- holds if the whole fresh interval lies on the claimed side of zero;
- is contradicted if the fresh interval does not reach half of the first estimate, corrected for selection;
- is open otherwise, since there are too few fresh seeds.

A verdict of same
- holds if the fresh interval lies within the margin;
- is contradicted if the whole fresh interval lies outside the margin;
- is open otherwise.

The fresh runs are made for the replication, or come from a finished study of the same plans and protocol. The fresh
seeds were never used in this study.

An open verdict states how many fresh seeds would decide it. If fresh runs diverged, the verdict is open, and the report
states the number of diverged runs. If fresh runs failed or are missing, the verdict is incomplete. Collapsed runs are
counted, and only the other runs are tested. If the difference is the same for all fresh seeds, the interval contains
only this difference.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from pydantic import ValidationError
from scipy import special

from tintype.errors import UserError
from tintype.runtime.files import damaged, read_checked, write_checked
from tintype.study.contrasts import between_key
from tintype.study.results import (
    SPEED,
    Comparison,
    Interval,
    Outcome,
    Replicated,
    Replication,
    Run,
    StudyResults,
    arm_label,
)
from tintype.study.stats.contrast import Key
from tintype.study.stats.estimate import CONFIDENCE, MOST_SEEDS
from tintype.study.stored import StoredStudy, identities, other_networks, runs_like, why_apart
from tintype.study.study import Study, reseeded
from tintype.wording import option

FOLDER = "replication"
"""Subfolder of a study's folder with the fresh runs."""
_FILE = "replication.json"
_FIRST_FRESH = 10_000
Claimed = Literal["better", "worse", "same"]
CLAIMED: tuple[Claimed, ...] = ("better", "worse", "same")


@dataclass(frozen=True)
class Claim:
    """A verdict that is tested on fresh seeds."""

    key: Key
    verdict: Claimed
    first: Interval
    """The difference in the first study, corrected for selection if the correction is known."""
    margin: float | None
    level: float = CONFIDENCE
    """The confidence of the interval in the first study."""
    arms: Sequence[str] = ()
    """Labels of both arms, for a comparison of two arms."""

    @property
    def metric(self) -> str:
        return self.key.metric

    @property
    def arm(self) -> str:
        """Return the arm's label; for two arms, return both names."""
        return arm_label(self.key.arm, self.key.resolution)


def claims_of(results: StudyResults) -> list[Claim]:
    """Return a study's verdicts of better, worse and same, except for throughput, which is measured but not tested."""
    of_arms = [
        _claim(Key(arm.name, metric, arm.resolution), row.verdict, row)
        for arm in results.arms
        if arm.role == "arm"
        for metric, row in arm.comparisons.items()
        if row.verdict in CLAIMED and metric != SPEED
    ]
    of_two = [
        replace(
            _claim(between_key(pair.first, pair.second, pair.resolution, metric), row.verdict, row),
            arms=[arm_label(name, pair.resolution) for name in (pair.first, pair.second)],
        )
        for pair in results.between
        for metric, row in pair.comparisons.items()
        if row.verdict in CLAIMED and metric != SPEED
    ]
    return of_arms + of_two


def _claim(key: Key, verdict: Claimed, row: Comparison) -> Claim:
    if row.corrected is not None:
        return Claim(key, verdict, row.corrected, row.margin)
    first = row.interval
    return Claim(key, verdict, first, row.margin, row.level or CONFIDENCE)


def fresh_seeds(used: Iterable[int], count: int) -> list[int]:
    """Return the first seeds from 10,000 on that were never used; always the same, so that a command can resume."""
    known = set(used)
    last = _FIRST_FRESH + count + len(known)
    return [seed for seed in range(_FIRST_FRESH, last) if seed not in known][:count]


def used_seeds(study: Study, results: StudyResults, plans: Iterable[int]) -> set[int]:
    """Return every seed that the study has used or can use. `plans` has the seeds of the runs in the study's folder."""
    every = study.settings.every_seed
    read = [seed for look in results.looks for seed in (*look.seeds, *look.control_seeds)]
    runs = [run.seed for arm in results.arms for run in arm.runs]
    stored = [run.seed for source in (results.bank.sources if results.bank else ()) for run in source.runs]
    return {*every.seeds, *every.control_seeds, *study.settings.tune_seeds, *read, *runs, *stored, *plans}


def claimed_arms(study: Study, claims: Collection[Claim]) -> Study:
    """Return the study with the arms of the claims, the arms on which these are based, and their baselines."""
    wanted = {label for claim in claims for label in claim.arms or (claim.arm,)}
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


@dataclass(frozen=True)
class FreshRuns:
    """Runs of another study with seeds that this study never used."""

    study: Study
    """The arms with such runs, and their baselines, limited to the seeds of these runs."""
    runs: Mapping[str, list[Run]]
    """Runs by the arm's label."""
    missing: list[str]
    """Arms with a verdict for which the other study has no runs, or no runs on fresh seeds of the baseline."""

    @property
    def seeds(self) -> list[int]:
        return sorted({plan.seed for arm in self.study.arms if arm.role == "arm" for plan in arm.plans})


def fresh_runs(mine: StoredStudy, other: StoredStudy, study: Study, used: Collection[int]) -> FreshRuns:
    """Return the runs of the other study that have plans of `study`, with seeds that are not in `used`.

    The control's seeds in the other study give additional runs of the baseline.
    """
    if reason := why_apart(other, study.settings.evaluation.hash, mine.numerics):
        raise UserError(f"{option('from', other.folder)}: {reason}, so its runs cannot test this study's verdicts")
    if networks := other_networks(identities(mine.runs), identities(other.runs)):
        raise UserError(
            f"{option('from', other.folder)}: {', '.join(networks)} had other weights in that study, so its "
            f"runs cannot test this study's verdicts"
        )
    if missing := sum(run.state == "missing" for arm in other.results.arms for run in arm.runs):
        raise UserError(
            f"{option('from', other.folder)}: {missing} runs of that study are missing",
            "finish that study first, since a study could otherwise be stopped at a favourable moment",
        )
    found = runs_like(study, other, {info.name: info for info in mine.results.metrics})
    baselines = {arm.resolution: arm.label for arm in study.arms if arm.role == "baseline"}
    if not any(label in found for label in baselines.values()):
        raise UserError(
            f"{option('from', other.folder)}: that study has no run of this study's baseline (the plans differ "
            f"in more than the seed), so its runs cannot test this study's verdicts"
        )
    fresh = {label: [run for run in runs if run.seed not in used] for label, runs in found.items()}
    kept, without = dict[str, list[Run]](), list[str]()
    for arm in (arm for arm in study.arms if arm.role == "arm"):
        there = {run.seed for run in fresh.get(baselines[arm.resolution], ())}
        runs = [run for run in fresh.get(arm.label, ()) if run.seed in there]
        if len(runs) > 1:
            kept[arm.label] = runs
        else:
            without.append(arm.label)
    if not kept:
        arms = "none of the arms that have a verdict here" if not found.keys() - set(baselines.values()) else ""
        why = f"it has {arms}" if arms else "each of its arms has fewer than two seeds that this study never used"
        raise UserError(
            f"{option('from', other.folder)}: {why}, so its runs cannot test this study's verdicts",
            "`tintype replicate` runs fresh seeds",
        )
    kept |= {label: fresh[label] for label in baselines.values() if label in fresh}
    whole = reseeded(study, sorted({run.seed for runs in kept.values() for run in runs}))
    hashes = {run.hash for runs in kept.values() for run in runs}
    arms_of = [
        replace(arm, plans=tuple(plan for plan in arm.plans if plan.hash in hashes))
        for arm in whole.arms
        if arm.label in kept
    ]
    return FreshRuns(replace(study, arms=tuple(arms_of)), kept, without)


def judge(claim: Claim, fresh: Comparison | None) -> Outcome:
    """Test a verdict on the comparison of the fresh runs, by the rules in the module's docstring."""
    if fresh is None or fresh.verdict in ("incomplete", "failed"):
        return "incomplete"
    margin = claim.margin if fresh.margin is None else fresh.margin
    if claim.verdict == "same" and margin is None:
        return "incomplete"
    ends = _ends(fresh)
    return "open" if ends is None else judge_interval(claim.verdict, claim.first.value, *ends, margin or 0.0)


def judge_interval(verdict: Claimed, first: float, low: float, high: float, margin: float) -> Outcome:
    """Test a verdict on a fresh interval. `first` is the first estimate; `margin` is used only for *same*."""
    if verdict == "same":
        if -margin <= low and high <= margin:
            return "holds"
        return "contradicted" if low > margin or high < -margin else "open"
    sign = 1.0 if first > 0 else -1.0
    near, far = sorted((sign * low, sign * high))
    if near > 0:
        return "holds"
    return "contradicted" if far < abs(first) / 2 else "open"


def _ends(fresh: Comparison) -> tuple[float, float] | None:
    """Return the ends of the fresh interval; None if there is no interval, or if it leaves out diverged runs."""
    if fresh.verdict in ("identical", "no spread"):
        return fresh.difference, fresh.difference
    return None if fresh.verdict == "diverged" else fresh.ends


def _seeds_to_settle(claim: Claim, fresh: Comparison) -> int | None:
    """Return the number of fresh seeds that would decide an open verdict; None if a thousand would not.

    The difference is assumed to stay the same, and its interval to shrink with the root of the number of seeds.
    """
    ends, seeds = _ends(fresh), len(fresh.differences)
    if ends is None:
        return None
    for count in range(seeds + 1, MOST_SEEDS + 1):
        narrower = math.sqrt(seeds / count)
        low, high = (fresh.difference + narrower * (end - fresh.difference) for end in ends)
        if judge(claim, fresh.model_copy(update={"low": low, "high": high})) != "open":
            return count
    return None


def pool(first: Interval, level: float, fresh: Interval, fresh_level: float) -> Interval | None:
    """Return the inverse-variance mean of two differences with its 95% interval; None without both intervals.

    A standard error is a half-width over the normal quantile of its confidence; for Student's t, it is slightly too
    wide.
    """
    errors = [_error(first, level), _error(fresh, fresh_level)]
    if not all(error and math.isfinite(error) for error in errors):
        return None
    weights = [1 / error**2 for error in errors if error]
    value = (weights[0] * first.value + weights[1] * fresh.value) / sum(weights)
    reach = _normal_quantile(CONFIDENCE) / math.sqrt(sum(weights))
    return Interval(value=value, low=value - reach, high=value + reach)


def _error(one: Interval, level: float) -> float | None:
    return (one.ends[1] - one.ends[0]) / 2 / _normal_quantile(level) if one.ends else None


def _normal_quantile(confidence: float) -> float:
    return float(special.ndtri((1 + confidence) / 2))


def replicated(claim: Claim, fresh: Comparison | None) -> Replicated:
    outcome, interval = judge(claim, fresh), None
    if fresh is not None and fresh.differences and fresh.verdict not in ("incomplete", "failed", "diverged"):
        interval = fresh.interval
    return Replicated(
        arm=claim.arm,
        metric=claim.metric,
        verdict=claim.verdict,
        first=claim.first,
        fresh=interval,
        level=fresh.level if fresh and interval else None,
        pooled=pool(claim.first, claim.level, interval, fresh.level or CONFIDENCE) if fresh and interval else None,
        seeds_needed=_seeds_to_settle(claim, fresh) if fresh and outcome == "open" else None,
        words=_words(fresh) if fresh else "incomplete",
        outcome=outcome,
    )


def _words(fresh: Comparison) -> str:
    """Return the verdict from the fresh runs that did not collapse, and the number of collapsed runs."""
    verdict = fresh.lost or fresh.healthy_verdict or fresh.verdict
    collapsed, others = len(fresh.collapsed), len(fresh.baseline_collapsed)
    runs = f"{collapsed} of {len(fresh.differences)} runs collapsed" if collapsed else ""
    baseline = f"{others} of the baseline's runs collapsed" if others else ""
    return "; ".join(filter(None, [verdict, runs, baseline]))


def write_replication(replication: Replication, out: Path) -> None:
    (out / FOLDER).mkdir(parents=True, exist_ok=True)
    write_checked(out / FOLDER / _FILE, replication.model_dump(mode="json"))


def read_replication(out: Path) -> Replication | None:
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
