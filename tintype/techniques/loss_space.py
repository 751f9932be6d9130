"""loss-space: compute the loss on the clean image or on the noise instead of on velocities (`flow/loss_space.py`)."""

from tintype.flow.loss_space import LossSpaceSettings
from tintype.techniques.technique import Technique

TECHNIQUE = Technique(
    seam="weighting",
    summary="take the loss on the clean image or on the noise, whatever is predicted",
    options=LossSpaceSettings,
    paper="arXiv:2511.13720",
)
