"""repa: a block's tokens, through a small projector, are aligned with a frozen teacher's (arXiv 2410.06940).

Teacher and projector are the paper's: DINOv2-B's patch tokens after its last norm, a grid that matches token for token,
three linear layers with SiLU between them. Differs: the image is brought to the teacher's input with antialiasing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tintype.losses import Scheduled
from tintype.losses.alignment import RepaOptions, RepaSettings
from tintype.techniques.technique import Technique

if TYPE_CHECKING:
    from tintype.plan import Plan


class Options(RepaOptions, Scheduled):
    """REPA's, and a schedule of its weight."""


def apply(plan: Plan, options: Options) -> dict[str, Any]:
    return {"losses": (*plan.losses, RepaSettings(**options.resolved(plan)))}


TECHNIQUE = Technique(
    name="repa",
    seam="losses",
    summary="align a block's tokens with a frozen teacher's",
    apply=apply,
    options=Options,
    paper="arXiv:2410.06940",
    part=RepaSettings,
    trains=frozenset({"losses_repa"}),
)
