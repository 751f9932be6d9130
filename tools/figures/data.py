"""Read committed data, and write it as the pages do."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any

import yaml

from tintype.page import numerals
from tintype.page.numerals import fixed
from tintype.study.contrasts import is_tested
from tintype.study.numbers import compared_mean
from tintype.study.pooling import PooledMetric, pool_studies
from tintype.study.results import Arm, Comparison, Interval, Replicated, StudyResults
from tintype.study.stats.cells import RAW, Scale, scale_for

ROOT = Path(__file__).parents[2]
BASELINE = "baseline"


@cache
def data(path: str) -> Any:
    """Return a JSON file of the repository."""
    return json.loads((ROOT / path).read_text(encoding="utf-8"))


@dataclass(frozen=True)
class Study:
    """A study's results, by arm and metric."""

    results: StudyResults

    def arm(self, name: str, tokens: int | None = None) -> Arm:
        return next(arm for arm in self.results.arms if arm.name == name and arm.tokens in (tokens, None))

    def values(self, arm: str, metric: str, tokens: int | None = None) -> list[float]:
        return [run.metrics[metric] for run in self.arm(arm, tokens).runs]

    def mean(self, arm: str, metric: str, tokens: int | None = None) -> float:
        """Return the mean as it was compared: geometric of a distance, the baseline's with the control's runs."""
        one = self.arm(arm, tokens)
        (view,) = (view for view in self.results.by_resolution() if view.resolution.name == one.resolution)
        found = compared_mean(view, one, metric)
        assert found is not None
        return found

    def compared(self, arm: str, metric: str, tokens: int | None = None) -> Comparison:
        """Return the comparison with the baseline, after checking that its numbers follow from the runs."""
        comparison = self.arm(arm, tokens).comparisons[metric]
        read, baseline = self.arm(arm, tokens).runs, self.arm(BASELINE, tokens).runs
        if comparison.look:
            seen = self.results.looks[comparison.look - 1].seeds
            read, baseline = ([run for run in runs if run.seed in seen] for runs in (read, baseline))
        new, old = ([run.metrics[metric] for run in runs] for runs in (read, baseline))
        scale = self._scale(metric, self.arm(arm, tokens).resolution, {run.seed for run in read})
        kept = [scale.place(run.metrics[metric]) for run in read if run.seed not in comparison.collapsed]
        expected = [scale.value(fmean(kept)), *(a - b for a, b in zip(new, old, strict=True))]
        there = [comparison.mean, *comparison.differences]
        if any(abs(a - b) > 1e-9 * (1 + abs(b)) for a, b in zip(there, expected, strict=True)):
            raise ValueError(f"{self.results.name}: {arm}, {metric}: the comparison does not follow from the runs")
        return comparison

    def _scale(self, metric: str, resolution: str, seeds: Set[int]) -> Scale:
        """Return the scale on which a metric's runs with these seeds were compared; raw where it is only measured.

        Arms that a look stopped have no runs with later seeds, and are not read with them.
        """
        (info,) = (info for info in self.results.metrics if info.name == metric)
        arms = [arm for arm in self.results.arms if arm.resolution == resolution]
        runs = [[run for run in arm.runs if arm.role == "control" or run.seed in seeds] for arm in arms]
        sets = [[run.metrics[metric] for run in some] for some in runs if len(some) >= len(seeds)]
        return scale_for(info.scale or "raw", sets, info.pad) if is_tested(metric) else RAW

    def verdicts(self, arms: Iterable[str], metrics: Iterable[str], tokens: int | None = None) -> set[str]:
        metrics = list(metrics)
        return {self.compared(arm, metric, tokens).verdict for arm in arms for metric in metrics}

    @property
    def primary(self) -> list[str]:
        return [metric.name for metric in self.results.metrics if metric.primary]

    @property
    def arms(self) -> list[str]:
        return list(dict.fromkeys(arm.name for arm in self.results.arms if arm.role == "arm"))

    @property
    def intervals(self) -> int:
        """The number of comparisons that were tested, and so have intervals."""
        trends = [trend.comparison for trend in self.results.trends if trend.comparison is not None]
        rows = [row for arm in self.results.arms for row in arm.comparisons.values()]
        return sum(row.verdict != "measured" for row in [*rows, *trends])

    @property
    def plan(self) -> Any:
        """The baseline's plan."""
        return yaml.safe_load(self.results.resolution.plan)

    def setup(self) -> str:
        """Return how long a run is, as `500 steps of 128 images`; all arms whose plan says nothing else."""
        return f"{self.plan['train']['steps']:,} steps of {self.plan['train']['batch']} images"


@cache
def study(name: str) -> Study:
    text = (ROOT / "studies" / name / "results.json").read_text(encoding="utf-8")
    return Study(StudyResults.model_validate_json(text))


@cache
def pooled(arm: str, metric: str, *names: str) -> PooledMetric:
    """Return one metric of an arm, read together from these studies."""
    (found,) = pool_studies([ROOT / "studies" / name for name in names], [arm]).arms
    assert len(found.names) == len(names)
    return next(one for one in found.metrics if one.metric == metric)


def signed(value: float, digits: int) -> str:
    return fixed(value, digits, signed=True)


def interval(one: Comparison | Replicated, digits: int) -> str:
    """`+0.139 [+0.121, +0.157]`; of a replicated verdict, the fresh difference."""
    if isinstance(one, Replicated):
        assert one.fresh is not None
        value, low, high = one.fresh.value, one.fresh.low, one.fresh.high
    else:
        value, low, high = one.difference, one.low, one.high
    assert low is not None and high is not None
    return f"{signed(value, digits)} {numerals.interval(low, high, digits).replace(numerals.NO_BREAK, ' ')}"


def within(one: Interval, digits: int) -> str:
    """`−0.032 [−0.066, −0.002]`."""
    assert one.low is not None and one.high is not None
    ends = numerals.interval(one.low, one.high, digits).replace(numerals.NO_BREAK, " ")
    return f"{signed(one.value, digits)} {ends}"


def judged(one: Comparison, digits: int) -> str:
    """An interval with its verdict; a difference that is shown stands out."""
    text = f"{interval(one, digits)} {one.verdict}"
    return f"**{text}**" if one.verdict in ("better", "worse") else text


def each(values: Iterable[float], digits: int) -> str:
    return ", ".join(fixed(value, digits) for value in values)


def relative(one: Comparison) -> float:
    return one.difference / one.baseline_mean


def percent(ratio: float, digits: int = 0) -> str:
    return f"{signed(100 * ratio, digits)}%"


def spread(values: Iterable[float], write: Callable[[float], str], to: str = " to ") -> str:
    """The least and the largest of some values, once where they read the same."""
    values = list(values)
    low, high = write(min(values)), write(max(values))
    return low if low == high else f"{low}{to}{high}"


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(row)} |".replace("|  |", "| |") for row in [header, ["---"] * len(header), *rows]]
