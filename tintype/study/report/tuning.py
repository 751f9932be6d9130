"""Format a tuned study's sweeps as text, with the score of each value, the choice, and too narrow ranges."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from statistics import fmean

from tintype.page.numerals import UNKNOWN, fixed
from tintype.study.numbers import metric_decimals
from tintype.study.results import MetricInfo, StudyResults, Sweep, Tuning, TuningPoint, arm_label, assignments_words

_LOST = ("diverged", "failed", "missing")


def tuned_metric(results: StudyResults, tuning: Tuning) -> MetricInfo:
    return next(metric for metric in results.metrics if metric.name == tuning.metric)


def label(sweep: Sweep) -> str:
    return arm_label(sweep.arm, sweep.resolution)


def labels(tuning: Tuning) -> list[str]:
    return [label(sweep) for sweep in tuning.sweeps]


def lead(results: StudyResults, tuning: Tuning) -> str:
    """Explain which values were tried, and that the comparison did not use the tuning runs."""
    points, metric = len(tuning.sweeps[0].points), tuned_metric(results, tuning)
    seeds = f"seed{'s' if len(tuning.seeds) > 1 else ''} {', '.join(map(str, tuning.seeds))}"
    same = "the same " if tuning.alike else ""
    drawn = {"grid": "", "random": ", drawn at random"}.get(tuning.method, f", proposed by {tuning.method}")
    return (
        f"The baseline and each arm were trained with {same}{points} choices of {_keys(tuning)}{drawn}, on {seeds}, "
        f"which the comparison does not use. The best mean {metric.label} ({metric.direction} is better) was chosen "
        "for each, and the comparison has those values: an arm may differ from the baseline in them too."
    )


def _keys(tuning: Tuning) -> str:
    return " and ".join(tuning.sweeps[0].points[0].values)


def cell(sweep: Sweep, point: TuningPoint, decimals: int) -> str:
    """Format the mean score of a choice of values and its lost runs, with a sign if the choice won."""
    written = fixed(fmean(point.known), decimals) if point.known else UNKNOWN
    states = [run.state for run in point.runs]
    lost = [f"{state} {states.count(state)} of {len(states)}" for state in _LOST if state in states]
    chosen = ["✓"] if sweep.points[sweep.chosen] is point else []
    return " ".join([*chosen, written, *(f"({words})" for words in lost)])


def rows(results: StudyResults, tuning: Tuning) -> Iterator[list[str]]:
    """Yield a row for each choice of values (a trial if each arm has separate values), with the scores of all arms."""
    decimals = metric_decimals(results, tuning.metric)
    for index, point in enumerate(tuning.sweeps[0].points):
        scores = [cell(one, one.points[index], decimals) for one in tuning.sweeps]
        if tuning.alike:
            yield [assignments_words(point.values), *scores]
        else:
            of_arms = [assignments_words(one.points[index].values) for one in tuning.sweeps]
            yield [f"trial {index + 1}", *(f"{score} at {one}" for score, one in zip(scores, of_arms, strict=True))]


@dataclass(frozen=True)
class Line:
    """An arm's scores over the values of one key, which are the best scores over the values of all other keys."""

    sweep: Sweep
    points: list[tuple[float, float]]
    chosen: float


def lines(results: StudyResults, tuning: Tuning, key: str) -> list[Line]:
    """Return the lines of a figure; empty if the key has values that are not numbers."""
    metric = tuned_metric(results, tuning)
    found = []
    for sweep in tuning.sweeps:
        best: dict[float, float] = {}
        for point in sweep.points:
            value = point.values[key]
            if isinstance(value, bool) or not isinstance(value, int | float):
                return []
            if point.known:
                score = fmean(point.known)
                known = best.get(value, score)
                best[value] = min(known, score) if metric.direction == "lower" else max(known, score)
        if best:
            found.append(Line(sweep, sorted(best.items()), sweep.points[sweep.chosen].values[key]))
    return found
