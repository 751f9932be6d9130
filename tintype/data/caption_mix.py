"""caption-mix: each sample reads one of several captions of its image, drawn by their weights.

A caption that an image lacks, or that is empty, cannot be drawn: the weights of its others share what it had. PRX
gives it a weight of 1e-9 instead, so that it can.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pydantic import model_validator

from tintype.data.captions import CaptionsPart, Weights, describe_weights, pick_weighted


class MixSettings(CaptionsPart):
    kind: Literal["mix"] = "mix"
    weights: Weights

    @model_validator(mode="after")
    def _mixes(self) -> MixSettings:
        if len(self.weights) == 1:
            raise ValueError(f"a mix of '{next(iter(self.weights))}' alone is no mix; give another column a weight too")
        return self

    def pick(self, captions: Mapping[str, str], u: float, step: int) -> str:
        return pick_weighted(captions, self.weights, u)

    def columns(self) -> frozenset[str]:
        return frozenset(self.weights)

    def describe(self) -> str:
        return f"each sample reads one of its image's captions: {describe_weights(self.weights)}"
