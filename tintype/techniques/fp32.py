"""fp32: store and compute everything in fp32 if the plan computes in bf16.

Islands (operations with a separate precision) get their defaults.
"""

from tintype.settings import PrecisionSettings
from tintype.techniques.technique import Technique

TECHNIQUE = Technique(
    seam="precision",
    summary="store and compute everything in fp32",
    apply=lambda plan, options: {"precision": PrecisionSettings(compute="fp32", loss_scale=plan.precision.loss_scale)},
)
