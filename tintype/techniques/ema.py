"""ema: keep an exponential average of the weights, and sample and score with it (`optim/ema.py`)."""

from __future__ import annotations

from tintype.optim.ema import EmaSettings
from tintype.plan import Plan
from tintype.techniques.technique import Changes, Technique


def apply(plan: Plan, options: EmaSettings) -> Changes:
    return {"ema": options}


TECHNIQUE = Technique(
    name="ema",
    seam="ema",
    summary="sample and score with an exponential average of the weights",
    apply=apply,
    options=EmaSettings,
    paper="arXiv:2006.11239",
)
