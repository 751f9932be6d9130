"""Compare arms with the baseline during training.

The comparisons are at each scored step, at the baseline's final quality, and at equal training time. One protocol
(`evaluation.early`) computes all these scores. Means are over the runs of an arm that have every score and did not
collapse. Intervals use the seed spread on the scale of the metric, pooled over all arms (`study.stats.spread`).

Differences and their intervals are descriptive, and lead to no verdict. The verdicts of a study compare final scores
only, so the comparisons during training spend none of the study's error. The only exception is a crossing, which states
the steps at which an arm is better or worse. Crossings have a separate error of 5% for each arm and metric, divided
among the scored steps (Bonferroni).

An arm reaches the baseline's final quality at the step where the difference between its mean and the baseline's final
mean crosses zero. The interval of this step contains the steps at which the difference's interval includes zero.
Between scored steps, values are interpolated linearly. Values before the first and after the last scored step are
unknown.

The protocol may score weights at the image size of their stage. In this case, only scores of the same image size are
compared. So a difference at a step exists only if the arm and the baseline have images of the same size at that step.
Crossings and comparisons with the baseline's final score use the last stage only.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from statistics import fmean
from typing import Literal, TypeVar

from tintype.study.results import (
    AlongArm,
    Arm,
    DifferenceAt,
    EqualTime,
    Interval,
    MetricInfo,
    Reach,
    ScoreAt,
    StudyResults,
)
from tintype.study.stats.cells import Cells, Scale, scale_for
from tintype.study.stats.contrast import against
from tintype.study.stats.estimate import estimate

_Value = TypeVar("_Value")
_INCOMPLETE = "not all runs of the arm and the baseline have all scores"
NO_CROSSING = "no crossing shown"
SAME_TIME = 0.02
"""Two training times count as equal if they differ by at most this fraction."""


def with_along(results: StudyResults) -> StudyResults:
    """Return the results with a comparison of scores during training; unchanged if there are no such scores."""
    found = [
        one
        for view in results.by_resolution()
        for metric in view.metrics
        if metric.primary
        for one in _arms_along(view, metric)
    ]
    return results.model_copy(update={"along": found}) if found else results


def _arms_along(view: StudyResults, metric: MetricInfo) -> list[AlongArm]:
    baselines = [arm.name for role in ("baseline", "control") for arm in view.arms if arm.role == role]
    compared = [arm for arm in view.arms if metric.name not in arm.incomparable]
    curves = {arm.name: curve for arm in compared if (curve := _curve(view, arm, metric.name))}
    if baselines[0] not in curves:
        return []
    values = [value for curve in curves.values() for of_step in curve.values for value in of_step]
    ends = [curve.values[-1] for curve in curves.values()]
    scale = scale_for(metric.scale or "raw", [*ends, *([value] for value in values)], metric.pad)
    group = _Group(curves, [name for name in baselines if name in curves], scale, metric.direction, view.confidence)
    ended = [name for name, curve in curves.items() if curve.sizes[-1] == group.old.sizes[-1]]
    return [_compare(arm, group, metric.name) for arm in compared if arm.name in ended and arm.role != "baseline"]


@dataclass(frozen=True)
class _Curve:
    """Values of one metric at an arm's scored steps, in runs that have all of these scores and did not collapse."""

    steps: list[int]
    seconds: list[float]
    """Training seconds up to each step; see `seconds_of`."""
    sizes: list[int | None]
    """Image size at each step, if the image size is a stage's size."""
    values: list[list[float]]
    """For each step, one value per run."""
    complete: bool
    """Whether every run of the arm has all scores."""

    def at(self, step: int) -> list[float]:
        return self.values[self.steps.index(step)]

    def size_at(self, step: int) -> int | None:
        return self.sizes[self.steps.index(step)]

    @property
    def last_stage(self) -> _Curve:
        """The scores on images of the same size as the last score, since scores at other sizes are not comparable."""
        kept = [index for index, size_px in enumerate(self.sizes) if size_px == self.sizes[-1]]

        def of(values: Sequence[_Value]) -> list[_Value]:
            return [values[index] for index in kept]

        return _Curve(of(self.steps), of(self.seconds), of(self.sizes), of(self.values), self.complete)

    def at_seconds(self, seconds: float) -> list[float]:
        """Return the value of each run at a time between the run's first and last score."""
        return [_interpolated(self.seconds, of_run, seconds) for of_run in zip(*self.values, strict=True)]


def _curve(view: StudyResults, arm: Arm, metric: str) -> _Curve | None:
    """Return an arm's curve; None if no run has at least two scores."""
    healthy = view.healthy(arm, metric)
    runs = [[one for one in run.along if math.isfinite(one.metrics.get(metric, math.nan))] for run in healthy]
    steps = sorted({score.step for scores in runs for score in scores})
    whole: list[list[ScoreAt]] = [scores for scores in runs if len(scores) == len(steps)]
    if not whole or len(steps) < 2:
        return None
    by_step = list(zip(*whole, strict=True))
    return _Curve(
        steps,
        [seconds_of(view, arm, scores) for scores in by_step],
        [scores[0].size_px for scores in by_step],
        [[score.metrics[metric] for score in scores] for scores in by_step],
        len(whole) == len(runs),
    )


def seconds_of(view: StudyResults, arm: Arm, scores: Sequence[ScoreAt]) -> float:
    """Return an arm's seconds up to each step, from steps timed alone on a GPU if all arms of the resolution were."""
    if view.timed_alone and arm.step_s is not None:
        return arm.step_s * scores[0].step
    return fmean(score.seconds for score in scores)


@dataclass(frozen=True)
class _Group:
    """The curves of all arms of a resolution, with a pooled seed spread as in the study's other comparisons."""

    curves: Mapping[str, _Curve]
    baselines: Sequence[str]
    """The baseline and the control; runs of the control count as runs of the baseline."""
    scale: Scale
    direction: Literal["lower", "higher"]
    confidence: float

    @property
    def old(self) -> _Curve:
        return self.curves[self.baselines[0]]

    @property
    def steps(self) -> list[int]:
        return self.old.steps

    def at(self, step: int, arm: str, confidence: float) -> DifferenceAt:
        """Compare an arm with the baseline at a shared step, on images of the same size."""
        size_px = self.curves[arm].size_at(step)
        alike = {name: one for name, one in self.curves.items() if step in one.steps and one.size_at(step) == size_px}
        found = self._difference(step, arm, {name: curve.at(step) for name, curve in alike.items()}, confidence)
        return found.model_copy(update={"size_px": size_px})

    def with_end(self, step: int, arm: str, values: Sequence[float]) -> DifferenceAt:
        """Compare the given values of an arm, scored at `step`, with the baseline's final scores."""
        ends = {name: curve.values[-1] for name, curve in self.curves.items() if curve.sizes[-1] == self.old.sizes[-1]}
        return self._difference(step, arm, {**ends, arm: list(values)}, self.confidence)

    def _difference(self, step: int, arm: str, values: Mapping[str, list[float]], confidence: float) -> DifferenceAt:
        old = [name for name in self.baselines if name != arm and name in values]
        found = difference_at(arm, self.baselines, values, self.scale, confidence)

        def mean(some: Sequence[float]) -> float:
            return self.scale.value(fmean(map(self.scale.place, some)))

        before = mean([one for name in old for one in values[name]])
        return DifferenceAt(step=step, mean=mean(values[arm]), baseline_mean=before, difference=found)


def difference_at(
    arm: str, baselines: Sequence[str], values: Mapping[str, Sequence[float]], scale: Scale, confidence: float
) -> Interval:
    """Return an arm's difference from the baselines. Its interval needs a seed spread, pooled over all `values`."""
    placed = {name: {run: scale.place(one) for run, one in enumerate(of)} for name, of in values.items()}
    cells = Cells(placed, scale, dict.fromkeys(baselines[1:], baselines[0]))
    found = estimate(cells, against(arm, baselines[0]), confidence)
    low, high = (scale.difference(found.old, end) for end in found.interval) if found.interval else (None, None)
    return Interval(value=scale.difference(found.old, found.value), low=low, high=high)


def _compare(arm: Arm, group: _Group, metric: str) -> AlongArm:
    new, old = group.curves[arm.name], group.old
    steps = [step for step in new.steps if step in group.steps and new.size_at(step) == old.size_at(step)]
    last = new.last_stage
    crossed = [step for step in steps if step in last.steps]
    strict = 1 - (1 - group.confidence) / max(1, len(crossed))
    ends = [group.with_end(step, arm.name, values) for step, values in zip(last.steps, last.values, strict=True)]
    complete = all(group.curves[name].complete for name in (arm.name, *group.baselines))
    reason = _collapse_words(arm, metric) or ("" if complete else _INCOMPLETE)
    return AlongArm(
        arm=arm.name,
        resolution=arm.resolution,
        metric=metric,
        runs=len(new.values[0]),
        of=len(arm.runs),
        target=ends[-1].baseline_mean,
        target_step=old.steps[-1],
        target_seconds=old.seconds[-1],
        differences=[group.at(step, arm.name, group.confidence) for step in steps],
        reach=_reach(last, ends, group.direction),
        equal_time=_equal_time(arm.name, group),
        crossing=f"no verdict: {reason}"
        if reason
        else _crossing([group.at(step, arm.name, strict) for step in crossed], group.direction),
    )


def _collapse_words(arm: Arm, metric: str) -> str:
    """Describe the arms with collapsed runs; empty if there are none."""
    row = arm.comparisons.get(metric)
    if row is None or not (row.collapsed or row.baseline_collapsed):
        return ""
    return f"some of the {'arm' if row.collapsed else 'baseline'}'s runs collapsed"


def _reach(new: _Curve, found: Sequence[DifferenceAt], direction: Literal["lower", "higher"]) -> Reach:
    """Describe when an arm reaches the baseline's final quality; `found` is the difference from it by step."""
    sign = 1.0 if direction == "higher" else -1.0
    ahead = [sign * one.difference.value for one in found]
    ends = [sorted(sign * end for end in one.difference.ends) for one in found if one.difference.ends]

    def reached(places: Sequence[float]) -> Interval:
        perhaps, surely = None, None
        if len(ends) == len(found):
            perhaps, surely = (first_reached(places, [pair[at] for pair in ends]) for at in (1, 0))
        return Interval(value=first_reached(places, ahead), low=perhaps, high=surely)

    return Reach(step=reached(new.steps), seconds=reached(new.seconds), at_first=ahead[0] >= 0)


def first_reached(places: Sequence[float], ahead: Sequence[float]) -> float:
    """Return the first place at which line segments through the points reach zero; infinity if none does."""
    if ahead[0] >= 0:
        return float(places[0])
    for (x, y), (later, above) in pairwise(zip(places, ahead, strict=True)):
        if above >= 0:
            return x + (later - x) * -y / (above - y)
    return math.inf


def _equal_time(arm: str, group: _Group) -> EqualTime:
    """Compare the arm's score at the baseline's total seconds with the baseline's final score, or say why not."""
    new = group.curves[arm].last_stage
    seconds, last = group.old.seconds[-1], new.seconds[-1]
    if seconds > last * (1 + SAME_TIME):
        refused = f"the arm ended at {last:.3g} s of the baseline's {seconds:.3g} s"
        return EqualTime(seconds=seconds, refused=refused)
    if seconds < new.seconds[0]:
        first = "first score" if len(new.steps) == len(group.curves[arm].steps) else "first score at its last size"
        refused = f"the arm's {first} is at {new.seconds[0]:.3g} s, after the baseline's {seconds:.3g} s"
        return EqualTime(seconds=seconds, refused=refused)
    at = min(seconds, last)
    step = _interpolated(new.seconds, new.steps, at)
    found = group.with_end(round(step), arm, new.at_seconds(at))
    return EqualTime(seconds=seconds, step=step, difference=found.difference)


def _interpolated(places: Sequence[float], values: Sequence[float], at: float) -> float:
    if len(places) == 1:
        return values[0]
    for (x, y), (later, value) in pairwise(zip(places, values, strict=True)):
        if x <= at <= later:
            return y + (value - y) * (at - x) / (later - x) if later > x else y
    raise ValueError(f"the place {at} is not between {places[0]} and {places[-1]}")


def _crossing(differences: Sequence[DifferenceAt], direction: Literal["lower", "higher"]) -> str:
    """Describe the steps after which an arm is ahead or behind, or state that its intervals do not show both."""
    if any(one.difference.ends is None for one in differences):
        return "no verdict without a seed spread"
    shown = [(one.step, word) for one in differences if (word := _side(one, direction))]
    stretches = [(word, [step for step, _ in some]) for word, some in groupby(shown, lambda pair: pair[1])]
    if len(stretches) < 2:
        return NO_CROSSING
    (first, before), *between, (last, after) = stretches
    middle = [f"{word} from step {steps[0]:,} to {steps[-1]:,}" for word, steps in between]
    return ", ".join([f"{first} until step {before[-1]:,}", *middle, f"{last} from step {after[0]:,}"])


def _side(one: DifferenceAt, direction: Literal["lower", "higher"]) -> str:
    """Return whether the arm is ahead or behind at a step; empty if the interval includes zero."""
    assert one.difference.ends is not None
    low, high = one.difference.ends
    if low <= 0 <= high:
        return ""
    return "ahead" if (one.difference.value > 0) == (direction == "higher") else "behind"
