"""noise-scale: noise of another deviation than 1, as JiT has it for large images and PRXPixel for all (`flow/path.py`).

x_t = (1 - t) x + t scale noise: at each t less of the signal is left, as with a shift of t. Sampling starts from noise
of that deviation.
"""

from __future__ import annotations

from pydantic import Field

from tintype.settings import Settings
from tintype.techniques.technique import Technique


class Options(Settings):
    scale: float = Field(2.0, gt=0, description="Deviation of the noise; JiT takes the side of the image / 256 px")


TECHNIQUE = Technique(
    seam="objective",
    setting="noise_scale",
    summary="noise of another deviation than 1",
    options=Options,
    paper="arXiv:2511.13720",
)
