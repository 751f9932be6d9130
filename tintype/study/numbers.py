"""Numbers and choices for all renderers of a study's results, such as order of arms, means, spreads and verdicts."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from statistics import fmean, geometric_mean, median, stdev
from typing import get_args

from tintype.page.numerals import decimals_showing
from tintype.study.contrasts import ANOTHER_SPACE
from tintype.study.results import Arm, Between, Comparison, Loss, MetricInfo, Role, Run, StudyResults, Trend
from tintype.study.verdicts import NOT_POSITIVE

NOT_COMPARABLE = "not comparable"
FOUND = ("better", "worse")
DECIDED = (*FOUND, "same", "unstable")
LOST = get_args(Loss)


def baseline_of(results: StudyResults) -> Arm:
    return next(arm for arm in results.arms if arm.role == "baseline")


def resolution_title(results: StudyResults) -> str:
    """Format the resolution with its number of tokens; empty in a study with one resolution."""
    baseline = baseline_of(results)
    return f"{baseline.resolution} ({baseline.tokens:,} tokens)" if baseline.resolution else ""


def token_counts(results: StudyResults) -> dict[str, int]:
    """Return the number of tokens of each resolution, in ascending order, if there are several resolutions."""
    return {arm.resolution: arm.tokens for arm in results.arms if arm.role == "baseline" and arm.tokens is not None}


def compared_arms(results: StudyResults) -> list[Arm]:
    return [arm for arm in results.arms if arm.role != "baseline"]


def titled(arm: Arm) -> str:
    """Return the arm's name, with its role if the role differs from the name."""
    return arm.name if arm.role in ("arm", arm.name) else f"{arm.name} ({arm.role})"


def primary_metrics(results: StudyResults) -> list[MetricInfo]:
    return [metric for metric in results.metrics if metric.primary] or results.metrics[:1]


def improvement(metric: MetricInfo, difference: float) -> float:
    """Return the difference, with a sign such that larger is better."""
    return difference if metric.direction == "higher" else -difference


def ranked_arms(results: StudyResults) -> list[Arm]:
    """Return the arms by improvement in the first primary metric, then arms that lost runs, then the control."""
    metric = primary_metrics(results)[0] if results.metrics else None

    def place(arm: Arm) -> tuple[bool, bool, float]:
        comparison = arm.comparisons.get(metric.name) if metric else None
        if metric is None or comparison is None or not math.isfinite(comparison.difference):
            return arm.role == "control", True, 0.0
        return arm.role == "control", comparison.verdict in LOST, -improvement(metric, comparison.difference)

    return sorted(compared_arms(results), key=place)


def too_few_seeds(metric: MetricInfo, comparison: Comparison) -> bool:
    """Return whether no possible change of the metric could have been detected with these seeds.

    The result is true if the smallest detectable difference is larger than the baseline's own value, or than half of
    the range of a bounded metric. The result is false if an interval excludes zero, or if runs were lost, since the
    verdict reports the loss.
    """
    if comparison.p is None or comparison.verdict in (*DECIDED, *LOST) or _excludes_zero(comparison):
        return False
    least, most = metric.range
    largest = abs(comparison.baseline_mean) if least is None or most is None else (most - least) / 2
    return comparison.detectable is None or not comparison.detectable <= largest


def _excludes_zero(comparison: Comparison) -> bool:
    return comparison.ends is not None and not comparison.ends[0] <= 0 <= comparison.ends[1]


def metric_values(arm: Arm, metric: str, without: Collection[int] = ()) -> list[float]:
    """Return the values by seed, without missing values and without the seeds in `without`."""
    values = (run.metrics.get(metric) for run in arm.runs if run.seed not in without)
    return [value for value in values if value is not None and math.isfinite(value)]


def mean_of(values: Iterable[float], log: bool = False) -> float | None:
    """Return the mean (the geometric mean if values are compared as logarithms); None without values."""
    known = list(values)
    if log and all(value > 0 for value in known):
        return geometric_mean(known) if known else None
    return fmean(known) if known else None


def is_log(results: StudyResults, metric: str) -> bool:
    """Return whether values of a metric are compared as logarithms."""
    rows = [arm.comparisons[metric] for arm in results.arms if metric in arm.comparisons]
    return any(row.scale == "log" for row in rows)


def compared_mean(results: StudyResults, arm: Arm, metric: str) -> float | None:
    """Return the arm's mean that was compared at one resolution; without a comparison, a mean of the same kind."""
    row = arm.comparisons.get(metric)
    if row is not None:
        return row.mean
    if arm.role == "baseline" and (mean := results.baseline_mean(metric)) is not None:
        return mean
    return mean_of(metric_values(arm, metric, results.collapsed(arm, metric)), is_log(results, metric))


def spread_of(values: list[float]) -> float | None:
    """Return the seed spread, a standard deviation; None with one seed."""
    return stdev(values) if len(values) > 1 else None


def relative(comparison: Comparison) -> float | None:
    return comparison.difference / abs(comparison.baseline_mean) if comparison.baseline_mean else None


def metric_decimals(results: StudyResults, metric: str) -> int:
    """Return the decimals for a metric: two digits of the intervals' width, or one of the spread if seeds are few."""
    compared = [arm.comparisons[metric] for arm in compared_arms(results) if metric in arm.comparisons]
    reaches = [(c.ends[1] - c.ends[0]) / 2 for c in compared if c.ends and c.ends[1] > c.ends[0]]
    values = metric_values(baseline_of(results), metric)
    if reaches:
        return decimals_showing(min(median(reaches), 10 * (spread_of(values) or math.inf)))
    mean = mean_of(values)
    return decimals_showing(abs(mean) / 10 if mean else 0)


def lost_runs(results: StudyResults) -> list[tuple[Arm, Run]]:
    return [(arm, run) for arm in results.arms for run in arm.runs if run.state != "done"]


def collapsed_in(results: StudyResults, arm: Arm, *metrics: str) -> set[int]:
    """Return the seeds of an arm's own runs that collapsed in any of the metrics."""
    fell = {seed for metric in metrics for seed in results.collapsed(arm, metric)}
    return fell & {run.seed for run in arm.runs}


def verdict_of(arm: Arm, metric: MetricInfo) -> str:
    """Return the verdict on an arm for a metric, even if there is no comparison."""
    if metric.name in arm.incomparable:
        return NOT_COMPARABLE
    comparison = arm.comparisons.get(metric.name)
    return comparison.verdict if comparison else "incomplete"


def with_role(results: StudyResults, role: Role) -> list[Arm]:
    return [arm for arm in results.arms if arm.role == role]


def short_reason(of: Arm | Between, metric: str) -> str:
    """Return the short form of the reason why a metric is not compared."""
    return of.incomparable[metric].partition(":")[0]


def compared_trends(results: StudyResults) -> list[tuple[Trend, MetricInfo]]:
    """Return the trends by metric, but not for the control, which has no pairs."""
    controls = {arm.name for arm in with_role(results, "control")}
    return [
        (trend, metric)
        for metric in results.metrics
        for trend in results.trends
        if trend.metric == metric.name and trend.arm not in controls
    ]


def trend_verdict(trend: Trend) -> str:
    if trend.comparison:
        return trend.comparison.verdict
    return "not defined" if trend.undefined.startswith((NOT_POSITIVE, ANOTHER_SPACE)) else "incomplete"


def trend_words(trend: Trend, metric: MetricInfo) -> str:
    """Describe whether an arm's mean effect grows or shrinks with more tokens, or return the verdict."""
    comparison = trend.comparison
    if comparison is None:
        return trend_verdict(trend)
    if comparison.verdict not in FOUND:
        return comparison.words
    at_fewest, at_most = (improvement(metric, one) for one in (comparison.baseline_mean, comparison.mean))
    if comparison.verdict == "better":
        return "helps more" if at_most > 0 else "hurts less"
    return "helps less" if at_fewest > 0 else "hurts more"


def time_shares(arm: Arm) -> dict[str, float]:
    """Return the fraction of an arm's training time per component, averaged over runs; empty if no run was timed."""
    runs = [(run.time_split, total) for run in arm.runs if (total := sum(run.time_split.values())) > 0]
    parts = dict.fromkeys(part for split, _ in runs for part in split)
    return {part: fmean(split.get(part, 0.0) / total for split, total in runs) for part in parts}
