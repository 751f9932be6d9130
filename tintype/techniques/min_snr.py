"""min-snr: weight the error of x by min(SNR, γ), whatever the network predicts (`flow/min_snr.py`)."""

from __future__ import annotations

from tintype.flow.min_snr import MinSnrSettings
from tintype.plan import Plan
from tintype.techniques.technique import Changes, Technique


def apply(plan: Plan, options: MinSnrSettings) -> Changes:
    return {"weighting": options}


TECHNIQUE = Technique(
    name="min-snr",
    seam="weighting",
    summary="weight each time by its signal-to-noise ratio, up to a bound",
    apply=apply,
    options=MinSnrSettings,
    paper="arXiv:2303.09556",
)
