"""Format scores during training as text, for the page and the Markdown."""

from __future__ import annotations

import math
from collections.abc import Callable
from statistics import fmean

from tintype.page import numerals
from tintype.study.along import seconds_of
from tintype.study.report.charts import Band
from tintype.study.report.view import Column, View
from tintype.study.results import AlongArm, Arm, DifferenceAt, Interval, MetricInfo, ScoreAt, StudyResults

HEADS = ["Steps to the baseline's final quality", "Seconds", "At equal time", "Crossing"]
MOST_UNEQUAL = 1.2
"""Training times are not trusted if the ratio of an arm's longest time to its shortest time is above this."""

STAGE_HEADS = ["Step", "Images", "Mean", "Lowest to highest seed"]
_STAGES = (
    " Weights of an earlier stage were scored with images of its size: such scores are in tables of their own, and are "
    "compared with scores of the same size alone."
)


def note(results: StudyResults) -> str:
    """Explain how to read the table, and which seconds it contains."""
    alone = [view for view in results.by_resolution() if view.timed_alone]
    seconds = "Seconds are those of the steps themselves, without data loading, saves and compilations."
    if alone:
        where = (
            "" if len(alone) == len(results.resolutions) else f" at {', '.join(one.resolution.name for one in alone)}"
        )
        others = f" Other seconds{seconds.removeprefix('Seconds')}" if where else ""
        seconds = f"Seconds{where} are steps times the seconds of a step measured alone on the device.{others}"
    return (
        "The baseline's final quality is its mean at its last step; the control's runs count as the baseline's. An "
        "interval begins where an arm may have reached it and ends where it surely has; … lies beyond the last score. "
        f"{seconds} At equal time: the arm, interpolated at the seconds of the whole baseline, minus the baseline's "
        "end; such a score comes before the end of the arm's own schedule. Nothing is extrapolated."
    )


def metrics_along(results: StudyResults) -> list[MetricInfo]:
    known = {one.metric for one in results.along}
    return [metric for metric in results.metrics if metric.name in known]


def lead(results: StudyResults) -> str:
    """Explain the scores, and that they are not verdicts."""
    full, images = results.protocol.get("count"), results.along_images
    fewer = "" if full == images else f", and the full evaluation on {full:,}" if isinstance(full, int) else ""
    return (
        f"Each score is taken on {images:,} images{fewer}: compare these numbers with each other, not with those of "
        f"other sections. Differences are arm minus baseline with {100 * results.confidence:g}% intervals over seeds, "
        "which describe and are not corrected. Only a crossing is a verdict, at an error of 5% for each arm and metric."
        + (_STAGES if len(_sizes_px(results)) > 1 else "")
    )


def timing_note(results: StudyResults) -> str:
    """Return a warning if an arm's training times differ as if other programs ran, unless steps were timed alone."""
    by_runs = [arm for view in results.by_resolution() if not view.timed_alone for arm in view.arms]
    ends = {arm.label: [run.along[-1].seconds for run in arm.runs if run.along] for arm in by_runs}
    ratios = {label: max(seconds) / min(seconds) for label, seconds in ends.items() if seconds and min(seconds) > 0}
    label, ratio = max(ratios.items(), key=lambda item: item[1], default=("", 1.0))
    if ratio <= MOST_UNEQUAL:
        return ""
    return (
        f"Do not build on the seconds: the runs of {label} took from {_seconds(min(ends[label]))} to "
        f"{_seconds(max(ends[label]))} for the same steps, so something else used the machine."
    )


def compared(view: View, metric: str) -> list[tuple[Arm, AlongArm]]:
    """Return the arms with a comparison of scores during training, in the report's order."""
    found = {one.arm: one for one in view.results.along if one.metric == metric}
    return [(arm, found[arm.name]) for arm in view.arms if arm.name in found]


def baseline_cells(one: AlongArm) -> list[str]:
    """Return the row of the baseline, with its steps, seconds, and the quality to which arms are compared."""
    return [f"{one.target_step:,}", _seconds(one.target_seconds), f"its end: {numerals.significant(one.target)}", ""]


def cells(column: Column, one: AlongArm) -> list[str]:
    """Return the row of an arm, with the columns of `HEADS`."""
    reach, equal = one.reach, one.equal_time
    some = f" ({one.runs} of {one.of} runs)" if one.runs < one.of else ""
    then = f"not scored: {equal.refused}"
    if equal.difference is not None:
        then = f"{_written(column, equal.difference)}, at step {_step(equal.step)}"
    steps, seconds = _reached(reach.step, _step, reach.at_first), _reached(reach.seconds, _seconds, reach.at_first)
    return [steps + some, seconds, then, one.crossing]


def difference_cells(column: Column, one: AlongArm) -> list[str]:
    """Return the difference at each scored step with its interval."""
    return [_written(column, at.difference) for at in one.differences]


def _written(column: Column, one: Interval) -> str:
    decimals = numerals.decimals_within(one.low, one.high, column.decimals)
    ends = numerals.interval(one.low, one.high, decimals)
    return f"{numerals.fixed(one.value, decimals, signed=True)} {ends}".strip()


def _reached(place: Interval, written: Callable[[float | None], str], at_first: bool) -> str:
    """Format a place and its interval in words."""
    value, low, high = (written(end) for end in (place.value, place.low, place.high))
    if not value:
        return f"not reached (perhaps from {low} on)" if low else "not reached"
    if at_first:
        return f"{value} or before"
    return f"{value} [{low}, {high or '…'}]" if low else value


def step_of(one: DifferenceAt) -> str:
    """Format the step of a difference, with the image size if it is a stage's size."""
    return f"{one.step:,}" + ("" if one.size_px is None else f" ({one.size_px} px)")


def _step(value: float | None) -> str:
    return "" if value in (None, math.inf) else f"{value:,.0f}"


def _seconds(value: float | None) -> str:
    return "" if value is None or value == math.inf else f"{numerals.significant(value)} s"


def band(results: StudyResults, arm: Arm, metric: str, *, over_seconds: bool) -> Band:
    """Return mean and range over runs at each scored step, without collapsed runs and scores of earlier stages."""
    last_size_px = _last_size_px(results)
    found: Band = []
    for step, scores in _by_step(results, arm, metric).items():
        if scores[0].size_px != last_size_px:
            continue
        values = [one.metrics[metric] for one in scores]
        place = seconds_of(results, arm, scores) if over_seconds else float(step)
        found.append((place, fmean(values), min(values), max(values)))
    return found


def stage_rows(view: View, metric: str) -> list[tuple[Arm, list[str]]]:
    """Return scores on the smaller images of an earlier stage, as pairs of an arm and cells under `STAGE_HEADS`."""
    column, last, found = view.column(metric), _last_size_px(view.results), list[tuple[Arm, list[str]]]()
    for arm in (arm for arm in view.everyone if metric not in arm.incomparable):
        for step, scores in _by_step(view.results, arm, metric).items():
            if scores[0].size_px != last:
                values = [one.metrics[metric] for one in scores]
                spread = f"{column.written(min(values))} to {column.written(max(values))}"
                found.append((arm, [f"{step:,}", f"{scores[0].size_px} px", column.written(fmean(values)), spread]))
    return found


def _by_step(results: StudyResults, arm: Arm, metric: str) -> dict[int, list[ScoreAt]]:
    """Return the scores of the runs that did not collapse, by step; all scores of a step are on images of one size."""
    found: dict[int, list[ScoreAt]] = {}
    for one in (one for run in results.healthy(arm, metric) for one in run.along):
        if math.isfinite(one.metrics.get(metric, math.nan)):
            found.setdefault(one.step, []).append(one)
    return dict(sorted(found.items()))


def _last_size_px(results: StudyResults) -> int | None:
    """Return the image size of the last stage; None if all scores use the data's image size."""
    return max(_sizes_px(results), default=None)


def _sizes_px(results: StudyResults) -> set[int]:
    return {one.size_px for arm in results.arms for run in arm.runs for one in run.along if one.size_px is not None}
