"""Compute how far to trust the metrics of a study, from those of its own runs that did not collapse."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import fmean, stdev

from tintype.study.results import MetricInfo, Run, StudyResults

_LEAD = (
    "Seed spread: standard deviation over the seeds of the baseline and of the control, which is the baseline again. "
    "Sampling error of one run: what other noises would change with the same weights; more images reduce it. "
    "Signal-to-noise: standard deviation of the means of baseline and arms over their mean standard error. It "
    "is about 1 where arms differ by chance alone; a metric with a high ratio tells these arms apart with few seeds."
)

_OF_BIAS = (
    " Bias: how much of the baseline's mean comes from finite sets of images; a perfect model has about as much. It "
    "makes relative differences look smaller than they are; more images reduce it."
)


@dataclass(frozen=True)
class Trust:
    """How far to trust a metric at one resolution; a quantity is None if there are too few runs to compute it."""

    metric: MetricInfo
    baseline_mean: float | None
    """The mean that comparisons of arms use; if no arm was compared, the plain mean of the baseline's runs."""
    seed_spread: float | None
    seeds: int
    sampling_error: float | None
    """The error of one run, as root mean square over the runs of the baseline and the control."""
    signal_to_noise: float | None
    bias: float | None = None
    """Mean bias of a value of the baseline or the control due to finite sets of images; None if unknown."""

    @property
    def relative_spread(self) -> float | None:
        if self.seed_spread is None or not self.baseline_mean:
            return None
        return self.seed_spread / abs(self.baseline_mean)

    @property
    def relative_bias(self) -> float | None:
        if self.bias is None or not self.baseline_mean:
            return None
        return self.bias / abs(self.baseline_mean)


def is_biased(results: StudyResults) -> bool:
    """Return whether the bias of a metric is known for any run."""
    return any(run.biases for arm in results.arms for run in arm.runs)


def lead(results: StudyResults) -> str:
    """Explain the columns of the table."""
    return _LEAD + (_OF_BIAS if is_biased(results) else "")


def trust(results: StudyResults) -> list[Trust]:
    """Return the row of each metric for the results at one resolution, with the highest signal-to-noise ratio first."""
    rows = [_trust(results, metric) for metric in results.metrics]
    return sorted(rows, key=lambda row: -1.0 if row.signal_to_noise is None else row.signal_to_noise, reverse=True)


def _trust(results: StudyResults, metric: MetricInfo) -> Trust:
    healthy = {arm.name: results.healthy(arm, metric.name) for arm in results.arms}
    alike = [run for arm in results.arms if arm.role in ("baseline", "control") for run in healthy[arm.name]]
    values, own = _values(alike, metric.name), [arm for arm in results.arms if arm.role == "baseline"]
    mean, of_own = results.baseline_mean(metric.name), _values(healthy[own[0].name], metric.name)
    biases = [run.biases[metric.name] for run in alike if metric.name in run.biases]
    errors = [run.errors[metric.name] for run in alike if metric.name in run.errors]
    compared = [arm for arm in results.arms if arm.role != "control" and metric.name not in arm.incomparable]
    return Trust(
        metric,
        baseline_mean=mean if mean is not None else fmean(of_own) if of_own else None,
        seed_spread=stdev(values) if len(values) > 1 else None,
        seeds=len(values),
        sampling_error=math.sqrt(fmean(error * error for error in errors)) if errors else None,
        signal_to_noise=_ratio([_values(healthy[arm.name], metric.name) for arm in compared]),
        bias=fmean(biases) if biases else None,
    )


def _values(runs: list[Run], metric: str) -> list[float]:
    values = (run.metrics.get(metric) for run in runs)
    return [value for value in values if value is not None and math.isfinite(value)]


def _ratio(groups: list[list[float]]) -> float | None:
    """Return the standard deviation of group means over their mean standard error; None without two groups of two."""
    several = [group for group in groups if len(group) > 1]
    if len(several) < 2:
        return None
    noise = fmean(stdev(group) / math.sqrt(len(group)) for group in several)
    return stdev(map(fmean, several)) / noise if noise else None
