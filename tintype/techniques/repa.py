"""repa: align a block's tokens, after a small projector, with a frozen teacher's tokens (`losses/repa.py`)."""

from __future__ import annotations

from tintype.losses.part import Scheduled
from tintype.losses.repa import RepaOptions, RepaSettings
from tintype.techniques.technique import Technique


class Options(RepaOptions, Scheduled):
    """The options of REPA, and a schedule of the loss weight."""


TECHNIQUE = Technique(
    seam="losses",
    summary="align a block's tokens with a frozen teacher's",
    apply=lambda plan, options: {"losses": (*plan.losses, RepaSettings(**options.resolved(plan)))},
    options=Options,
    paper="arXiv:2410.06940",
    part=RepaSettings,
    trains=frozenset({"losses_repa"}),
)
