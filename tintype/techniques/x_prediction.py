"""x-prediction: the network predicts the clean image, and the loss is taken on velocities (`flow/x_prediction.py`)."""

from tintype.flow.x_prediction import XPredictionSettings
from tintype.techniques.technique import Technique

TECHNIQUE = Technique(
    seam="objective",
    summary="predict the clean image; loss on velocities",
    options=XPredictionSettings,
    paper="arXiv:2511.13720",
)
