"""fp32: everything is stored and computed in fp32, where the plan computes in bf16. Islands come to their defaults."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tintype.settings import PrecisionSettings
from tintype.techniques.technique import NoOptions, Technique

if TYPE_CHECKING:
    from tintype.plan import Plan


def apply(plan: Plan, options: NoOptions) -> dict[str, Any]:
    return {"precision": PrecisionSettings(compute="fp32", loss_scale=plan.precision.loss_scale)}


TECHNIQUE = Technique(
    name="fp32",
    seam="precision",
    summary="store and compute everything in fp32",
    apply=apply,
)
