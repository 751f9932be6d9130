"""normuon: Muon with equal step sizes for all rows of a matrix (`optim/row_norm.py`; arXiv 2510.05491)."""

from __future__ import annotations

from pydantic import Field

from tintype.plan import Plan
from tintype.techniques import muon
from tintype.techniques.technique import Changes, Technique


class Options(muon.Options):
    row_decay: float = Field(0.95, ge=0, lt=1, description="Decay of the running mean square of each row's steps")


def apply(plan: Plan, options: Options) -> Changes:
    return muon.apply(plan, options, "normuon")


TECHNIQUE = Technique(
    seam="optimizer",
    summary="muon with steps of even size for each row",
    apply=apply,
    options=Options,
    paper="arXiv:2510.05491",
)
