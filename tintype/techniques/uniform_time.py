"""uniform-time: draw t uniformly, as SiT and REPA do, instead of from the baseline's density."""

from __future__ import annotations

from tintype.flow.time_density import UniformTime
from tintype.plan import Plan
from tintype.techniques.technique import Changes, NoOptions, Technique


def apply(plan: Plan, options: NoOptions) -> Changes:
    return {"time": UniformTime(**plan.time.common)}


TECHNIQUE = Technique(
    seam="time",
    summary="draw the training time uniformly",
    apply=apply,
    paper="arXiv:2401.08740",
)
