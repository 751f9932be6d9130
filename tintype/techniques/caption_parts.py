"""caption-parts: random sentences and clauses of a caption are left out, with a new choice in every epoch.

A sentence or clause is kept with probability `keep`; if all n would be left out, one of them is kept. So each sentence
or clause is kept with probability keep + (1 - keep)^n / n.
"""

from __future__ import annotations

from pydantic import Field

from tintype.settings import Settings
from tintype.techniques.technique import Technique


class Options(Settings):
    keep: float = Field(0.5, gt=0, le=1, description="Probability of keeping a sentence or clause")


TECHNIQUE = Technique(
    seam="captions",
    setting="keep_parts",
    summary="leave out random sentences and clauses of each caption",
    options=Options,
)
