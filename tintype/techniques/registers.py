"""registers: learned tokens beside the image's tokens, dropped after the last block (arXiv 2309.16588).

Registers take part in attention and MLP like image tokens. Registers are never routed around blocks, and no loss sees
them. Each register adds one vector of the denoiser's width to the weights.
"""

from __future__ import annotations

from pydantic import Field

from tintype.settings import Settings
from tintype.techniques.technique import Technique


class Options(Settings):
    count: int = Field(4, ge=1, description="Number of registers")


TECHNIQUE = Technique(
    seam="model",
    setting="registers",
    summary="learned tokens beside the image's",
    options=Options,
    paper="arXiv:2309.16588",
    trains=frozenset({"denoiser.registers"}),
)
