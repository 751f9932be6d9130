"""Pool several studies with the same comparison.

An arm is the same in two studies if its plan and the baseline's plan are equal except for the seed; its name may
differ. Each run counts only once, so studies that share runs are read as one study with all of their runs.

Each study without shared runs gives one estimate of the difference between the arm and the baseline. The seed spread is
pooled over all studies, on the metric's scale. These estimates have two means, each weighted by precision:

- *As one*: studies with the same plans and protocol should have the same true difference, so all runs are read as one
  study.
- *Across*: the true difference may differ between studies, for example between devices (`stats.between`). With two
  studies, the interval of the mean *across* is very wide.

The verdict is based on the mean *as one*. If the studies differ by more than chance explains (p below 10%), the verdict
is based on the mean *across*. The interval of each mean has a confidence of 95%, without correction. Pooling asks a
separate question about finished studies, and does not use the error of their own verdicts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from tintype.errors import UserError
from tintype.study.contrasts import incomparable, is_tested
from tintype.study.folder import stored_study
from tintype.study.results import Interval, Loss, MetricInfo, Run, StudyResults, worst_loss
from tintype.study.runs import Metrics
from tintype.study.stats.between import between
from tintype.study.stats.cells import Cells, scale_for, with_alike
from tintype.study.stats.collapse import collapsed_runs
from tintype.study.stats.contrast import Contrast, against
from tintype.study.stats.estimate import Estimate, estimate
from tintype.study.stored import StoredStudy, identities, other_networks, read_stored, runs_like, why_apart
from tintype.study.study import ArmPlan, Study

PooledVerdict = Literal["better", "worse", "same", "undecided", "sketch", Loss]
DIFFER = 0.1
"""Studies differ if the p-value of the heterogeneity test is below this. The test is weak with few studies."""
_ARM, _BASELINE = "arm", "baseline"


@dataclass(frozen=True)
class StudyEstimate:
    """The difference between the arm and the baseline in one study, or in several studies that share runs."""

    studies: list[str]
    seeds: int
    baseline_seeds: int
    """Number of the baseline's runs that are used, including the control's runs."""
    difference: Interval
    """The difference in the metric's unit, with its 95% interval."""


@dataclass(frozen=True)
class PooledMetric:
    """One metric of one arm over several studies; differences are in the metric's unit, arm minus baseline."""

    metric: str
    label: str
    direction: Literal["lower", "higher"]
    primary: bool
    """Whether the metric is a primary metric of the first study."""
    studies: list[StudyEstimate]
    difference: Interval
    """The mean that gives the verdict, which is `as_one`, or `across` if the studies differ."""
    as_one: Interval
    """The mean under the assumption that all studies have the same true difference."""
    across: Interval | None
    """The mean if true differences can vary; None for one study, and for studies that share runs."""
    relative: float | None
    """The difference, divided by the baseline's mean."""
    between: float | None
    """Standard deviation between studies' true differences, on the metric's scale; None for studies that share runs."""
    heterogeneity_p: float | None
    """Probability that studies with equal true differences show at least this much difference."""
    verdict: PooledVerdict
    lost: int
    """Number of runs that diverged or failed."""
    collapsed: int
    """Number of collapsed runs, which are left out."""

    @property
    def agreement(self) -> str:
        if self.heterogeneity_p is None:
            return "one set of runs, so whether studies differ is not known"
        if self.heterogeneity_p < DIFFER:
            return f"the studies differ by more than chance (p = {self.heterogeneity_p:.2g})"
        return f"the studies do not differ by more than chance (p = {self.heterogeneity_p:.2g})"


@dataclass(frozen=True)
class PooledArm:
    arm: str
    names: dict[str, str]
    """The arm's label in each study that has this arm, by study."""
    seeds: int
    """Runs of the arm, each counted once."""
    baseline_seeds: int
    shared: int
    """Runs of the arm and the baseline that occur in more than one study, each counted once."""
    metrics: list[PooledMetric]
    """The arm's metrics, with the primary metrics first."""


@dataclass(frozen=True)
class Pooled:
    """Several studies, read together."""

    studies: list[str]
    arms: list[PooledArm]
    left_out: list[str]
    """Studies that could not be pooled with the others, and the reasons."""

    def rows(self, primary: bool = False) -> list[dict[str, object]]:
        """Return a dictionary for each pair of arm and metric; if `primary` is true, only for the primary metrics."""
        return [
            {
                "arm": arm.arm,
                "metric": one.metric,
                "verdict": one.verdict,
                "difference": one.difference.value,
                "low": one.difference.low,
                "high": one.difference.high,
                "studies": len(one.studies),
                "seeds": sum(study.seeds for study in one.studies),
                "heterogeneity_p": one.heterogeneity_p,
            }
            for arm in self.arms
            for one in arm.metrics
            if one.primary or not primary
        ]

    def __str__(self) -> str:
        return "\n".join(" · ".join(f"{key} {value}" for key, value in row.items()) for row in self.rows(primary=True))


def pool_studies(paths: Sequence[Path], arms: Sequence[str] = ()) -> Pooled:
    """Pool the studies in these folders; by default, pool all arms that occur in at least two studies."""
    stored: list[StoredStudy] = []
    for one in map(read_stored, paths):
        if any(one.folder.resolve() == other.folder.resolve() for other in stored):
            raise UserError(f"{one.folder} is given twice", "give each study once")
        stored.append(one)
    names = [one.name for one in stored]
    stored = [replace(one, title=str(one.folder)) if names.count(one.name) > 1 else one for one in stored]
    if len(stored) < 2:
        raise UserError("pool needs at least two studies of the same comparison", "give their folders")
    first, *others = stored
    left = [why for other in others if (why := _why_left(first, other))]
    kept = [first, *(other for other in others if not _why_left(first, other))]
    found: list[PooledArm] = []
    for index, reference in enumerate(kept):
        found += _pooled_arms(reference, [one for one in kept if one is not reference], kept[:index])
    if arms:
        known = [arm for arm in found if {arm.arm, *arm.names.values()} & set(arms)]
        if missing := [name for name in arms if not any(name in (arm.arm, *arm.names.values()) for arm in known)]:
            raise UserError(f"fewer than two of the studies have the arm '{missing[0]}'", _listed(found))
        found = known
    if not found:
        why = f" ({'; '.join(left)})" if left else ""
        raise UserError(
            f"no two of these studies have an arm and a baseline whose plans differ only in the seed{why}",
            "give studies with the same comparison and the same evaluation protocol",
        )
    return Pooled([one.name for one in kept], found, left)


def _listed(found: Sequence[PooledArm]) -> str:
    return f"in two or more there are: {', '.join(arm.arm for arm in found)}" if found else "there are none at all"


def _why_left(first: StoredStudy, other: StoredStudy) -> str:
    """Return the reason why a study cannot be pooled with the first study; empty if it can."""
    if not first.protocol:
        raise UserError(f"{why_apart(first, '', first.numerics)}", f"leave {first.folder} out")
    if reason := why_apart(other, first.protocol, first.numerics):
        return reason
    networks = other_networks(identities(first.runs), identities(other.runs))
    return f"{', '.join(networks)} had other weights in {other.name} than in {first.name}" if networks else ""


def _pooled_arms(
    reference: StoredStudy, others: Sequence[StoredStudy], before: Sequence[StoredStudy]
) -> list[PooledArm]:
    """Pool a study's arms with the same arms of other studies; skip arms already pooled with a study in `before`."""
    if not (reference.folder / "study.yaml").is_file():
        return []  # results without the study's folder do not have the plans of its arms
    study = stored_study(reference.folder)
    metrics = dict[str, MetricInfo]()  # newest definitions; values by other definitions are left out
    for info in (info for one in (reference, *others) for info in one.results.metrics):
        if info.name not in metrics or info.revision > metrics[info.name].revision:
            metrics[info.name] = info.model_copy(update={"primary": info.name in study.settings.primary})
    runs = {one.name: runs_like(study, one, metrics) for one in (reference, *others)}
    found = []
    for arm, baseline in study.compared():
        if arm.role != "arm" or any(arm.label in runs[one.name] for one in before):
            continue
        both = {
            name: {_ARM: of[arm.label], _BASELINE: of[baseline.label]}
            for name, of in runs.items()
            if arm.label in of and baseline.label in of
        }
        if len(both) > 1:
            names = {
                one.name: _name_in(one.results, both[one.name][_ARM])
                for one in (reference, *others)
                if one.name in both
            }
            found.append(_pool_arm(study, arm, both, names, metrics))
    return found


def _name_in(results: StudyResults, runs: Sequence[Run]) -> str:
    hashes = {run.hash for run in runs}
    return next(arm.label for arm in results.arms for run in arm.runs if run.hash in hashes)


@dataclass(frozen=True)
class _Group:
    """Studies that share runs, with all of their runs, each counted once."""

    studies: list[str]
    runs: Mapping[str, dict[str, Run]]
    """Runs by role and hash."""


def _grouped(both: Mapping[str, Mapping[str, Sequence[Run]]]) -> list[_Group]:
    groups: list[_Group] = []
    for name, of in both.items():
        mine = {role: {run.hash: run for run in runs} for role, runs in of.items()}
        shared = [one for one in groups if any(one.runs[role].keys() & mine[role].keys() for role in mine)]
        runs = {
            role: {h: run for one in (*shared, _Group([], mine)) for h, run in one.runs[role].items()} for role in mine
        }
        names = [*(study for one in shared for study in one.studies), name]
        groups = [*(one for one in groups if one not in shared), _Group(names, runs)]
    return groups


def _pool_arm(
    study: Study,
    arm: ArmPlan,
    both: Mapping[str, Mapping[str, Sequence[Run]]],
    names: dict[str, str],
    metrics: Metrics,
) -> PooledArm:
    apart = {key.metric for key in incomparable(study) if (key.arm, key.resolution) == (arm.name, arm.resolution)}
    groups, sheets = dict[str, list[_Group]](), dict[str, Cells]()
    for name in metrics:
        measured = {
            one: {role: [run for run in runs if _counts(run, name)] for role, runs in of.items()}
            for one, of in both.items()
        }
        there = {one: of for one, of in measured.items() if all(_has(runs, name) for runs in of.values())}
        if is_tested(name) and name not in apart and len(there) > 1:
            groups[name] = _grouped(there)
            sheets[name] = _cells(groups[name], metrics[name])
    sheets = with_alike(sheets) if sheets else {}
    rows = [_pool_metric(study, groups[name], metrics[name], cells) for name, cells in sheets.items()]
    every = {role: [run.hash for of in both.values() for run in of[role]] for role in (_ARM, _BASELINE)}
    once = {role: len(set(hashes)) for role, hashes in every.items()}
    return PooledArm(
        arm=arm.label,
        names=names,
        seeds=once[_ARM],
        baseline_seeds=once[_BASELINE],
        shared=sum(len(hashes) - once[role] for role, hashes in every.items()),
        metrics=sorted(rows, key=lambda row: not row.primary),
    )


def _counts(run: Run, metric: str) -> bool:
    """Return whether a run counts for a metric, either because it has a value or because it was lost."""
    return metric in run.metrics or run.loss(metric) in ("diverged", "failed")


def _has(runs: Sequence[Run], metric: str) -> bool:
    return any(run.loss(metric) is None for run in runs)


def _cells(groups: Sequence[_Group], info: MetricInfo) -> Cells:
    """Return the cells (values by arm) of one metric, without collapsed runs.

    Spreads are pooled over groups, since plans are equal, but means are computed for each group.
    """
    values = {
        f"{role} {number}": {
            run.seed: run.metrics[info.name] for run in one.runs[role].values() if run.loss(info.name) is None
        }
        for number, one in enumerate(groups)
        for role in (_ARM, _BASELINE)
    }
    scale = scale_for(info.scale or "raw", [list(of.values()) for of in values.values()], info.pad)
    placed = {label: {seed: scale.place(one) for seed, one in of.items()} for label, of in values.items()}
    cells = Cells(placed, scale, {label: label.partition(" ")[0] for label in placed})
    collapsed = {label: some for label in placed if (some := collapsed_runs(cells, label, info.direction))}
    return replace(cells.without(collapsed), collapsed=collapsed)


def _pool_metric(study: Study, groups: Sequence[_Group], info: MetricInfo, cells: Cells) -> PooledMetric:
    scale, numbers = cells.scale, range(len(groups))
    each = [estimate(cells, against(f"{_ARM} {n}", f"{_BASELINE} {n}")) for n in numbers]
    # All runs as one study: the mean of each side over all runs, weighted by how much each study tells.
    weights = [1 / one.error**2 if one.error else 0.0 for one in each]
    total = sum(weights) or 1.0
    shares = [weight / total if sum(weights) else 1 / len(groups) for weight in weights]
    old = {f"{_BASELINE} {n}": share for n, share in zip(numbers, shares, strict=True)}
    whole = Contrast(
        {f"{_ARM} {n}": share for n, share in zip(numbers, shares, strict=True)} | {k: -v for k, v in old.items()}, old
    )
    as_one = estimate(cells, whole)
    mean = between(each)
    pooled = mean.estimate if mean and mean.p < DIFFER else as_one

    def interval(one: Estimate) -> Interval:
        ends = one.interval
        low, high = (scale.difference(one.old, end) for end in ends) if ends else (None, None)
        return Interval(value=scale.difference(one.old, one.value), low=low, high=high)

    runs = [run for one in groups for of in one.runs.values() for run in of.values()]
    lost = [run for run in runs if run.loss(info.name) in ("diverged", "failed")]
    reach = scale.margin(pooled.old, study.settings.analysis.margin_of(info.name).on(scale.value(pooled.old)))
    before = scale.value(pooled.old)
    return PooledMetric(
        metric=info.name,
        label=info.label,
        direction=info.direction,
        primary=info.primary,
        studies=[
            StudyEstimate(one.studies, cells.seeds(f"{_ARM} {n}"), cells.seeds(f"{_BASELINE} {n}"), interval(each[n]))
            for n, one in enumerate(groups)
        ],
        difference=interval(pooled),
        as_one=interval(as_one),
        across=interval(mean.estimate) if mean else None,
        relative=interval(pooled).value / before if before else None,
        between=mean.deviation if mean else None,
        heterogeneity_p=mean.p if mean else None,
        verdict=_verdict(pooled, reach, info, worst_loss(lost, info.name)),
        lost=len(lost),
        collapsed=sum(map(len, cells.collapsed.values())),
    )


def _verdict(pooled: Estimate, reach: float, info: MetricInfo, lost: Loss | None) -> PooledVerdict:
    if lost is not None:
        return lost
    if pooled.interval is None:
        return "sketch"
    said = pooled.says(reach)
    if said in ("same", "undecided"):
        return "same" if said == "same" else "undecided"
    return "better" if (said == "above") == (info.direction == "higher") else "worse"
