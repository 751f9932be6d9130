"""fp32: store and compute everything in fp32, where the plan computes in bf16. Islands get their defaults."""

from tintype.settings import PrecisionSettings
from tintype.techniques.technique import Technique

TECHNIQUE = Technique(
    seam="precision",
    summary="store and compute everything in fp32",
    apply=lambda plan, options: {"precision": PrecisionSettings(compute="fp32", loss_scale=plan.precision.loss_scale)},
)
