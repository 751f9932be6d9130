"""Compute the number of seeds that a study needs from the seed spread of past studies.

A study compares means of single runs, and uses logarithms for distances and losses. So the relevant spread is that of
single runs, pooled over the baseline and all arms. A spread from few runs is uncertain, so every number has a range,
computed from the chi-square interval of the spread. A run counts once, even if it is given several times.
"""

from __future__ import annotations

import json
import math
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

from pydantic import ValidationError

from tintype.config.strict import nearest, read_yaml
from tintype.errors import UserError
from tintype.evaluation.protocol import Protocol
from tintype.settings import Plain, plain
from tintype.study.analysis import DEFAULT
from tintype.study.contrasts import asked_of, count_comparisons, is_tested
from tintype.study.costs import has_baseline
from tintype.study.effect import Effect, parse_effect
from tintype.study.looks import SeedPlan
from tintype.study.numbers import metric_values
from tintype.study.results import Arm, MetricInfo, StudyResults, arm_label, read_results_file
from tintype.study.runs import metric_infos
from tintype.study.stats.cells import ScaleKind, rounding_of, scale_for
from tintype.study.stats.estimate import (
    POWER,
    detectable_in_errors,
    deviation_range,
    planned_widening,
    same_power,
    t_power,
)
from tintype.study.stats.family import FIRST_SHARE, Counts, confidence_of, counts_of, planned_shares
from tintype.study.stats.spread import Variance, planned_error, variance
from tintype.study.study import Study
from tintype.wording import option, rendered

MOST_SEEDS = 1_000
SEEDS = (3, 5, 8, 16, 32)
"""Affordable numbers of seeds, for which detectable changes are always shown."""
FEW_DEGREES = 10
"""With fewer degrees of freedom than this, the true spread may differ from the measured spread by a factor of 1.5."""
_UNLIKE = 3.0


@dataclass(frozen=True)
class Spread:
    """A standard deviation over seeds, pooled over arms and studies, and its degrees of freedom."""

    deviation: float
    freedom: float

    @property
    def range(self) -> tuple[float, float]:
        return deviation_range(self.deviation, self.freedom)


@dataclass(frozen=True)
class MetricPower:
    """The power of the planned study for one metric, for the measured, smallest and largest spread."""

    metric: MetricInfo
    baseline: float
    """The baseline's mean in comparisons, which is geometric for logarithms and includes the control's runs."""
    scale: ScaleKind
    """Scale of the comparison, on which `spread` is measured."""
    spread: Spread
    """Spread of single runs on this scale."""
    deviation: float
    """Spread of single runs in the metric's unit, which is half of the range within one deviation of the baseline."""
    by_arm: dict[str, float]
    """The spread of the runs of each arm, by the arm's label."""
    level: float
    power: Sequence[float] | None
    """Probability that the study finds the effect; None if the effect is relative and the baseline's mean is zero."""
    detectable: Sequence[float]
    by_seeds: dict[int, Sequence[float]]
    """The detectable changes for other numbers of seeds, in ascending order."""
    seeds_needed: Sequence[int | None] | None
    """Number of seeds with which 80% of studies find the effect; a None inside means more than a thousand."""
    margin: str
    """The margin: the largest difference for which the verdict can be *same*."""
    same: Sequence[float] | None
    """Probability of the verdict "same" for an arm without a difference; None if the margin is zero."""
    same_seeds: Sequence[int | None] | None
    """Number of seeds with which 80% of studies call an arm without an effect *same*; None as in `seeds_needed`."""


@dataclass(frozen=True)
class Group:
    """Studies with the same baseline and protocol, whose spreads are pooled."""

    studies: list[str]
    comparisons: Counts
    """Numbers of comparisons of the new study for these metrics, which determine the levels."""
    metrics: list[MetricPower]
    notes: list[str]
    stored: int = 0
    """Number of stored baseline runs that the new study uses."""


@dataclass(frozen=True)
class PowerPlan:
    """A planned study, the effect that it should detect, and its power according to groups of past studies."""

    effect: Effect
    seeds: int
    arms: int
    control: bool
    """Whether one of the arms is the control, which has no trend over resolutions."""
    resolutions: int
    groups: list[Group]
    skipped: list[str]
    """Studies without a known spread, and the reasons."""
    between: int = 0
    stored: int = 0
    """Number of stored baseline runs that the new study uses because of `analysis.bank`."""

    @property
    def has_control(self) -> bool:
        return self.control and self.arms > 1

    def comparisons(self, metrics: Sequence[MetricInfo]) -> Counts:
        primary = [info.name for info in metrics if info.primary]
        names = [info.name for info in metrics]
        arms = self.arms - self.has_control
        return count_comparisons(arms, self.has_control, self.resolutions, primary, names, between=self.between)

    def error(self, seeds: int) -> Variance:
        """Return the squared standard error of a difference for a spread of one, and its degrees of freedom."""
        return planned_error(seeds, self.arms - self.has_control, self.has_control, self.stored)

    def power(self, effect: float, spread: float, seeds: int, confidence: float) -> float:
        """Return the fraction of studies with this many seeds that find the effect."""
        error = self.error(seeds)
        arms = self.arms - self.has_control
        wide = planned_widening(seeds, arms, self.has_control, confidence, self.stored)
        return t_power(effect / (wide * spread * math.sqrt(error.value)), error.freedom, confidence)

    def detectable(self, spread: float, confidence: float, seeds: int) -> float:
        """Return the effect that a study with this many seeds finds with a probability of 80%."""
        error = self.error(seeds)
        arms = self.arms - self.has_control
        wide = planned_widening(seeds, arms, self.has_control, confidence, self.stored)
        return wide * detectable_in_errors(error.freedom, confidence) * spread * math.sqrt(error.value)

    def same(self, margin: float, spread: float, seeds: int, confidence: float) -> float:
        """Return the probability of the verdict "same" for an arm without a difference, with this many seeds."""
        error = self.error(seeds)
        wide = planned_widening(seeds, self.arms - self.has_control, self.has_control, confidence, self.stored)
        return same_power(margin / (wide * spread * math.sqrt(error.value)), error.freedom, confidence)

    def seeds_needed(self, effect: float, spread: float, confidence: float) -> int | None:
        """Return the fewest seeds, at least two, that find the effect with 80% power; None above a thousand."""
        return _fewest(lambda seeds: self.power(effect, spread, seeds, confidence))

    def same_seeds(self, margin: float, spread: float, confidence: float) -> int | None:
        """Return the fewest seeds with which 80% of studies call an arm without a difference *same*, or None."""
        return _fewest(lambda seeds: self.same(margin, spread, seeds, confidence))


def _fewest(chance: Callable[[int], float]) -> int | None:
    """Return the smallest number of seeds, at least two, with a probability of 80%; None above a thousand."""
    tried = range(2, MOST_SEEDS + 1)
    return tried[bisect_left(tried, POWER, key=chance)] if chance(MOST_SEEDS) >= POWER else None


_ARMS = 3
"""Number of arms of the new study, if no past study gives this number."""


def _past_design(files: Sequence[Path]) -> tuple[int, bool, int]:
    """Return the design of a single past study, which is its arms, whether one is a control, and its pairs of arms."""
    if len(files) != 1:
        return _ARMS, True, 0
    past = read_results_file(files[0])
    roles = {arm.name: arm.role for arm in past.arms if arm.role != "baseline"}
    pairs = {(pair.first, pair.second) for pair in past.between}
    return max(1, len(roles)), "control" in roles.values(), len(pairs)


def plan_power(
    paths: Sequence[Path],
    effect: str,
    seeds: int,
    metric: str | None,
    arms: int | None,
    without: Sequence[str] = (),
    resolutions: int = 1,
    control: bool | None = None,
    between: int | None = None,
    bank: bool = False,
) -> PowerPlan:
    """Estimate from past studies which effects a study with `seeds` seeds and `arms` arms (including the control) would
    find, compared with `effect`.

    `paths` are results.json files, folders of a study, or folders of such folders. `without` names arms whose spreads
    are left out. If there is only one past study, its values are the defaults of `arms`, `control` and `between`
    (declared pairs of arms). With `bank`, the new study uses the baseline's runs of the past studies, as with
    `analysis.bank`.
    """
    wanted = parse_effect(effect, option("effect", effect))
    files = _files(paths)
    past_arms, past_control, pairs = _past_design(files)
    arms, control = past_arms if arms is None else arms, past_control if control is None else control
    for of, given, least in (("seeds", seeds, 2), ("arms", arms, 1), ("resolutions", resolutions, 1)):
        if given < least:
            raise UserError(f"{option(of, given)} is too small", f"give {least} or more")
    useful: list[StudyResults] = []
    skipped: list[str] = []
    for path in files:
        for one in read_results_file(path).by_resolution():  # each has its own baseline, so it counts as a study
            if reason := _useless(one, without) or _repeated(one, useful):
                skipped.append(f"{arm_label(path.parent.name, one.resolution.name)}: {reason}")
            else:
                useful.append(one.model_copy(update={"name": arm_label(one.name, one.resolution.name)}))
    if not useful:
        raise UserError(
            f"the seed spread cannot be estimated from {', '.join(map(str, paths))} ({'; '.join(skipped)})",
            "give a study with at least two seeds and one arm, or run such a study with `tintype ablate`",
        )
    _check_names(useful, metric, without)
    plan = PowerPlan(wanted, seeds, arms, control, resolutions, [], skipped, pairs if between is None else between)
    alike: dict[str, list[StudyResults]] = {}
    for results in useful:
        alike.setdefault(_identity(results), []).append(results)
    groups = [
        _group(of_one, replace(plan, stored=_stored(of_one) if bank else 0), metric, without)
        for of_one in alike.values()
    ]
    return replace(plan, groups=[group for group in groups if group.metrics])


def _stored(studies: Sequence[StudyResults]) -> int:
    """Return the number of different baseline runs in these studies."""
    return len({h for results in studies for arm in results.arms if arm.role != "arm" for h in _hashes(arm)})


def _files(paths: Sequence[Path]) -> list[Path]:
    distinct: dict[Path, Path] = {}
    for path in paths:
        found = [one for one in (path, path / "results.json") if one.is_file()] or sorted(path.glob("*/results.json"))
        if not found:
            raise UserError(
                f"{path}: no studies found",
                "give a results.json, a study's folder, or a folder of studies; `tintype ablate STUDY --out "
                "DIR` makes a study",
            )
        for file in found:
            distinct.setdefault(file.resolve(), file)
    return list(distinct.values())


def _useless(results: StudyResults, without: Sequence[str]) -> str | None:
    """Return the reason why a study has no spread of differences; None if it has a spread."""
    if len(results.seeds) == 1:
        return "one seed only, so its spread is not known"
    if not any(len(one.differences) > 1 for arm in _arms(results, without) for one in arm.comparisons.values()):
        return "no arm that was compared with at least two seeds"
    return None


def _repeated(results: StudyResults, others: Iterable[StudyResults]) -> str | None:
    """Return why a study counts as a copy of another one, or None. Other scores of the same runs are no copy."""
    runs = [_hashes(arm) for arm in results.arms]
    for other in others:
        if runs == [_hashes(arm) for arm in other.arms] and _identity(results) == _identity(other):
            return f"the same runs as in {other.name}, and each run counts once"
    return None


def _hashes(arm: Arm) -> set[str]:
    return {run.hash for run in arm.runs if run.state == "done"}


def _arms(results: StudyResults, without: Sequence[str]) -> list[Arm]:
    return [arm for arm in results.arms if arm.role == "arm" and arm.name not in without]


def _check_names(studies: Sequence[StudyResults], metric: str | None, without: Sequence[str]) -> None:
    metrics = dict.fromkeys(one.name for study in studies for one in study.metrics)
    if metric is not None and metric not in metrics:
        raise UserError(f"unknown metric '{metric}'", nearest(metric, metrics))
    arms = dict.fromkeys(arm.name for study in studies for arm in study.arms if arm.role == "arm")
    for name in without:
        if name not in arms:
            raise UserError(f"unknown arm '{name}'", nearest(name, arms))


def _identity(results: StudyResults) -> str:
    """Return the baseline's plan, the protocol and the metric definitions, without seed and housekeeping settings."""
    plan = read_yaml(results.resolution.plan, "the plan").data
    if isinstance(plan, dict):
        plan = {key: value for key, value in plan.items() if key not in ("seed", "run")}
    revised = {one.name: one.revision for one in results.metrics if one.revision > 1}
    return repr((plan, _protocol(results), revised))


def _protocol(results: StudyResults) -> Plain:
    """Return the protocol with settings added later, and without the stages' image size, which final scores ignore."""
    try:
        whole = plain(Protocol.model_validate_json(json.dumps(results.protocol)))
    except ValidationError:  # of a plugin that is not loaded, for example
        whole = dict(results.protocol)
    return {key: value for key, value in whole.items() if key != "size"}


def _group(studies: list[StudyResults], plan: PowerPlan, metric: str | None, without: Sequence[str]) -> Group:
    infos = {info.name: info for results in reversed(studies) for info in results.metrics}
    names = dict.fromkeys(info.name for results in studies for info in results.metrics)
    ordered = sorted((infos[name] for name in names), key=lambda info: not info.primary)
    counts = plan.comparisons(ordered)
    rows = [
        row
        for info in ordered
        if metric in (None, info.name) and (row := _metric_power(studies, info, plan, counts, without)) is not None
    ]
    return Group([results.name for results in studies], counts, rows, list(_notes(rows, without)), plan.stored)


def _metric_power(
    studies: Sequence[StudyResults],
    info: MetricInfo,
    plan: PowerPlan,
    counts: Counts,
    without: Sequence[str] = (),
    share: float = FIRST_SHARE,
) -> MetricPower | None:
    """Compute the power for one metric; None if it is not tested, not measured, or equal for all seeds."""
    if not is_tested(info.name):
        return None
    changed = _once(arm for results in studies for arm in _arms(results, without) if info.name in arm.comparisons)
    unchanged = _once(arm for results in studies for arm in results.arms if arm.role != "arm")
    collapsed = _collapsed(studies, info.name)
    sets = {id(arm): _healthy(arm, info.name, collapsed) for arm in (*unchanged, *changed)}
    scale = scale_for(info.scale or "raw", list(sets.values()), info.pad)

    def runs(arm: Arm) -> list[float]:
        return [scale.place(value) for value in sets[id(arm)]]

    spread = pooled(runs(arm) for arm in (*unchanged, *changed))
    known = [place for arm in unchanged for place in runs(arm)]
    if spread is None or not known or spread.deviation <= rounding_of(known, 0.0 if scale.kind == "raw" else 1.0):
        return None
    old = fmean(known)
    baseline = scale.value(old)
    target = plan.effect.on(baseline)
    up, down = scale.change(old, target), scale.change(old, -target) if scale.kind == "logit" else -math.inf
    effect = min(abs(up), abs(down))  # the harder side, as `detectable` takes it
    confidence = confidence_of(share * counts.weight(info.primary))
    margin = DEFAULT.margin_of(info.name, info.margin)
    within = scale.margin(old, margin.on(baseline))
    likely = (spread.deviation, *spread.range)

    def detectable(seeds: int) -> list[float]:
        return [scale.size(old, plan.detectable(one, confidence, seeds)) for one in likely]

    return MetricPower(
        metric=info,
        baseline=baseline,
        scale=scale.kind,
        spread=spread,
        deviation=(scale.difference(old, spread.deviation) - scale.difference(old, -spread.deviation)) / 2,
        by_arm=_by_arm(changed, runs),
        level=1 - confidence,
        power=[plan.power(effect, one, plan.seeds, confidence) for one in likely] if target else None,
        detectable=detectable(plan.seeds),
        by_seeds={seeds: detectable(seeds) for seeds in sorted({*SEEDS, plan.seeds})},
        seeds_needed=[plan.seeds_needed(effect, one, confidence) for one in likely] if target else None,
        margin=str(margin),
        same=[plan.same(within, one, plan.seeds, confidence) for one in likely] if within else None,
        same_seeds=[plan.same_seeds(within, one, confidence) for one in likely] if within else None,
    )


def planned_margins(study: Study, past: Iterable[StudyResults]) -> list[tuple[str, PowerPlan, list[MetricPower]]]:
    """Describe which margins a planned study can reach, by resolution; empty if the spread is unknown.

    The spread comes from past studies or the study itself, with the same baseline and protocol. Arms have their most
    seeds, at the level of the last planned interim analysis.
    """
    metrics, seeds = metric_infos(study), study.settings.seeds
    counts = counts_of([key for key in asked_of(study, metrics) if is_tested(key.metric)], study.settings.primary)
    share = planned_shares(seeds.counts)[-1] if isinstance(seeds, SeedPlan) else FIRST_SHARE
    protocol = {key: value for key, value in plain(study.settings.evaluation).items() if key != "size"}
    by_resolution = [one for results in past for one in results.by_resolution()]
    found = []
    for baseline, *arms in study.by_resolution():
        alike = [one for one in by_resolution if has_baseline(one, baseline.plans[0]) and _protocol(one) == protocol]
        control = any(arm.role == "control" for arm in arms)
        plan = PowerPlan(_ANY_EFFECT, len(study.settings.every_seed.seeds), len(arms), control, 1, [], [])
        rows = [_metric_power(alike, info, plan, counts, share=share) for info in metrics.values() if info.primary]
        if arms and (known := [row for row in rows if row is not None]):
            found.append((baseline.resolution, plan, known))
    return found


_ANY_EFFECT = Effect(0.05, True)
"""A placeholder effect for callers that need only the reachable margins."""


def _collapsed(studies: Sequence[StudyResults], metric: str) -> set[str]:
    """Return the hashes of the runs that collapsed in any of the studies, which may share runs."""
    found = [(results.collapsed(arm, metric), arm) for results in studies for arm in results.arms]
    return {run.hash for seeds, arm in found for run in arm.runs if run.seed in seeds}


def _healthy(arm: Arm, metric: str, collapsed: Collection[str]) -> list[float]:
    return metric_values(arm, metric, [run.seed for run in arm.runs if run.hash in collapsed])


def pooled(sets: Iterable[Sequence[float]]) -> Spread | None:
    """Return the standard deviation around the mean of each set; None if no set has two values."""
    total = freedom = 0.0
    for values in (values for values in sets if len(values) > 1):
        total += (len(values) - 1) * variance(values)
        freedom += len(values) - 1
    return Spread(math.sqrt(total / freedom), freedom) if freedom else None


def _once(arms: Iterable[Arm]) -> list[Arm]:
    """If two arms share a run, leave out the arm with fewer runs; studies often share runs of one baseline."""
    kept: list[Arm] = []
    counted: set[str] = set()
    for arm in sorted(arms, key=lambda arm: len(_hashes(arm)), reverse=True):
        if not counted & _hashes(arm):
            kept.append(arm)
            counted |= _hashes(arm)
    return kept


def _by_arm(arms: Sequence[Arm], values: Callable[[Arm], Sequence[float]]) -> dict[str, float]:
    """Return the deviation of each arm, over all its studies."""
    names = dict.fromkeys(arm.name for arm in arms)
    spreads = {name: pooled(values(arm) for arm in arms if arm.name == name) for name in names}
    return {name: spread.deviation for name, spread in spreads.items() if spread is not None}


def _notes(rows: Sequence[MetricPower], without: Sequence[str]) -> Iterator[str]:
    if without:
        yield f"Left out of the spread: {', '.join(without)}."
    few = min((row.spread.freedom for row in rows), default=FEW_DEGREES)
    if few < FEW_DEGREES:
        low, high = deviation_range(1.0, few)
        yield (
            f"The spread comes from {degrees(few)} degrees of freedom only: the true one may be {low:.1f} to "
            f"{high:.1f} times the measured one, and so may the changes that are found. Measure more seeds to know "
            "better."
        )
    dominated: dict[str, list[str]] = {}
    for row in rows:
        largest = max(row.by_arm, key=lambda name: row.by_arm[name], default="")
        others = [value for name, value in row.by_arm.items() if name != largest]
        if others and row.by_arm[largest] > _UNLIKE * max(others):
            dominated.setdefault(largest, []).append(row.metric.name)
    for arm, metrics in dominated.items():
        yield (
            f"'{arm}' has more than {_UNLIKE:g} times the seed spread of every other arm on {', '.join(metrics)}, and "
            "so dominates the pooled spread there. An arm that changes a metric a lot often does; to plan for a small "
            f"change, leave it out with {rendered(option('without', arm))}."
        )


def degrees(freedom: float) -> str:
    return f"{round(freedom, 1):g}"
