"""immiscible: each image is paired with the nearest of several noises (`flow/immiscible.py`)."""

from tintype.flow.immiscible import ImmiscibleSettings
from tintype.techniques.technique import Technique

TECHNIQUE = Technique(
    seam="noise",
    summary="pair each image with the nearest of several noises",
    options=ImmiscibleSettings,
    paper="arXiv:2505.18521",
)
