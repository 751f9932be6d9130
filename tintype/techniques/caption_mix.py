"""caption-mix: each sample gets one of its captions, drawn by their weights (`data/captions.py`)."""

from __future__ import annotations

from pydantic import Field

from tintype.data.captions import MixSettings, Weights
from tintype.settings import Settings
from tintype.techniques.technique import Technique


class Options(Settings):
    weights: Weights = Field(
        {"long": 0.5, "short": 0.5},
        description="Weight with which each caption column is drawn, relative to the others",
    )


TECHNIQUE = Technique(
    seam="captions",
    summary="each sample reads one of its image's captions, drawn by their weights",
    apply=lambda plan, options: {"captions": MixSettings(**plan.captions.common, weights=options.weights)},
    options=Options,
)
