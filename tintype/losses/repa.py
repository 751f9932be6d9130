"""repa: a block's tokens, mapped by a small projector, are aligned with a frozen teacher's tokens (arXiv 2410.06940).

Teacher and projector are those of the paper. The teacher's tokens are DINOv2-B's patch tokens after its last norm, on a
grid that matches the denoiser's tokens. The projector has three linear layers with SiLU between them. Differs: the
image is resized to the teacher's input size with antialiasing.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field
from torch import nn

from tintype.losses.alignment import AlignmentOptions, AlignmentPart, AlignmentTerm
from tintype.seams import LossContext


class RepaOptions(AlignmentOptions):
    hidden: int = Field(2048, ge=1, description="Width of the projector's inner layers")


class RepaSettings(AlignmentPart, RepaOptions):
    kind: Literal["repa"] = "repa"

    def build(self, context: LossContext) -> AlignmentTerm:
        return AlignmentTerm(self, context, repa_projector(context.width, self.hidden, self.teacher.width()))


def repa_projector(width: int, hidden: int, out: int) -> nn.Module:
    return nn.Sequential(
        nn.Linear(width, hidden), nn.SiLU(), nn.Linear(hidden, hidden), nn.SiLU(), nn.Linear(hidden, out)
    )
