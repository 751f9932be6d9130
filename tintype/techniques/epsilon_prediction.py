"""epsilon-prediction: predict the noise, and compute the loss on velocities (`flow/epsilon_prediction.py`)."""

from __future__ import annotations

from pydantic import Field

from tintype.flow.epsilon_prediction import CLAMP, EpsilonPredictionSettings
from tintype.settings import Settings
from tintype.techniques.technique import Technique


class Options(Settings):
    clamp: float = Field(
        CLAMP, gt=0, lt=1, description="Lower bound of 1 - t where the velocity is computed by a division by 1 - t"
    )


TECHNIQUE = Technique(
    seam="objective",
    summary="predict the noise; loss on velocities",
    apply=lambda plan, options: {"objective": EpsilonPredictionSettings(clamp=options.clamp, **plan.objective.common)},
    options=Options,
    paper="arXiv:2511.13720",
)
