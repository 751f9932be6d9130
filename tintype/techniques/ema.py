"""ema: compute an exponential average of the weights, and use it for sampling and scoring (`optim/ema.py`)."""

from tintype.optim.ema import EmaSettings
from tintype.techniques.technique import Technique

TECHNIQUE = Technique(
    seam="ema",
    summary="sample and score with an exponential average of the weights",
    options=EmaSettings,
    paper="arXiv:2006.11239",
)
