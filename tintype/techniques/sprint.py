"""sprint: the middle blocks process a quarter of the tokens; a layer fuses both streams (`flow/sprint.py`)."""

from __future__ import annotations

from pydantic import Field

from tintype.flow.routes import RouteOptions
from tintype.flow.sprint import SprintOptions, SprintSettings
from tintype.techniques.technique import Technique


class Options(SprintOptions, RouteOptions):
    share: float = Field(0.75, gt=0, lt=1, description="Share of the tokens that skip the middle blocks")


TECHNIQUE = Technique(
    seam="route",
    summary="the middle blocks see a quarter of the tokens; a layer fuses them with the dense stream",
    apply=lambda plan, options: {"route": SprintSettings(**options.resolved(plan))},
    options=Options,
    paper="arXiv:2510.21986",
    trains=frozenset({"router"}),
)
