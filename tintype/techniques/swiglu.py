"""swiglu: use a SiLU as the MLP's gate instead of PRX's tanh-GELU (arXiv 2002.05202), with equally many weights."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from tintype.settings import Settings
from tintype.techniques.technique import Technique


class Options(Settings):
    gate: Literal["gelu", "silu"] = Field("silu", description="Activation of the gate")


TECHNIQUE = Technique(
    seam="model",
    setting="gate",
    summary="use SiLU in place of GELU as the activation of the MLP's gate",
    options=Options,
    paper="arXiv:2002.05202",
)
