"""Arms that start from the runs of other arms: each with the run of its own seed."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from tintype.config.strict import nearest
from tintype.errors import UserError
from tintype.model.start import ArmStart
from tintype.train.start import unfit_settings

if TYPE_CHECKING:
    from tintype.study.study import ArmPlan


def link_arms(arms: Sequence[ArmPlan]) -> list[ArmPlan]:
    """Fill in the plans that arms start from."""
    known = {arm.name: arm for arm in arms}
    linked: dict[str, ArmPlan] = {}

    def link(arm: ArmPlan, followers: tuple[str, ...]) -> ArmPlan:
        if arm.name in linked:
            return linked[arm.name]
        if arm.name in followers:
            raise UserError(f"arm '{arm.name}' would start from itself ({' from '.join((*followers, arm.name))})")
        if (name := _parent(arm)) is not None:
            parent = link(_find(arm.name, name, known), (*followers, arm.name))
            arm = _with_parent(arm, parent)
        linked[arm.name] = arm
        return arm

    return [link(arm, ()) for arm in arms]


def with_parents(arms: Sequence[ArmPlan], names: Collection[str]) -> set[str]:
    """Return these names and those of all arms that they start from."""
    wanted = set(names)
    while missing := {p for arm in arms if arm.name in wanted and (p := _parent(arm)) is not None} - wanted:
        wanted |= missing
    return wanted


def _parent(arm: ArmPlan) -> str | None:
    start = arm.plans[0].start
    return start.name if isinstance(start, ArmStart) else None


def _find(arm: str, name: str, known: dict[str, ArmPlan]) -> ArmPlan:
    possible = [one for one, found in known.items() if found.role != "control"]
    if name not in possible:
        hint = "the control has other seeds" if name in known else nearest(name, possible)
        raise UserError(f"arm '{arm}' cannot start from the arm '{name}'; {hint}")
    return known[name]


def _with_parent(arm: ArmPlan, parent: ArmPlan) -> ArmPlan:
    if reasons := unfit_settings(arm.plans[0], parent.plans[0]):
        raise UserError(
            f"arm '{arm.name}' cannot start from the arm '{parent.name}', whose weights do not fit: {reasons}"
        )
    plans = []
    for plan, before in zip(arm.plans, parent.plans, strict=True):
        assert plan.start is not None and plan.seed == before.seed
        plans.append(plan.model_copy(update={"start": plan.start.model_copy(update={"plan": before.hash})}))
    return replace(arm, plans=tuple(plans))
