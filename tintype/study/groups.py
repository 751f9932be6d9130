"""The runs of a study as the shared method compares them: by metric, on its scale, without those that fell off."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tintype.evaluation.protocol import Definition
from tintype.metrics.metric import NOT_NEGATIVE
from tintype.study.fallen import fallen_runs
from tintype.study.pairs import Pair
from tintype.study.results import MetricInfo, Role, Run
from tintype.study.spread import Groups, Term, against


@dataclass(frozen=True)
class MetricGroups:
    """The values of one metric at one resolution."""

    healthy: Groups
    log: bool
    baselines: tuple[str, ...]
    """The labels of the baseline and of the control, if there is one: runs of one plan."""
    fallen: Mapping[str, Sequence[int]]
    """Seeds of runs that fell off, by the arm's label."""

    def term(self, label: str) -> Term | None:
        """Return the arm against the baseline's plan, the control against the baseline; None without runs."""
        baselines = self.baselines[:1] if label in self.baselines else self.baselines
        if not all(self.healthy.values.get(one) for one in (label, self.baselines[0])):
            return None
        return against(self.healthy, label, baselines)

    def compared(self, pair: Pair, label: str) -> Pair:
        """Return the pair with what the shared method compares."""
        term, fallen = self.term(label), tuple(self.fallen.get(label, ()))
        of_baseline = tuple(seed for one in self.baselines if one != label for seed in self.fallen.get(one, ()))
        if term is None:
            return pair
        return replace(pair, terms=(term,), log=self.log, fallen=fallen, baseline_fallen=of_baseline)


def metric_groups(
    arms: Mapping[str, Role],
    runs: Mapping[str, Sequence[Run]],
    metric: str,
    meaning: Definition | MetricInfo,
    ratios: bool = False,
) -> MetricGroups:
    """Collect a metric's values of the arms of one resolution, the baseline first. Keys are the arms' labels.

    Distances and losses are compared as logarithms, where all are positive: their spread grows with their size. So is
    any metric where `ratios` to the baseline are compared; arms with values that are not positive are left out then.
    """
    values = {label: _finite(runs[label], metric) for label in arms}
    if ratios:
        values = {label: of for label, of in values.items() if all(value > 0 for value in of.values())}
    known = [value for by_seed in values.values() for value in by_seed.values()]
    log = ratios or (meaning.range == NOT_NEGATIVE and all(value > 0 for value in known))
    if log:
        values = {label: {seed: math.log(value) for seed, value in of.items()} for label, of in values.items()}
    baselines = tuple(label for label, role in arms.items() if role != "arm")
    groups = Groups(values, dict.fromkeys(baselines[1:], baselines[0]))
    fallen = {label: found for label in values if (found := fallen_runs(groups, label, meaning.direction, log))}
    return MetricGroups(groups.without(fallen), log, baselines, fallen)


def _finite(runs: Sequence[Run], metric: str) -> dict[int, float]:
    values = {run.seed: run.metrics.get(metric, math.nan) for run in runs if run.loss(metric) is None}
    return {seed: value for seed, value in values.items() if math.isfinite(value)}
