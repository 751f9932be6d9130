"""Format the numbers of a report as text, for the page and the Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from tintype.page import numerals
from tintype.study.notes import DECIDE, uneven_speed
from tintype.study.numbers import (
    FOUND,
    NOT_COMPARABLE,
    baseline_of,
    compared_mean,
    mean_of,
    metric_decimals,
    metric_values,
    primary_metrics,
    ranked_arms,
    short_reason,
    spread_of,
    verdict_of,
)
from tintype.study.prompts import metrics_by_prompts
from tintype.study.report import findings
from tintype.study.results import SPEED, Arm, MetricInfo, StudyResults
from tintype.study.rows import MIXED, Row, rows_of
from tintype.study.stats.contrast import OF_ARMS, Kind
from tintype.study.trust import Trust, trust

TRUST_HEADS = ("Metric", "Baseline", "Seed spread", "of the mean", "Sampling error of one run", "Signal-to-noise")
"""Column heads of the table of trust; `TRUST_BIAS` is an additional column if the bias of a run is known."""
TRUST_BIAS = "Bias, of the mean"


@dataclass(frozen=True)
class Column:
    """One metric of all arms at one resolution, with the format of its numbers."""

    results: StudyResults
    info: MetricInfo
    decimals: int
    rows: Mapping[str, Row]
    """The verdicts on the compared arms, by the arms' names."""

    @property
    def title(self) -> str:
        return f"{self.info.label} ({self.info.direction} is better)"

    @property
    def real(self) -> float | None:
        """Return the same metric measured on real images; None if there is no such value."""
        return self.results.resolution.reference.get(self.info.name, {}).get("overall")

    def written(self, value: float | None, *, signed: bool = False) -> str:
        return numerals.fixed(value, self.decimals, signed=signed)

    def collapsed(self, arm: Arm) -> set[int]:
        """Return the seeds of an arm's collapsed runs, which its mean and its spread leave out."""
        return self.results.collapsed(arm, self.info.name)

    def mean(self, arm: Arm) -> str:
        """Return the mean that the comparison uses; for an arm without a comparison, a mean of the same kind."""
        row, spread = self.rows.get(arm.name), self._spread(arm)
        decimals = row.decimals if row else self.decimals if spread is None else numerals.decimals_showing(spread)
        return numerals.fixed(compared_mean(self.results, arm, self.info.name), decimals)

    def spread(self, arm: Arm) -> str:
        """Return the seed spread; for the baseline, the spread of the runs in its mean, and the collapsed count."""
        spread, runs = self._spread(arm), [(one, run) for one in self._alike(arm) for run in one.runs]
        fell = sum(run.seed in self.collapsed(one) for one, run in runs) if arm.role == "baseline" else 0
        words = f"({fell} of {len(runs)} runs collapsed, left out)" if fell else ""
        shown = "" if spread is None else f"± {numerals.fixed(spread, numerals.decimals_showing(spread))}"
        return " ".join(filter(None, [shown, words]))

    def _alike(self, arm: Arm) -> list[Arm]:
        return self.results.like_baseline(self.info.name) if arm.role == "baseline" else [arm]

    def _spread(self, arm: Arm) -> float | None:
        name = self.info.name
        return spread_of([v for one in self._alike(arm) for v in metric_values(one, name, self.collapsed(one))])

    def values(self, arm: Arm) -> str:
        return " · ".join(self.written(run.metrics.get(self.info.name)) for run in arm.runs)

    def effect(self, arm: Arm) -> str:
        """Return the verdict on an arm with the difference; for the baseline, return the mean and the seed spread."""
        if arm.role == "baseline":
            return f"{self.mean(arm)} {self.spread(arm)}".strip()
        if self.info.name in arm.incomparable:
            return f"{NOT_COMPARABLE} ({short_reason(arm, self.info.name)})"
        if (row := self.rows.get(arm.name)) is None:
            return numerals.UNKNOWN
        difference = f": {row.difference}" if row.comparison and row.comparison.differences else ""
        return "; ".join(filter(None, [row.marked + difference, row.corrected, row.replicated]))

    def mean_and_effect(self, arm: Arm) -> str:
        return self.mean(arm) if arm.role == "baseline" else f"{self.mean(arm)} ({self.effect(arm)})"


@dataclass(frozen=True)
class View:
    """The results at one resolution."""

    results: StudyResults
    metrics: Sequence[Column]
    rows: Sequence[Row]
    """Other verdicts at this resolution, on pairs of arms and on factors."""

    def rows_on(self, *kinds: Kind) -> list[Row]:
        return [row for row in self.rows if row.kind in kinds]

    @cached_property
    def baseline(self) -> Arm:
        return baseline_of(self.results)

    @cached_property
    def arms(self) -> list[Arm]:
        return ranked_arms(self.results)

    @property
    def everyone(self) -> list[Arm]:
        return [self.baseline, *self.arms]

    @cached_property
    def primary(self) -> list[Column]:
        names = {metric.name for metric in primary_metrics(self.results)}
        return [column for column in self.metrics if column.info.name in names]

    @property
    def others(self) -> list[Column]:
        return [column for column in self.metrics if column not in self.primary]

    def in_words(self, arm: Arm) -> list[tuple[str, str]]:
        """Return (verdict, text) of primary metrics by verdict; an arm better in some, worse in others is "mixed"."""
        found: dict[str, list[str]] = {}
        for column in self.primary:
            row, verdict, words = column.rows.get(arm.name), verdict_of(arm, column.info), column.info.label
            if row is not None and verdict in FOUND:
                words += f" ({row.change})"
            found.setdefault(verdict, []).append(words)
        said = {one: f"{findings.VERDICT_PHRASES.get(one, one)} in {' and '.join(of)}" for one, of in found.items()}
        if {"better", "worse"} <= said.keys():
            both = f"{said.pop('better')}, but {said.pop('worse')}: {DECIDE}"
            return [(MIXED, both), *said.items()]
        return list(said.items())

    def column(self, metric: str) -> Column:
        return next(column for column in self.metrics if column.info.name == metric)

    @property
    def speed(self) -> Column | None:
        return next((column for column in self.metrics if column.info.name == SPEED), None)

    def speed_words(self, arm: Arm) -> str:
        """Return an arm's step time alone, or else its throughput relative to the baseline; then its peak memory."""
        if words := findings.step_words(self.results, arm):
            return words
        return "; ".join(filter(None, [self._throughput_words(arm), findings.memory_words(arm)]))

    @property
    def measured(self) -> bool:
        """Return whether any arm was measured alone on a GPU."""
        return any(arm.alone is not None for arm in self.results.arms)

    def _throughput_words(self, arm: Arm) -> str:
        mean, row = mean_of(metric_values(arm, SPEED)), self.speed and self.speed.rows.get(arm.name)
        if arm.role == "baseline":
            return "" if mean is None else f"{numerals.significant(mean, 4)} images/s"
        if not row or row.comparison is None:
            return ""
        uneven = uneven_speed(self.results) and not self.results.timed_alone
        return NOT_COMPARABLE if uneven else findings.speed_words(row.comparison)

    def trust_rows(self, biased: bool = False) -> list[list[str]]:
        """Return a row for each metric with a spread or an error; if `biased` is true, also with its bias."""
        rows = [row for row in trust(self.results) if row.seed_spread is not None or row.sampling_error is not None]
        bias = [[numerals.share(row.relative_bias)] if biased else [] for row in rows]
        return [[*self._trust_row(row), *of_row] for row, of_row in zip(rows, bias, strict=True)]

    def _trust_row(self, row: Trust) -> list[str]:
        column = self.column(row.metric.name)
        return [
            column.info.label,
            column.written(row.baseline_mean),
            f"{numerals.significant(row.seed_spread, 2)} ({row.seeds} seeds)",
            numerals.share(row.relative_spread),
            numerals.significant(row.sampling_error, 2),
            numerals.significant(row.signal_to_noise, 2),
        ]

    @cached_property
    def prompt_groups(self) -> list[list[tuple[str, Column]]]:
        """Return (kind of prompts, column) of each metric that was measured on several kinds of prompts."""
        columns = {column.info.name: column for column in self.metrics}
        groups = metrics_by_prompts(self.results)
        return [[(prompts, columns[metric.name]) for prompts, metric in group] for group in groups]


def parts_of(results: StudyResults) -> Iterator[tuple[StudyResults, list[Column], list[Row]]]:
    """Yield the inputs of a `View` for each resolution; a metric has the same decimals at all resolutions."""
    decimals = {metric.name: metric_decimals(results, metric.name) for metric in results.metrics}
    every = rows_of(results)
    for one in results.by_resolution():
        here = [row for row in every if row.resolution == one.resolution.name]
        compared = {metric.name: dict[str, Row]() for metric in one.metrics}
        for row in here:
            if row.kind in OF_ARMS and row.comparison:
                compared[row.metric.name][row.arm] = row
        columns = [Column(one, metric, decimals[metric.name], compared[metric.name]) for metric in one.metrics]
        yield one, columns, [row for row in here if row.kind not in OF_ARMS]
