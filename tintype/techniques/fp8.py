"""fp8: the linear layers of the blocks multiply in FP8, forward and backward, with their weights in fp32.

FP8 needs a GPU of compute capability 8.9 or above (Ada, Hopper). `tintype/model/fp8.py` describes the method.
Modulation, first and last layers, text encoder and losses still multiply in bf16.
"""

from tintype.settings import PrecisionSettings
from tintype.techniques.technique import Technique

TECHNIQUE = Technique(
    seam="precision",
    summary="multiply the matrices of the blocks in FP8 (Ada, Hopper and later GPUs)",
    apply=lambda plan, options: {
        "precision": PrecisionSettings(**{**dict(plan.precision), "matmul": "fp8", "compute": "bf16"})
    },
    paper="arXiv:2209.05433",
)
