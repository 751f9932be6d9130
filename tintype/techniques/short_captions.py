"""short-captions: the model reads a few words instead of the full description.

PRX's study found this the most harmful of all changes (FID 18.2 to 36.8), scoring on long prompts only. Score on both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tintype.data.captions import ColumnSettings
from tintype.techniques.technique import NoOptions, Technique

if TYPE_CHECKING:
    from tintype.plan import Plan


def apply(plan: Plan, options: NoOptions) -> dict[str, Any]:
    return {"captions": ColumnSettings(**plan.captions.common, column="short")}


TECHNIQUE = Technique(
    name="short-captions",
    seam="captions",
    summary="train on captions of a few words instead of full descriptions",
    apply=apply,
)
