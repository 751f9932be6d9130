"""Settings of objectives, weightings and routes: what all kinds do."""

from __future__ import annotations

from typing import ClassVar, Literal

from tintype.seams import Objective, Router, Weighting
from tintype.settings import ModelSettings, Part, PlanView, TimeSettings


class ObjectivePart(Part):
    predicts: ClassVar[Literal["velocity", "x"]]

    def build(self, time: TimeSettings) -> Objective:
        raise NotImplementedError


class RoutePart(Part):
    any_shape: ClassVar[bool] = False
    """Whether it can route images of several shapes in one run."""

    def check(self, plan: PlanView) -> None:
        """Raises ValueError where the plan cannot have this route."""

    def sparse_blocks(self, step: int) -> range:
        """The blocks, counted from 0, that see a part of the tokens only at this step."""
        raise NotImplementedError

    def build(self, model: ModelSettings) -> Router:
        raise NotImplementedError


class WeightingPart(Part):
    def build(self, time: TimeSettings, objective: Objective) -> Weighting:
        raise NotImplementedError
