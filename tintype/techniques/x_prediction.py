"""x-prediction: predict the clean image, and compute the loss on velocities (`flow/x_prediction.py`)."""

from __future__ import annotations

from pydantic import Field

from tintype.flow.x_prediction import PRX_CLAMP, XPredictionSettings
from tintype.settings import Settings
from tintype.techniques.technique import Technique


class Options(Settings):
    clamp: float = Field(
        PRX_CLAMP, gt=0, lt=1, description="Lower bound of t where the velocity is computed by a division by t"
    )


TECHNIQUE = Technique(
    seam="objective",
    summary="predict the clean image; loss on velocities",
    apply=lambda plan, options: {"objective": XPredictionSettings(clamp=options.clamp, **plan.objective.common)},
    options=Options,
    paper="arXiv:2511.13720",
)
