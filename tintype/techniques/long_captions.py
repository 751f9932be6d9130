"""long-captions: the model reads full descriptions. It is the default; an arm of it is for a baseline with others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tintype.data.captions import ColumnSettings
from tintype.techniques.technique import NoOptions, Technique

if TYPE_CHECKING:
    from tintype.plan import Plan


def apply(plan: Plan, options: NoOptions) -> dict[str, Any]:
    return {"captions": ColumnSettings(**plan.captions.common, column="long")}


TECHNIQUE = Technique(
    name="long-captions",
    seam="captions",
    summary="train on full descriptions",
    apply=apply,
)
