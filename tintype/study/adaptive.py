"""Decide which arms get more seeds after each planned look, and which runs to make next.

Every decision is a pure function of the finished runs. So a study that was killed resumes at the same look with the
same decisions. Stopping an arm never makes a verdict: it leaves the arm undecided. So the level of the study holds
whatever the rule.

An arm gets no more seeds if
- every comparison on a primary metric is decided, including declared comparisons with other arms, or none can be made,
  or
- nothing is in sight: each undecided comparison has p > 0.5 (or no p). Also, the seeds of the last look would not
  decide it if means and spreads stayed the same, or
- one of its runs diverged or failed, so that it can have no verdict.

A declared comparison with a stopped arm does not count: that arm gets no more seeds. The baseline and the control have
as many seeds as the arm with most.
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
"""An undecided comparison with a larger p has nothing in sight."""
Rows = Mapping[Key, Comparison]


@dataclass(frozen=True)
class Standing:
    """The progress of a study with planned looks."""

    made: list[Look]
    read: list[Study]
    """The arms and seeds of each look so far."""
    rows: dict[Key, Comparison]
    """Every comparison: from the first look that decided it, or else from its last look."""
    stopped: dict[str, str]
    """The reason why an arm gets no more seeds, by the arm's name."""
    counts: dict[str, int]
    """Seeds with which each arm was compared, by its name. For the baseline and the control: those of the last look."""
    next: Look | None
    """The look in progress; None if every arm has stopped or has all its seeds."""


def follow(
    study: Study,
    looks: Sequence[Look],
    compare_at: Callable[[Study, Look], Rows],
    ended: Callable[[Study], bool],
) -> Standing:
    """Replay the past looks and the decisions after each.

    `ended` and `compare_at` are called with the arms and seeds of a look. `ended` returns whether every run of that
    study has ended.
    """
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
    """Return the study with the seeds of a look, and without these arms."""
    seeds = {"control": set(look.control_seeds)}
    kept = [arm for arm in study.arms if arm.name not in without]
    arms = [_with_seeds(arm, seeds.get(arm.role, set(look.seeds))) for arm in kept]
    return replace(study, arms=tuple(arm for arm in arms if arm.plans))


def _with_seeds(arm: ArmPlan, seeds: Collection[int]) -> ArmPlan:
    return replace(arm, plans=tuple(plan for plan in arm.plans if plan.seed in seeds))


def _asked(study: Study, name: str, rows: Rows, stopped: Collection[str]) -> list[Comparison]:
    """Return an arm's comparisons on the primary metrics: at all resolutions, across them, with other arms, and as a
    factor.

    Contrasts that lost a run are left out. The arm that lost the run stops for that reason, and the other arms can
    still be decided.
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
    """Return why an arm with these comparisons gets no more seeds; empty if it gets more. `most` is the maximum."""
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
    """Return whether neither a difference nor *same* is in sight."""
    in_reach = row.seeds_needed is not None and row.seeds_needed <= most
    return not in_reach and (row.p is None or row.p > HOPELESS_P)


def wanted_arms(study: Study, look: Look, stopped: Collection[str]) -> Study:
    """Return the arms and seeds of a look, and the arms that they start from, which may have stopped."""
    active = {arm.name for arm in study.arms} - set(stopped)
    while missing := {arm.parent for arm in study.arms if arm.name in active and arm.parent} - active:
        active |= missing
    return study_at(study, look, {arm.name for arm in study.arms} - active)
