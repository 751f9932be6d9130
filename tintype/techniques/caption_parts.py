"""caption-parts: some sentences and clauses of a caption are left out, others in every epoch.

A part is kept with the probability `keep`; where all n would go, one of them stays. So each is kept with the
probability keep + (1 - keep)^n / n.
"""

from __future__ import annotations

from pydantic import Field

from tintype.settings import Settings
from tintype.techniques.technique import Technique


class Options(Settings):
    keep: float = Field(0.5, gt=0, le=1, description="The probability with which a sentence or clause is kept")


TECHNIQUE = Technique(
    seam="captions",
    setting="keep_parts",
    summary="leave out some sentences and clauses of each caption, others each time",
    options=Options,
)
