"""irepa: align a block's tokens with a teacher, and emphasise its spatial structure (`losses/irepa.py`)."""

from tintype.losses.irepa import IrepaOptions, IrepaSettings
from tintype.techniques.technique import Technique

TECHNIQUE = Technique(
    seam="losses",
    summary="align a block's grid of tokens with a frozen teacher's spatial structure",
    apply=lambda plan, options: {"losses": (*plan.losses, IrepaSettings(**options.resolved(plan)))},
    options=IrepaOptions,
    paper="arXiv:2512.10794",
    part=IrepaSettings,
    trains=frozenset({"losses_irepa"}),
)
