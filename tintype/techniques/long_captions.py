"""long-captions: the model reads full descriptions. It is the default; an arm of it is for a baseline with others."""

from __future__ import annotations

from tintype.data.captions import ColumnSettings
from tintype.plan import Plan
from tintype.techniques.technique import Changes, NoOptions, Technique


def apply(plan: Plan, options: NoOptions) -> Changes:
    return {"captions": ColumnSettings(**plan.captions.common, column="long")}


TECHNIQUE = Technique(
    seam="captions",
    summary="train on full descriptions",
    apply=apply,
)
