"""The numbers of a report in writing, as the page and the Markdown both show them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from tintype.page import numerals
from tintype.study.report import findings
from tintype.study.results import SPEED, Arm, MetricInfo, StudyResults


@dataclass(frozen=True)
class Cell:
    """One metric of one arm, compared with the baseline."""

    verdict: str
    words: str
    mean: str
    difference: str
    interval: str
    interval_words: str
    relative: str
    p: str
    p_adjusted: str
    detectable: str
    too_few_seeds: bool
    sampling: str
    """The part of the difference's standard error that more images would remove."""
    values: str
    """The value of each seed."""

    @property
    def marked(self) -> str:
        return f"{findings.glyph(self.verdict)} {self.words}"

    @property
    def effect(self) -> str:
        """Return the verdict, the difference and its interval."""
        known = f"{self.difference} {self.interval}".strip()
        return self.marked if known == numerals.UNKNOWN else f"{self.marked}: {known}"


@dataclass(frozen=True)
class Apart:
    """One metric of an arm that is not compared with the baseline."""

    mean: str
    short: str
    reason: str
    values: str


@dataclass(frozen=True)
class Column:
    """One metric: the baseline's values and each arm's cell, by the arm's name."""

    info: MetricInfo
    decimals: int
    baseline_mean: str
    baseline_spread: str
    baseline_values: str
    real: str | None
    """The same measurement on real images, where there is one."""
    cells: dict[str, Cell]
    apart: dict[str, Apart]

    @property
    def title(self) -> str:
        return f"{self.info.label} ({self.info.direction} is better)"

    def blind(self, arm: Arm) -> bool:
        """Return whether the seeds are too few to see a change."""
        return arm.name in self.cells and self.cells[arm.name].too_few_seeds

    def mean_and_effect(self, arm: Arm) -> str:
        """Return the mean; of an arm the verdict too, with the difference."""
        if arm.role == "baseline":
            return self.baseline_mean
        known = self.cells.get(arm.name) or self.apart.get(arm.name)
        return f"{known.mean if known else numerals.UNKNOWN} ({self.effect(arm)})"

    def effect(self, arm: Arm) -> str:
        """Return the verdict on an arm with the difference; of the baseline the mean and the seed spread."""
        if arm.role == "baseline":
            return f"{self.baseline_mean} {self.baseline_spread}".strip()
        if arm.name in self.apart:
            return f"{findings.NOT_COMPARABLE} ({self.apart[arm.name].short})"
        return self.cells[arm.name].effect if arm.name in self.cells else numerals.UNKNOWN


@dataclass(frozen=True)
class View:
    """The results at one resolution."""

    results: StudyResults
    metrics: Sequence[Column]

    @cached_property
    def baseline(self) -> Arm:
        return findings.baseline_of(self.results)

    @cached_property
    def arms(self) -> list[Arm]:
        return findings.ranked_arms(self.results)

    @property
    def everyone(self) -> list[Arm]:
        return [self.baseline, *self.arms]

    @cached_property
    def primary(self) -> list[Column]:
        names = {metric.name for metric in findings.primary_metrics(self.results)}
        return [column for column in self.metrics if column.info.name in names]

    @property
    def others(self) -> list[Column]:
        return [column for column in self.metrics if column not in self.primary]

    def column(self, metric: str) -> Column:
        return next(column for column in self.metrics if column.info.name == metric)

    @property
    def speed(self) -> Column | None:
        return next((column for column in self.metrics if column.info.name == SPEED), None)

    def speed_words(self, arm: Arm) -> str:
        """Return the throughput of the baseline, and that of an arm relative to it."""
        mean, cell = findings.mean_of(findings.metric_values(arm, SPEED)), self.speed and self.speed.cells.get(arm.name)
        if arm.role == "baseline":
            return "" if mean is None else f"{numerals.significant(mean, 4)} images/s"
        return f"{cell.relative} ({cell.words})" if cell else ""

    @cached_property
    def prompt_groups(self) -> list[list[tuple[str, Column]]]:
        """(kind of prompts, column) of each metric that was taken on several kinds."""
        columns = {column.info.name: column for column in self.metrics}
        groups = findings.metrics_by_prompts(self.results)
        return [[(prompts, columns[metric.name]) for prompts, metric in group] for group in groups]


def columns_of(results: StudyResults) -> Iterator[tuple[StudyResults, list[Column]]]:
    """Yield the results at each resolution with their columns. A metric has the same decimals at all of them."""
    decimals = {metric.name: findings.metric_decimals(results, metric.name) for metric in results.metrics}
    for one in results.by_resolution():
        yield one, [_column(one, metric, decimals[metric.name]) for metric in results.metrics]


def _column(results: StudyResults, metric: MetricInfo, decimals: int) -> Column:
    baseline, name = findings.baseline_of(results), metric.name
    values = findings.metric_values(baseline, name)
    spread, real = findings.spread_of(values), results.reference.get(name, {}).get("overall")
    return Column(
        info=metric,
        decimals=decimals,
        real=None if real is None else numerals.fixed(real, decimals),
        baseline_mean=numerals.fixed(findings.mean_of(values), decimals),
        baseline_spread="" if spread is None else f"± {numerals.fixed(spread, decimals)}",
        baseline_values=_seed_values(baseline, name, decimals),
        cells={arm.name: _cell(results, arm, metric, decimals) for arm in results.arms if name in arm.comparisons},
        apart={arm.name: _apart(arm, name, decimals) for arm in results.arms if name in arm.incomparable},
    )


def _apart(arm: Arm, metric: str, decimals: int) -> Apart:
    return Apart(
        mean=numerals.fixed(findings.mean_of(findings.metric_values(arm, metric)), decimals),
        short=findings.short_reason(arm, metric),
        reason=arm.incomparable[metric],
        values=_seed_values(arm, metric, decimals),
    )


def _cell(results: StudyResults, arm: Arm, metric: MetricInfo, decimals: int) -> Cell:
    comparison = arm.comparisons[metric.name]
    return Cell(
        verdict=comparison.verdict,
        words=comparison.words,
        mean=numerals.fixed(comparison.mean, decimals),
        difference=numerals.fixed(comparison.difference, decimals, signed=True),
        interval=numerals.interval(comparison.low, comparison.high, decimals),
        interval_words=findings.interval_words(results, arm, comparison),
        relative=numerals.percent(findings.relative(comparison)),
        p=numerals.probability(comparison.p),
        p_adjusted=numerals.probability(comparison.p_adjusted),
        detectable=findings.detectable_words(metric, comparison, decimals),
        too_few_seeds=findings.too_few_seeds(metric, comparison),
        sampling=numerals.fixed(comparison.sampling_error, decimals),
        values=_seed_values(arm, metric.name, decimals),
    )


def _seed_values(arm: Arm, metric: str, decimals: int) -> str:
    return " · ".join(numerals.fixed(run.metrics.get(metric), decimals) for run in arm.runs)
