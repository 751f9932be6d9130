"""irepa: alignment that favours the teacher's spatial structure (`losses/irepa.py`)."""

from __future__ import annotations

from tintype.losses.irepa import IrepaOptions, IrepaSettings
from tintype.plan import Plan
from tintype.techniques.technique import Changes, Technique


def apply(plan: Plan, options: IrepaOptions) -> Changes:
    return {"losses": (*plan.losses, IrepaSettings(**options.resolved(plan)))}


TECHNIQUE = Technique(
    seam="losses",
    summary="align a block's grid of tokens with a frozen teacher's spatial structure",
    apply=apply,
    options=IrepaOptions,
    paper="arXiv:2512.10794",
    part=IrepaSettings,
    trains=frozenset({"losses_irepa"}),
)
