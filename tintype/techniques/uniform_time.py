"""uniform-time: sample t uniformly, like SiT and REPA, instead of from the baseline's density."""

from tintype.flow.time_density import UniformTime
from tintype.techniques.technique import Technique

TECHNIQUE = Technique(
    seam="time",
    summary="draw the training time uniformly",
    apply=lambda plan, options: {"time": UniformTime(**plan.time.common)},
    paper="arXiv:2401.08740",
)
