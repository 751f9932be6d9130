"""lpips: compare the predicted image with the true one by LPIPS (`losses/lpips.py`)."""

from __future__ import annotations

from tintype.losses.lpips import LpipsLossSettings
from tintype.plan import Plan
from tintype.techniques.technique import Changes, Technique


def apply(plan: Plan, options: LpipsLossSettings) -> Changes:
    return {"losses": (*plan.losses, options)}


TECHNIQUE = Technique(
    name="lpips",
    seam="losses",
    summary="compare the predicted image with the true one by LPIPS",
    apply=apply,
    options=LpipsLossSettings,
    paper="arXiv:2602.02493",
    part=LpipsLossSettings,
    needs={"objective.kind": "x-prediction"},
)
