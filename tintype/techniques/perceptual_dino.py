"""perceptual-dino: compare the predicted and the true image by DINOv2's patch tokens (`losses/perceptual_dino.py`)."""

from tintype.losses.perceptual_dino import PerceptualDinoSettings
from tintype.techniques.technique import Technique

TECHNIQUE = Technique(
    seam="losses",
    summary="compare the predicted image with the true one by DINOv2's patch tokens",
    options=PerceptualDinoSettings,
    paper="arXiv:2602.02493",
    needs={"objective.kind": "x-prediction"},
)
