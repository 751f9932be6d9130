"""island: set the precision of single operations of the denoiser.

Operations that are not named keep the plan's precision.

`island:timestep=bf16` rounds t as a cast of the denoiser's inputs would; `island:softmax=fp32` computes the attention
in fp32. With one operation per arm, a study shows the cost of each.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from tintype.plan import Plan
from tintype.settings import IslandSettings, PrecisionSettings, Settings
from tintype.techniques.technique import Changes, Technique


class Options(Settings):
    norms: Literal["fp32", "bf16"] | None = Field(None, description="As precision.islands.norms")
    softmax: Literal["fused", "fp32", "bf16"] | None = Field(None, description="As precision.islands.softmax")
    rope: Literal["fp32", "bf16"] | None = Field(None, description="As precision.islands.rope")
    timestep: Literal["fp32", "bf16"] | None = Field(None, description="As precision.islands.timestep")
    modulation: Literal["autocast", "fp32", "bf16"] | None = Field(None, description="As precision.islands.modulation")

    @model_validator(mode="after")
    def _some(self) -> Options:
        if not self.model_dump(exclude_none=True):
            raise ValueError(f"name an island, such as timestep=bf16; valid: {', '.join(Options.model_fields)}")
        return self


def apply(plan: Plan, options: Options) -> Changes:
    islands = IslandSettings(**{**dict(plan.precision.islands), **options.model_dump(exclude_none=True)})
    return {"precision": PrecisionSettings(**{**dict(plan.precision), "islands": islands})}


TECHNIQUE = Technique(
    seam="precision",
    summary="set the precision of norms, softmax, RoPE, timestep or modulation separately",
    apply=apply,
    options=Options,
)
