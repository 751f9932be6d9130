"""registers: add learned tokens to the image's tokens, and drop them after the last block (arXiv 2309.16588).

Registers take part in attention and MLP in the same way as image tokens. Registers pass through all blocks, and no loss
uses them. Each register adds one vector of the denoiser's width to the weights.
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
    summary="add learned register tokens to the image tokens",
    options=Options,
    paper="arXiv:2309.16588",
    trains=frozenset({"denoiser.registers"}),
)
