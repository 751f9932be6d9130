"""Estimate the cost of a study's runs on one GPU, in the same way as `plan cost`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tintype.cost.memory import Peak, peak_of
from tintype.cost.plan import PlanCost, Speed, cost_of_plan, estimated_speed
from tintype.errors import UserError
from tintype.study.study import ArmPlan, Study


@dataclass(frozen=True)
class ArmEstimate:
    arm: str
    runs: int
    cost: PlanCost
    peak: Peak | None
    """Peak memory of the run; None in a study that is not planned for a GPU."""


@dataclass(frozen=True)
class StudyEstimate:
    """Cost of a run of each arm. In a study that is not planned for a GPU, only the baseline is estimated."""

    gpu: str
    speed: Speed
    for_gpu: bool
    arms: Sequence[ArmEstimate]
    uncounted: Mapping[str, Sequence[str]]
    """Labels of the arms with unknown cost, by the reason."""

    @property
    def costs(self) -> dict[str, PlanCost]:
        """Return the costs that were counted, by the arm's label."""
        return {one.arm: one.cost for one in self.arms}


def estimate_study(study: Study, gpu: str) -> StudyEstimate:
    speed, for_gpu = estimated_speed(gpu), study.arms[0].plans[0].model.compile
    found: list[ArmEstimate] = []
    uncounted: dict[str, list[str]] = {}
    for arm in study.arms if for_gpu else study.arms[:1]:
        try:
            cost = cost_of_plan(arm.plans[0], speed)
        except UserError as error:
            uncounted.setdefault(str(error).splitlines()[0], []).append(arm.label)
            continue
        found.append(ArmEstimate(arm.label, len(arm.plans), cost, _peak(study, arm) if for_gpu else None))
    return StudyEstimate(gpu, speed, for_gpu, found, uncounted)


def _peak(study: Study, arm: ArmPlan) -> Peak:
    along = study.along(arm.plans[0])
    return peak_of(arm.plans[0], study.settings.evaluation, along.protocol if along else None)
