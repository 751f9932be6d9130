"""The numbers of a report in writing, as the page and the Markdown both show them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from tintype.page import numerals
from tintype.study.report import findings
from tintype.study.results import SPEED, Arm, Comparison, MetricInfo, StudyResults
from tintype.study.trust import Trust, trust

TRUST_HEADS = ("Metric", "Baseline", "Seed spread", "of the mean", "Sampling error of one run", "Signal-to-noise")
"""Heads of the table of trust; `TRUST_BIAS` is a further one where the bias of a run is known."""
TRUST_BIAS = "Bias, of the mean"


@dataclass(frozen=True)
class Column:
    """One metric of all arms at one resolution, and how its numbers are written."""

    results: StudyResults
    info: MetricInfo
    decimals: int

    @cached_property
    def cells(self) -> dict[str, Comparison]:
        """Return the comparisons with the baseline, by the arm's name."""
        name = self.info.name
        return {arm.name: arm.comparisons[name] for arm in self.results.arms if name in arm.comparisons}

    @property
    def title(self) -> str:
        return f"{self.info.label} ({self.info.direction} is better)"

    @property
    def real(self) -> float | None:
        """Return the same measurement on real images, where there is one."""
        return self.results.resolution.reference.get(self.info.name, {}).get("overall")

    def written(self, value: float | None, *, signed: bool = False) -> str:
        return numerals.fixed(value, self.decimals, signed=signed)

    def fallen(self, arm: Arm) -> set[int]:
        """Return the seeds of an arm's runs that fell off, which its mean and its spread leave out."""
        return self.results.fallen(arm, self.info.name)

    def mean(self, arm: Arm) -> str:
        """Return the mean as it is compared; of an arm that is not compared, that of the same kind."""
        return self.written(findings.compared_mean(self.results, arm, self.info.name))

    def spread(self, arm: Arm) -> str:
        """Return the seed spread; of the baseline that of the runs of its mean, and how many of them fell off."""
        alike = self.results.like_baseline(self.info.name) if arm.role == "baseline" else [arm]
        values = [value for one in alike for value in findings.metric_values(one, self.info.name, self.fallen(one))]
        spread, runs = findings.spread_of(values), [(one, run) for one in alike for run in one.runs]
        fell = sum(run.seed in self.fallen(one) for one, run in runs) if arm.role == "baseline" else 0
        words = f"({fell} of {len(runs)} runs fell off, left out)" if fell else ""
        return " ".join(filter(None, ["" if spread is None else f"± {self.written(spread)}", words]))

    def values(self, arm: Arm) -> str:
        """Return the value of each seed."""
        return " · ".join(self.written(run.metrics.get(self.info.name)) for run in arm.runs)

    def difference(self, cell: Comparison) -> str:
        """Return the difference with its interval."""
        return f"{self.written(cell.difference, signed=True)} {self.interval(cell)}".strip()

    def interval(self, cell: Comparison) -> str:
        return numerals.interval(cell.low, cell.high, self.decimals)

    def corrected(self, cell: Comparison) -> str:
        """Return the estimate that allows for the selection of large differences; empty where there is none."""
        if cell.corrected is None or cell.verdict not in ("better", "worse"):
            return ""
        interval = numerals.interval(cell.corrected.low, cell.corrected.high, self.decimals)
        return f"corrected for selection {self.written(cell.corrected.value, signed=True)} {interval}"

    def replication(self, arm: Arm) -> str:
        return findings.replication_words(self.results, arm, self.info.name)

    def detectable(self, cell: Comparison) -> str:
        return findings.detectable_words(self.info, cell, self.decimals)

    def blind(self, arm: Arm) -> bool:
        """Return whether the seeds are too few to see a change."""
        return arm.name in self.cells and findings.too_few_seeds(self.info, self.cells[arm.name])

    def effect(self, arm: Arm) -> str:
        """Return the verdict on an arm with the difference; of the baseline the mean and the seed spread."""
        if arm.role == "baseline":
            return f"{self.mean(arm)} {self.spread(arm)}".strip()
        if self.info.name in arm.incomparable:
            return f"{findings.NOT_COMPARABLE} ({findings.short_reason(arm, self.info.name)})"
        if (cell := self.cells.get(arm.name)) is None:
            return numerals.UNKNOWN
        difference = f": {self.difference(cell)}" if cell.differences else ""
        return "; ".join(
            filter(None, [findings.marked(cell) + difference, self.corrected(cell), self.replication(arm)])
        )

    def mean_and_effect(self, arm: Arm) -> str:
        """Return the mean; of an arm the verdict too, with the difference."""
        return self.mean(arm) if arm.role == "baseline" else f"{self.mean(arm)} ({self.effect(arm)})"


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

    def in_words(self, arm: Arm) -> list[tuple[str, str]]:
        """Return (verdict, words) of an arm on the primary metrics, those with the same verdict together.

        Better in some and worse in others is one verdict, "mixed".
        """
        found: dict[str, list[str]] = {}
        for column in self.primary:
            cell, verdict, words = column.cells.get(arm.name), findings.verdict_of(arm, column.info), column.info.label
            if cell is not None and verdict in ("better", "worse"):
                words += f" ({column.written(cell.difference, signed=True)})"
            found.setdefault(verdict, []).append(words)
        said = {one: f"{findings.VERDICT_PHRASES.get(one, one)} in {' and '.join(of)}" for one, of in found.items()}
        if {"better", "worse"} <= said.keys():
            both = f"{said.pop('better')}, but {said.pop('worse')}: {findings.DECIDE}"
            return [(findings.MIXED, both), *said.items()]
        return list(said.items())

    def column(self, metric: str) -> Column:
        return next(column for column in self.metrics if column.info.name == metric)

    @property
    def speed(self) -> Column | None:
        return next((column for column in self.metrics if column.info.name == SPEED), None)

    def speed_words(self, arm: Arm) -> str:
        """Return the cost of an arm's step where it was measured alone; else the throughput.

        That is shown of the baseline, and of an arm relative to it where it can be compared. Peak memory comes last.
        """
        if words := findings.step_words(self.results, arm):
            return words
        return "; ".join(filter(None, [self._throughput_words(arm), findings.memory_words(arm)]))

    @property
    def measured(self) -> bool:
        """Return whether anything was measured of an arm alone."""
        return any(arm.alone is not None for arm in self.results.arms)

    def _throughput_words(self, arm: Arm) -> str:
        mean, cell = findings.mean_of(findings.metric_values(arm, SPEED)), self.speed and self.speed.cells.get(arm.name)
        if arm.role == "baseline":
            return "" if mean is None else f"{numerals.significant(mean, 4)} images/s"
        if not cell:
            return ""
        return findings.NOT_COMPARABLE if findings.speed_note(self.results) else findings.speed_words(cell)

    def trust_rows(self, biased: bool = False) -> list[list[str]]:
        """Return a row for each metric that has a spread or an error; where `biased` with its bias."""
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
        """Return (kind of prompts, column) of each metric that was measured on several kinds."""
        columns = {column.info.name: column for column in self.metrics}
        groups = findings.metrics_by_prompts(self.results)
        return [[(prompts, columns[metric.name]) for prompts, metric in group] for group in groups]


def columns_of(results: StudyResults) -> Iterator[tuple[StudyResults, list[Column]]]:
    """Yield the results at each resolution with their columns. A metric has the same decimals at all of them."""
    decimals = {metric.name: findings.metric_decimals(results, metric.name) for metric in results.metrics}
    for one in results.by_resolution():
        yield one, [Column(one, metric, decimals[metric.name]) for metric in results.metrics]
