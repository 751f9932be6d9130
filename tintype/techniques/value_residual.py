"""value-residual: mix the first block's values into the values of all later blocks (arXiv 2410.17897).

The technique uses the paper's learnable form, v = a v_first + b v_own, for the image tokens. Every block except the
first trains its own a and b, starting at 0.5. Values of the text are not mixed.
"""

from __future__ import annotations

from pydantic import Field

from tintype.settings import Settings
from tintype.techniques.technique import Technique


class Options(Settings):
    mix: bool = Field(
        True, description="Whether the first block's attention values are mixed into those of later blocks"
    )


TECHNIQUE = Technique(
    seam="model",
    setting="value_residual",
    summary="mix the first block's attention values into those of later blocks",
    options=Options,
    paper="arXiv:2410.17897",
    trains=frozenset({"denoiser.blocks."}),
)
