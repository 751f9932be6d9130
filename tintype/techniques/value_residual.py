"""value-residual: the first block's values are mixed into those of all later blocks (arXiv 2410.17897, learnable form).

v = a v_first + b v_own for the image tokens, with a and b of each block trained from 0.5: two numbers for each block
but the first. Values of the text stay each block's own.
"""

from __future__ import annotations

from pydantic import Field

from tintype.settings import Settings
from tintype.techniques.technique import Technique


class Options(Settings):
    mix: bool = Field(True, description="Whether the first block's values are mixed in")


TECHNIQUE = Technique(
    seam="model",
    setting="value_residual",
    summary="mix the first block's values into the later blocks",
    options=Options,
    paper="arXiv:2410.17897",
    trains=frozenset({"denoiser.blocks."}),
)
