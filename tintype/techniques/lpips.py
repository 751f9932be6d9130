"""lpips: compare the predicted image with the true image by LPIPS (`losses/lpips.py`)."""

from tintype.losses.lpips import LpipsLossSettings
from tintype.techniques.technique import Technique

TECHNIQUE = Technique(
    seam="losses",
    summary="compare the predicted image with the true one by LPIPS",
    options=LpipsLossSettings,
    paper="arXiv:2602.02493",
    needs={"objective.kind": "x-prediction"},
)
