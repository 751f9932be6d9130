"""min-snr: weight the error of x by min(SNR, γ), for every prediction type of the network (`flow/min_snr.py`)."""

from tintype.flow.min_snr import MinSnrSettings
from tintype.techniques.technique import Technique

TECHNIQUE = Technique(
    seam="weighting",
    summary="weight each time by its signal-to-noise ratio, up to a bound",
    options=MinSnrSettings,
    paper="arXiv:2303.09556",
)
