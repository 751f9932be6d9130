"""power-ema: keep power-function averages of the weights, from which any length can be had after the run.

The averages are in `optim/power_ema.py`, their snapshots, and what is made of these after the run, in
`train/reconstruct.py`.
"""

from tintype.optim.power_ema import PowerEmaSettings
from tintype.techniques.technique import Technique

TECHNIQUE = Technique(
    seam="ema",
    summary="average the weights so that any length of the average can be had after the run",
    options=PowerEmaSettings,
    paper="arXiv:2312.02696",
)
