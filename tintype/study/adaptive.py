"""Decide which arms get more seeds after each interim analysis (look), and which runs to make next.

Every decision is a pure function of the finished runs. So a study that was killed resumes at the same interim analysis
with the same decisions. Stopping an arm never creates a verdict; the arm remains undecided. So no stopping rule can
raise the study's error rate above its level.

An arm gets no more seeds in any of these cases:
- All of its comparisons on primary metrics are decided, including declared comparisons with other arms, or no
  comparison is possible.
- More seeds are unlikely to help. Each undecided comparison has p > 0.5 (or no p). It would stay undecided with all
  planned seeds if means and spreads stayed the same.
- One of the arm's runs diverged or failed, so that the arm cannot get a verdict.

These rules ignore declared comparisons with an arm that has stopped. The baseline and the control get as many seeds as
the arm with the most seeds.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from tintype.study.contrasts import between_key
from tintype.study.looks import Look, is_decided, replay
from tintype.study.results import Comparison
from tintype.study.stats.contrast import Key
from tintype.study.study import ArmPlan, Study

HOPELESS_P = 0.5
"""If an undecided comparison has a larger p, more seeds are unlikely to decide it."""
Rows = Mapping[Key, Comparison]


@dataclass(frozen=True)
class Standing:
    """The progress of a study with interim analyses."""

    made: list[Look]
    read: list[Study]
    """The arms and seeds of each past interim analysis."""
    rows: dict[Key, Comparison]
    """Every comparison as of the first interim analysis that decided it; undecided ones as of their last analysis."""
    stopped: dict[str, str]
    """The reason why an arm gets no more seeds, by the arm's name."""
    counts: dict[str, int]
    """Number of seeds with which each arm was compared; for the baseline and the control, at the last analysis."""
    next: Look | None
    """The interim analysis in progress; None if every arm has stopped or has all its seeds."""


def follow(
    study: Study,
    looks: Sequence[Look],
    compare_at: Callable[[Study, Look], Rows],
    ended: Callable[[Study], bool],
) -> Standing:
    """Replay the past interim analyses and the decisions after each; `ended` tells whether all their runs ended."""
    made: list[Look] = []
    read: list[Study] = []
    stopped: dict[str, str] = {}
    counts: dict[str, int] = {}
    rows_of_looks: list[Rows] = []
    for look in looks:
        at_look = study_at(study, look, stopped)
        active = [arm.name for arm in at_look.arms if arm.role == "arm"]
        if not active or not ended(at_look):
            return Standing(made, read, replay(rows_of_looks), stopped, counts, look if active else None)
        rows_of_looks.append(compare_at(at_look, look))
        rows = replay(rows_of_looks)
        made.append(look)
        read.append(at_look)
        counts |= {arm.name: len(look.seeds) for arm in at_look.arms}
        if look is looks[-1]:
            break
        reasons = {name: why_stop(_asked(study, name, rows, stopped), len(looks[-1].seeds)) for name in active}
        stopped |= {name: f"stopped after {len(look.seeds)} seeds: {why}" for name, why in reasons.items() if why}
    return Standing(made, read, replay(rows_of_looks), stopped, counts, None)


def study_at(study: Study, look: Look, without: Collection[str] = ()) -> Study:
    """Return the study with the seeds of an interim analysis, and without these arms."""
    seeds = {"control": set(look.control_seeds)}
    kept = [arm for arm in study.arms if arm.name not in without]
    arms = [_with_seeds(arm, seeds.get(arm.role, set(look.seeds))) for arm in kept]
    return replace(study, arms=tuple(arm for arm in arms if arm.plans))


def _with_seeds(arm: ArmPlan, seeds: Collection[int]) -> ArmPlan:
    return replace(arm, plans=tuple(plan for plan in arm.plans if plan.seed in seeds))


def _asked(study: Study, name: str, rows: Rows, stopped: Collection[str]) -> list[Comparison]:
    """Return an arm's comparisons on the primary metrics.

    Comparisons with other arms and contrasts are left out if a run of theirs failed. The arm with the failed run stops
    for that reason, and the other arms can still be decided.
    """
    asked = {key: row for key, row in rows.items() if key.metric in study.settings.primary}
    factors = {one.name for _, one in study.contrasts() if name in one.weights}
    between = {
        between_key(first.name, second.name, first.resolution, "")
        for first, second in study.declared()
        if name in (first.name, second.name) and not {first.name, second.name} & set(stopped)
    }

    def concerns(key: Key, row: Comparison) -> bool:
        if key.kind == "between":
            return key._replace(metric="") in between and not row.lost
        return key.arm in factors and not row.lost if key.kind in ("main effect", "interaction") else key.arm == name

    return [row for key, row in asked.items() if concerns(key, row)]


def why_stop(rows: Sequence[Comparison], most: int) -> str:
    """Return why an arm with these comparisons gets no seeds beyond these, up to `most`; empty if it gets more."""
    if not rows:
        return "no primary metric can be compared"
    open_rows = [row for row in rows if not is_decided(row)]
    if not open_rows:
        return "decided"
    if lost := next((row.lost for row in open_rows if row.lost), ""):
        return lost
    if all(_hopeless(row, most) for row in open_rows):
        return "nothing in sight" if len(open_rows) == len(rows) else "nothing more in sight"
    return ""


def _hopeless(row: Comparison, most: int) -> bool:
    """Return whether more seeds would probably leave a comparison undecided, neither a difference nor *same*."""
    in_reach = row.seeds_needed is not None and row.seeds_needed <= most
    return not in_reach and (row.p is None or row.p > HOPELESS_P)


def wanted_arms(study: Study, look: Look, stopped: Collection[str]) -> Study:
    """Return the arms and seeds of an interim analysis, and the arms on which they are based, even stopped arms."""
    active = {arm.name for arm in study.arms} - set(stopped)
    while missing := {arm.parent for arm in study.arms if arm.name in active and arm.parent} - active:
        active |= missing
    return study_at(study, look, {arm.name for arm in study.arms} - active)
