"""Arms against the baseline along training: at each scored step, until the baseline's final quality, at equal time.

All numbers are of scores by one protocol (`evaluation.early`), means over the runs that have every score of their arm.
Differences and their intervals are descriptive: a study's verdicts are on its end, and nothing of their error is spent
here. The one exception is a crossing, which has an error of 5% of its own for each arm and metric, shared by the scored
steps (Bonferroni).

When an arm reaches the baseline's final quality is read off its difference from the baseline's end: where the mean
crosses zero, and where the interval begins and ends to allow that. Between scored steps everything is linear; before
the first and after the last nothing is known, and nothing is said.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from statistics import fmean

from tintype.study import stats
from tintype.study.results import (
    AlongArm,
    Arm,
    DifferenceAt,
    EqualTime,
    MetricInfo,
    Reach,
    ScoreAt,
    StudyResults,
)

NO_CROSSING = "no crossing shown"
SAME_TIME = 0.02
"""Two trainings whose seconds differ by no more than this share took the same time."""


def with_along(results: StudyResults) -> StudyResults:
    """Return the results with the comparison of scores along training; as they are where there are no such scores."""
    found = [
        one
        for view in results.by_resolution()
        for metric in view.metrics
        if metric.primary
        for one in _arms_along(view, metric)
    ]
    return results.model_copy(update={"along": found}) if found else results


def _arms_along(view: StudyResults, metric: MetricInfo) -> list[AlongArm]:
    baseline = next(arm for arm in view.arms if arm.role == "baseline")
    old = _curve(baseline, metric.name)
    if old is None:
        return []
    others = [arm for arm in view.arms if arm is not baseline and metric.name not in arm.incomparable]
    curves = [(arm, new) for arm in others if (new := _curve(arm, metric.name))]
    return [_compare(arm, new, old, metric, view.confidence) for arm, new in curves]


@dataclass(frozen=True)
class _Curve:
    """One metric of an arm at its scored steps, in the runs that have all of these scores."""

    steps: list[int]
    seconds: list[float]
    """Mean over the runs, at each step."""
    values: list[list[float]]
    """At each step, one value for each run."""
    complete: bool
    """Whether no run of the arm lacks a score."""

    def at(self, step: int) -> list[float]:
        return self.values[self.steps.index(step)]

    def at_seconds(self, seconds: float) -> list[float]:
        """Return the value of each run at a time between the first and the last score."""
        return [_interpolated(self.seconds, of_run, seconds) for of_run in zip(*self.values, strict=True)]


def _curve(arm: Arm, metric: str) -> _Curve | None:
    """Return an arm's curve; None where no run has two scores."""
    runs = [[one for one in run.along if math.isfinite(one.metrics.get(metric, math.nan))] for run in arm.runs]
    steps = sorted({score.step for scores in runs for score in scores})
    whole: list[list[ScoreAt]] = [scores for scores in runs if len(scores) == len(steps)]
    if not whole or len(steps) < 2:
        return None
    by_step = list(zip(*whole, strict=True))
    return _Curve(
        steps,
        [fmean(score.seconds for score in scores) for scores in by_step],
        [[score.metrics[metric] for score in scores] for scores in by_step],
        len(whole) == len(runs),
    )


def _compare(arm: Arm, new: _Curve, old: _Curve, metric: MetricInfo, confidence: float) -> AlongArm:
    steps = [step for step in new.steps if step in old.steps]
    strict = 1 - (1 - confidence) / max(1, len(steps))
    return AlongArm(
        arm=arm.name,
        resolution=arm.resolution,
        metric=metric.name,
        runs=len(new.values[0]),
        of=len(arm.runs),
        target=fmean(old.values[-1]),
        target_step=old.steps[-1],
        target_seconds=old.seconds[-1],
        differences=[_difference(step, new.at(step), old.at(step), confidence) for step in steps],
        reach=_reach(new, old, metric, confidence),
        equal_time=_equal_time(new, old, confidence),
        crossing=_crossing([_difference(step, new.at(step), old.at(step), strict) for step in steps], metric)
        if new.complete and old.complete
        else f"no verdict: {len(new.values[0])} of {len(arm.runs)} runs, and of the baseline {len(old.values[0])}, "
        "have all scores",
    )


def difference_at(
    new: Sequence[float], old: Sequence[float], confidence: float
) -> tuple[float, float | None, float | None]:
    """Return the mean difference, and the ends of its interval where there is a seed spread."""
    difference = stats.unpaired(new, old)
    low, high = difference.interval(confidence) or (None, None)
    return difference.value, low, high


def _difference(step: int, new: Sequence[float], old: Sequence[float], confidence: float) -> DifferenceAt:
    value, low, high = difference_at(new, old, confidence)
    return DifferenceAt(step=step, mean=fmean(new), baseline_mean=fmean(old), value=value, low=low, high=high)


def _reach(new: _Curve, old: _Curve, metric: MetricInfo, confidence: float) -> Reach:
    """Return when the arm reaches the baseline's last mean, by its difference from the baseline's last values."""
    sign = 1.0 if metric.direction == "higher" else -1.0
    found = [_difference(step, new.at(step), old.values[-1], confidence) for step in new.steps]
    ahead = [sign * one.value for one in found]
    ends = [sorted((sign * one.low, sign * one.high)) for one in found if one.low is not None and one.high is not None]
    surely, perhaps = ([pair[at] for pair in ends] if len(ends) == len(found) else [] for at in (0, 1))
    return Reach(
        step=first_reached(new.steps, ahead),
        step_low=first_reached(new.steps, perhaps),
        step_high=first_reached(new.steps, surely),
        seconds=first_reached(new.seconds, ahead),
        seconds_low=first_reached(new.seconds, perhaps),
        seconds_high=first_reached(new.seconds, surely),
        at_first=ahead[0] >= 0,
    )


def first_reached(places: Sequence[float], ahead: Sequence[float]) -> float | None:
    """Return the first place at which a broken line through the points is at zero or above; None where it never is."""
    if not ahead:
        return None
    if ahead[0] >= 0:
        return float(places[0])
    for (x, y), (later, above) in pairwise(zip(places, ahead, strict=True)):
        if above >= 0:
            return x + (later - x) * -y / (above - y)
    return None


def _equal_time(new: _Curve, old: _Curve, confidence: float) -> EqualTime:
    """Compare the arm at the baseline's total seconds with the baseline's end, or say why it has no score there."""
    seconds, last = old.seconds[-1], new.seconds[-1]
    if seconds > last * (1 + SAME_TIME):
        refused = f"the arm ended at {last:.3g} s of the baseline's {seconds:.3g} s"
        return EqualTime(seconds=seconds, refused=refused)
    if seconds < new.seconds[0]:
        refused = f"the arm's first score is at {new.seconds[0]:.3g} s, after the baseline's {seconds:.3g} s"
        return EqualTime(seconds=seconds, refused=refused)
    at = min(seconds, last)
    found = _difference(0, new.at_seconds(at), old.values[-1], confidence)
    step = _interpolated(new.seconds, new.steps, at)
    return EqualTime(seconds=seconds, step=step, value=found.value, low=found.low, high=found.high)


def _interpolated(places: Sequence[float], values: Sequence[float], at: float) -> float:
    """Return the value of a broken line at a place between its ends."""
    for (x, y), (later, value) in pairwise(zip(places, values, strict=True)):
        if x <= at <= later:
            return y + (value - y) * (at - x) / (later - x) if later > x else y
    raise ValueError(f"{at} is not between {places[0]} and {places[-1]}")


def _crossing(differences: Sequence[DifferenceAt], metric: MetricInfo) -> str:
    """Return since when an arm is ahead or behind, where its intervals show both; else that they do not."""
    if any(one.low is None for one in differences):
        return "no verdict without a seed spread"
    shown = [(one.step, word) for one in differences if (word := _side(one, metric))]
    stretches = [(word, [step for step, _ in some]) for word, some in groupby(shown, lambda pair: pair[1])]
    if len(stretches) < 2:
        return NO_CROSSING
    (first, before), *between, (last, after) = stretches
    middle = [f"{word} from step {steps[0]:,} to {steps[-1]:,}" for word, steps in between]
    return ", ".join([f"{first} until step {before[-1]:,}", *middle, f"{last} from step {after[0]:,}"])


def _side(one: DifferenceAt, metric: MetricInfo) -> str:
    """Return whether the arm is ahead or behind at a step; empty where the interval contains zero."""
    assert one.low is not None and one.high is not None
    if one.low <= 0 <= one.high:
        return ""
    return "ahead" if (one.value > 0) == (metric.direction == "higher") else "behind"
