"""bf16-storage: the trained weights and their moments are stored in bf16 instead of fp32.

Small steps are lost, since rounding removes a step below about 1/256 of a weight. `rounding=stochastic` and
`rounding=kahan` are the two usual remedies. Weight averages and the weights of losses stay in fp32.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from tintype.plan import Plan
from tintype.settings import PrecisionSettings, Settings
from tintype.techniques.technique import Changes, Technique


class Options(Settings):
    rounding: Literal["nearest", "stochastic", "kahan"] = Field(
        "nearest", description="How an updated weight is rounded to bf16"
    )


def apply(plan: Plan, options: Options) -> Changes:
    changes = {"storage": "bf16", "rounding": options.rounding, "compute": "bf16"}
    return {"precision": PrecisionSettings(**{**dict(plan.precision), **changes})}


TECHNIQUE = Technique(
    seam="precision",
    summary="store the trained weights and their moments in bf16",
    apply=apply,
    options=Options,
)
