"""What a study's results say, before any layout: the order of the arms, the answer in words, and what to warn of."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from statistics import fmean, median, stdev
from typing import Any

from tintype.study.report.numerals import NO_BREAK, decimals_showing, fixed, interval
from tintype.study.results import Arm, Comparison, MetricInfo, Results, Run, Verdict

SPEED = "images_per_s"
GLYPHS: dict[Verdict, str] = {"better": "✓", "worse": "✗", "not shown": "○", "sketch": "◌", "incomplete": "…"}


def baseline_of(results: Results) -> Arm:
    return next(arm for arm in results.arms if arm.role == "baseline")


def compared_arms(results: Results) -> list[Arm]:
    return [arm for arm in results.arms if arm.role != "baseline"]


def titled(arm: Arm) -> str:
    """The arm's name, with its role where the name does not tell."""
    return arm.name if arm.role in ("arm", arm.name) else f"{arm.name} ({arm.role})"


def primary_metrics(results: Results) -> list[MetricInfo]:
    return [metric for metric in results.metrics if metric.primary] or results.metrics[:1]


def improvement(metric: MetricInfo, difference: float) -> float:
    """The difference, signed so that more is better."""
    return difference if metric.direction == "higher" else -difference


def ranked_arms(results: Results) -> list[Arm]:
    """Largest improvement of the first primary metric first; arms without that comparison last."""

    def effect(arm: Arm) -> float:
        for metric in primary_metrics(results)[:1]:
            comparison = arm.comparisons.get(metric.name)
            if comparison is not None and math.isfinite(comparison.difference):
                return improvement(metric, comparison.difference)
        return -math.inf

    return sorted(compared_arms(results), key=effect, reverse=True)


def metric_values(arm: Arm, metric: str) -> list[float]:
    """One for each seed that has it."""
    values = (run.metrics.get(metric) for run in arm.runs)
    return [value for value in values if value is not None and math.isfinite(value)]


def mean_of(values: Iterable[float]) -> float | None:
    known = list(values)
    return fmean(known) if known else None


def spread_of(values: list[float]) -> float | None:
    """Standard deviation over seeds; None where one seed is all there is."""
    return stdev(values) if len(values) > 1 else None


def relative(comparison: Comparison) -> float | None:
    return comparison.difference / abs(comparison.baseline_mean) if comparison.baseline_mean else None


def interval_words(results: Results, arm: Arm, comparison: Comparison) -> str:
    """Which interval it is and over which seeds; empty where there is none."""
    if comparison.low is None:
        return ""
    name = comparison.interval or ("Welch" if arm.role == "control" else "Student")
    kind = "unpaired" if arm.role == "control" else "paired"
    return f"{100 * results.confidence:g}% {name} interval, {len(comparison.differences)} {kind} seeds"


def test_words(arm: Arm, comparison: Comparison) -> str:
    """Which test the p is from; empty where there is none."""
    if comparison.p is None:
        return ""
    return comparison.test or ("Welch" if arm.role == "control" else "paired Student")


def metric_decimals(results: Results, metric: str) -> int:
    """One number of decimals for all of a metric's values, so that they can be read down a column."""
    compared = [arm.comparisons[metric] for arm in compared_arms(results) if metric in arm.comparisons]
    reaches = [(c.high - c.low) / 2 for c in compared if c.low is not None and c.high is not None and c.high > c.low]
    if reaches:
        return decimals_showing(median(reaches))
    mean = mean_of(metric_values(baseline_of(results), metric))
    return decimals_showing(abs(mean) / 10 if mean else 0)


def lost_runs(results: Results) -> list[tuple[Arm, Run]]:
    return [(arm, run) for arm in results.arms for run in arm.runs if run.state != "done"]


def differing_controls(results: Results) -> list[tuple[Arm, list[MetricInfo]]]:
    """Control arms that look better or worse than the baseline, though nothing but the seeds was changed."""
    found = []
    for arm in _with_role(results, "control"):
        metrics = [metric for metric in results.metrics if _verdict(arm, metric) in ("better", "worse")]
        if metrics:
            found.append((arm, metrics))
    return found


def answer(results: Results) -> list[str]:
    """The study's answer, one sentence for each primary metric and one for the control."""
    arms = _with_role(results, "arm")
    if not arms:
        return ["The study has no arm to compare with the baseline."]
    sentences = [_sentence(results, arms, metric) for metric in primary_metrics(results)]
    every = (*sentences, *_interval_sentences(results, arms), *_control_sentences(results))
    return [sentence[0].upper() + sentence[1:] for sentence in every]


def _sentence(results: Results, arms: list[Arm], metric: MetricInfo) -> str:
    if results.sketch:
        shown = "; ".join(_effect(results, arm, metric) for arm in arms if metric.name in arm.comparisons)
        return f"{metric.label} ({metric.direction} is better) differs by: {shown or 'nothing measured'}."
    groups = {verdict: [arm for arm in arms if _verdict(arm, metric) == verdict] for verdict in GLYPHS}
    clauses = []
    for verdict in ("better", "worse"):
        if group := groups[verdict]:
            effects = "; ".join(_effect(results, arm, metric) for arm in group)
            clauses.append(f"{len(group)} {_is(group)} {verdict} ({effects})")
    if group := groups["not shown"]:
        clauses.append(f"{len(group)} {_is(group)} not shown to differ ({_names(group)})")
    if group := groups["incomplete"]:
        clauses.append(f"{len(group)} {_is(group)} incomplete ({_names(group)})")
    counted = f"of {len(arms)} arms" if len(arms) > 1 else "of the one arm"
    return f"{metric.label} ({metric.direction} is better): {counted}, {_listed(clauses)}."


def _effect(results: Results, arm: Arm, metric: MetricInfo) -> str:
    comparison, decimals = arm.comparisons[metric.name], metric_decimals(results, metric.name)
    difference = fixed(comparison.difference, decimals, signed=True)
    reach = interval(comparison.low, comparison.high, decimals)
    return f"{arm.name}: {difference}" + (NO_BREAK + reach if reach else "")


def _interval_sentences(results: Results, arms: list[Arm]) -> list[str]:
    """What the brackets are. Arms that lost runs have fewer seeds, and then each kind is named."""
    names = {metric.name for metric in primary_metrics(results)}
    kinds = [
        interval_words(results, arm, one) for arm in arms for name, one in arm.comparisons.items() if name in names
    ]
    shown = list(dict.fromkeys(words for words in kinds if words))
    return [f"In brackets: {'; or '.join(shown)}."] if shown else []


def _control_sentences(results: Results) -> list[str]:
    controls = _with_role(results, "control")
    if results.sketch:
        return []
    if not controls:
        return [
            "No control was run, so nothing here shows how often this study would see a difference that is not one."
        ]
    if differing_controls(results):
        return ["The control, which is the baseline with other seeds, differs: it should not."]
    if any(_verdict(arm, metric) == "incomplete" for arm in controls for metric in results.metrics):
        return ["The control, which is the baseline with other seeds, is incomplete."]
    return ["The control, which is the baseline with other seeds, shows no difference on any metric, as it should."]


def _verdict(arm: Arm, metric: MetricInfo) -> Verdict:
    comparison = arm.comparisons.get(metric.name)
    return comparison.verdict if comparison else "incomplete"


def _with_role(results: Results, role: str) -> list[Arm]:
    return [arm for arm in results.arms if arm.role == role]


def _names(arms: list[Arm]) -> str:
    return ", ".join(arm.name for arm in arms)


def _is(arms: list[Arm]) -> str:
    return "is" if len(arms) == 1 else "are"


def _listed(clauses: list[str]) -> str:
    return " and ".join([", ".join(clauses[:-1]), clauses[-1]]) if len(clauses) > 1 else "".join(clauses)


def environment(results: Results) -> dict[str, list[str]]:
    """What the runs ran on: every distinct value of every key."""
    found: dict[str, dict[str, None]] = {}
    for arm in results.arms:
        for run in arm.runs:
            for key, value in run.environment.items():
                found.setdefault(key, {})[plain(value)] = None
    return {key: list(values) for key, values in found.items()}


def events(results: Results) -> list[tuple[Arm, Run, dict[str, Any]]]:
    return [(arm, run, event) for arm in results.arms for run in arm.runs for event in run.events]


def event_details(event: dict[str, Any]) -> str:
    told_elsewhere = ("event", "step", "time")
    return ", ".join(f"{key}: {plain(value)}" for key, value in event.items() if key not in told_elsewhere)


def part_means(arm: Arm, metric: str) -> dict[str, float]:
    """Each part of a metric, averaged over seeds."""
    values: dict[str, list[float]] = {}
    for run in arm.runs:
        for part, value in run.details.get(metric, {}).items():
            if math.isfinite(value):
                values.setdefault(part, []).append(value)
    return {part: fmean(of_seeds) for part, of_seeds in values.items()}


def plain(value: Any) -> str:
    """A setting's value in one line."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
