"""power-ema: keep power-function averages of the weights, from which any length can be had after the run.

The averages are in `optim/power_ema.py`, their snapshots in `train/snapshots.py`, and what is made of these after
the run in `train/reconstruct.py`.
"""

from __future__ import annotations

from tintype.optim.power_ema import PowerEmaSettings
from tintype.plan import Plan
from tintype.techniques.technique import Changes, Technique


def apply(plan: Plan, options: PowerEmaSettings) -> Changes:
    return {"ema": options}


TECHNIQUE = Technique(
    name="power-ema",
    seam="ema",
    summary="average the weights so that any length of the average can be had after the run",
    apply=apply,
    options=PowerEmaSettings,
    paper="arXiv:2312.02696",
)
