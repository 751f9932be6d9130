"""perceptual-dino: compare the predicted and the true image by DINOv2's patch tokens (`losses/perceptual_dino.py`)."""

from __future__ import annotations

from tintype.losses.perceptual_dino import PerceptualDinoSettings
from tintype.plan import Plan
from tintype.techniques.technique import Changes, Technique


def apply(plan: Plan, options: PerceptualDinoSettings) -> Changes:
    return {"losses": (*plan.losses, options)}


TECHNIQUE = Technique(
    name="perceptual-dino",
    seam="losses",
    summary="compare the predicted image with the true one by DINOv2's patch tokens",
    apply=apply,
    options=PerceptualDinoSettings,
    paper="arXiv:2602.02493",
    part=PerceptualDinoSettings,
    needs={"objective.kind": "x-prediction"},
)
