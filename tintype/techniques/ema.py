"""ema: keep an exponential average of the weights, and sample and score with it (`optim/ema.py`)."""

from tintype.optim.ema import EmaSettings
from tintype.techniques.technique import Technique

TECHNIQUE = Technique(
    seam="ema",
    summary="sample and score with an exponential average of the weights",
    options=EmaSettings,
    paper="arXiv:2006.11239",
)
