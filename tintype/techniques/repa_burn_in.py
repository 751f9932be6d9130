"""repa-burn-in: align tokens with a teacher (arXiv 2410.06940) only in the first part of training.

PRX recommends a stop at about 200k steps, chosen by eye; HASTE (arXiv 2505.16792) also stops. After the stop, the
teacher is released from memory, and the projector no longer changes.
"""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from tintype.errors import UserError
from tintype.losses.repa import RepaOptions, RepaSettings
from tintype.plan import Plan
from tintype.schedule import Schedule
from tintype.techniques.technique import Changes, Technique


class StoppedRepaOptions(RepaOptions):
    """Options of an alignment that stops before training ends."""

    stop: int | None = Field(
        None, ge=1, description="Step at which the alignment stops, which is the first step without alignment"
    )
    share: float = Field(
        0.25, gt=0, lt=1, description="Share of the training in which this loss is used, in place of stop"
    )

    @model_validator(mode="after")
    def _one_of_them(self) -> Self:
        if {"stop", "share"} <= self.model_fields_set:
            raise ValueError("give stop (a step) or share (of the training), not both")
        return self

    def schedule(self, plan: Plan, technique: str) -> Schedule:
        """Return the schedule of the losses; refuse a schedule that is never on or never off."""
        steps = plan.train.steps
        end = self.stop or round(self.share * steps)
        if end < 1:
            raise UserError(
                f"technique '{technique}': share {self.share:g} of {steps} steps (train.steps) is less than one step, "
                "so nothing would be aligned",
                "raise share, or train longer",
            )
        if end >= steps:
            raise UserError(
                f"technique '{technique}': the alignment would stop at step {end}, but the run has only {steps} "
                f"steps (train.steps)"
            )
        return Schedule(kind="until", end=end)


def apply(plan: Plan, options: StoppedRepaOptions) -> Changes:
    schedule = options.schedule(plan, "repa-burn-in")
    settings = {key: value for key, value in options.resolved(plan).items() if key not in ("stop", "share")}
    return {"losses": (*plan.losses, RepaSettings(**settings, schedule=schedule))}


TECHNIQUE = Technique(
    seam="losses",
    summary="align a block's tokens with a frozen teacher's, then stop and free the teacher",
    apply=apply,
    options=StoppedRepaOptions,
    paper="arXiv:2410.06940",
    part=RepaSettings,
    trains=frozenset({"losses_repa"}),
)
