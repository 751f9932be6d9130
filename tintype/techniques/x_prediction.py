"""x-prediction: the network predicts the clean image, and the loss is taken on velocities (`flow/x_prediction.py`)."""

from __future__ import annotations

from tintype.flow.x_prediction import XPredictionSettings
from tintype.plan import Plan
from tintype.techniques.technique import Changes, Technique


def apply(plan: Plan, options: XPredictionSettings) -> Changes:
    return {"objective": options}


TECHNIQUE = Technique(
    name="x-prediction",
    seam="objective",
    summary="predict the clean image; loss on velocities",
    apply=apply,
    options=XPredictionSettings,
    paper="arXiv:2511.13720",
)
