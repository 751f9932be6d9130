"""self-alignment: align a block's tokens with a later block of the averaged denoiser (`losses/self_alignment.py`)."""

from tintype.losses.self_alignment import SelfAlignmentOptions, SelfAlignmentSettings
from tintype.techniques.technique import Technique

TECHNIQUE = Technique(
    seam="losses",
    summary="align a block's tokens with a later block of the weight average, which sees less noise",
    apply=lambda plan, options: {"losses": (*plan.losses, SelfAlignmentSettings(**options.resolved(plan)))},
    options=SelfAlignmentOptions,
    paper="arXiv:2505.02831",
    part=SelfAlignmentSettings,
    trains=frozenset({"losses_self-alignment"}),
    needs={"ema.decay": "0.9"},
)
