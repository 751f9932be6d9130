"""long-captions: the model reads full descriptions. It is the default; an arm of it is for a baseline with others."""

from tintype.data.captions import ColumnSettings
from tintype.techniques.technique import Technique

TECHNIQUE = Technique(
    seam="captions",
    summary="train on full descriptions",
    apply=lambda plan, options: {"captions": ColumnSettings(**plan.captions.common, column="long")},
)
