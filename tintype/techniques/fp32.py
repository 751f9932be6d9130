"""fp32: everything is stored and computed in fp32, where the plan computes in bf16. Islands come to their defaults."""

from __future__ import annotations

from tintype.plan import Plan
from tintype.settings import PrecisionSettings
from tintype.techniques.technique import Changes, NoOptions, Technique


def apply(plan: Plan, options: NoOptions) -> Changes:
    return {"precision": PrecisionSettings(compute="fp32", loss_scale=plan.precision.loss_scale)}


TECHNIQUE = Technique(
    seam="precision",
    summary="store and compute everything in fp32",
    apply=apply,
)
