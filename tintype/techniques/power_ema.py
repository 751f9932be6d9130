"""power-ema: compute power-function averages of the weights, from which an average of any length can be computed after
the run.

`optim/power_ema.py` computes the averages. `train/reconstruct.py` stores snapshots of the averages and computes
averages of other lengths.
"""

from tintype.optim.power_ema import PowerEmaSettings
from tintype.techniques.technique import Technique

TECHNIQUE = Technique(
    seam="ema",
    summary="store weight averages from which an average of any length can be reconstructed after the run",
    options=PowerEmaSettings,
    paper="arXiv:2312.02696",
)
