"""no-qk-norm: remove the norm of queries and keys before the attention (the norm is described in arXiv 2302.05442).

This change removes three vectors of the size of a head from each block.
"""

from __future__ import annotations

from pydantic import Field

from tintype.settings import Settings
from tintype.techniques.technique import Technique


class Options(Settings):
    norm: bool = Field(False, description="Whether queries and keys are normalised")


TECHNIQUE = Technique(
    seam="model",
    setting="qk_norm",
    summary="remove the norm of queries and keys",
    options=Options,
    paper="arXiv:2302.05442",
)
