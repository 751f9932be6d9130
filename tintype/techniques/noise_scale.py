"""noise-scale: use noise with a standard deviation other than 1, as in JiT for large images and in PRXPixel
(`flow/path.py`).

x_t = (1 - t) x + t scale noise. At each t, less signal is left, which is similar to a shift of t. Sampling starts from
noise with the same standard deviation.
"""

from __future__ import annotations

from pydantic import Field

from tintype.settings import Settings
from tintype.techniques.technique import Technique


class Options(Settings):
    scale: float = Field(2.0, gt=0, description="Standard deviation of the noise; JiT uses the image side / 256 px")


TECHNIQUE = Technique(
    seam="objective",
    setting="noise_scale",
    summary="use noise with a standard deviation other than 1",
    options=Options,
    paper="arXiv:2511.13720",
)
