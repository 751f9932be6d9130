"""uniform-time: draw t uniformly, as SiT and REPA do, instead of from the baseline's density."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tintype.techniques.technique import NoOptions, Technique

if TYPE_CHECKING:
    from tintype.plan import Plan


def apply(plan: Plan, options: NoOptions) -> dict[str, Any]:
    return {"time": plan.time.model_copy(update={"kind": "uniform"})}


TECHNIQUE = Technique(
    name="uniform-time",
    seam="time",
    summary="draw the training time uniformly",
    apply=apply,
    paper="arXiv:2401.08740",
)
