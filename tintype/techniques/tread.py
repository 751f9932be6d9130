"""tread: a random subset of the image tokens skips a range of blocks and returns unchanged (`flow/tread.py`)."""

from __future__ import annotations

from pydantic import Field

from tintype.flow.routes import RouteOptions
from tintype.flow.tread import TreadSettings
from tintype.techniques.technique import Technique


class Options(RouteOptions):
    share: float = Field(0.5, gt=0, lt=1, description="Share of the tokens that skip the middle blocks")


TECHNIQUE = Technique(
    seam="route",
    summary="a random half of the tokens skips the middle blocks in training",
    apply=lambda plan, options: {"route": TreadSettings(**options.resolved(plan))},
    options=Options,
    paper="arXiv:2501.04765",
)
