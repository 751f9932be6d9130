"""haste: align a block's tokens and attention maps with a frozen teacher's, then stop (arXiv 2505.16792).

HASTE combines REPA (`losses/repa.py`) and attention alignment (`losses/attention.py`), with the same teacher and the
same stop. Differs: the authors give the stop as a step; here the default is a fraction of the training. Each of the two
losses runs the teacher separately.
"""

from __future__ import annotations

from pydantic import Field

from tintype.losses.attention import AttentionSettings
from tintype.losses.repa import RepaOptions, RepaSettings
from tintype.plan import Plan
from tintype.techniques.repa_burn_in import StoppedRepaOptions
from tintype.techniques.technique import Changes, Technique

_LAYERS = 4


class Options(StoppedRepaOptions):
    attention: float = Field(0.5, gt=0, description="Loss weight of the attention maps; `weight` is that of the tokens")
    layers: int | None = Field(
        None,
        ge=1,
        description="Number of blocks up to `block` that are aligned with as many of the teacher's "
        "last layers; by default 4, or all if there are fewer",
    )
    share: float = Field(
        0.5, gt=0, lt=1, description="Share of the training in which this loss is used, in place of a step"
    )


def apply(plan: Plan, options: Options) -> Changes:
    schedule = options.schedule(plan, "haste")
    own = options.resolved(plan)
    block, layers = own["block"], options.layers or min(_LAYERS, own["block"])
    repa = {key: own[key] for key in RepaOptions.model_fields}
    maps = AttentionSettings(
        weight=options.attention, block=block, layers=layers, teacher=options.teacher, schedule=schedule
    )
    return {"losses": (*plan.losses, RepaSettings(**{**repa, "block": block}, schedule=schedule), maps)}


TECHNIQUE = Technique(
    seam="losses",
    summary="align tokens and attention maps with those of a frozen teacher, then stop",
    apply=apply,
    options=Options,
    paper="arXiv:2505.16792",
    part=RepaSettings,
    trains=frozenset({"losses_repa"}),
)
