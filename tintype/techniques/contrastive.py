"""contrastive: a sample's velocity keeps away from those of other captions (`losses/contrastive.py`)."""

from __future__ import annotations

from tintype.losses.contrastive import ContrastiveSettings
from tintype.plan import Plan
from tintype.techniques.technique import Changes, Technique


def apply(plan: Plan, options: ContrastiveSettings) -> Changes:
    return {"losses": (*plan.losses, options)}


TECHNIQUE = Technique(
    name="contrastive",
    seam="losses",
    summary="push the velocity away from those of other captions",
    apply=apply,
    options=ContrastiveSettings,
    paper="arXiv:2506.05350",
    part=ContrastiveSettings,
)
