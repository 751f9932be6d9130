"""contrastive: a sample's velocity is pushed away from velocities for other captions (`losses/contrastive.py`)."""

from tintype.losses.contrastive import ContrastiveSettings
from tintype.techniques.technique import Technique

TECHNIQUE = Technique(
    seam="losses",
    summary="push the velocity away from those of other captions",
    options=ContrastiveSettings,
    paper="arXiv:2506.05350",
)
