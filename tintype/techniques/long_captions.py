"""long-captions: train on full descriptions instead of other captions.

This is the default; use it as an arm if the baseline reads other captions.
"""

from tintype.data.captions import ColumnSettings
from tintype.techniques.technique import Technique

TECHNIQUE = Technique(
    seam="captions",
    summary="train on long captions, which describe the whole image",
    apply=lambda plan, options: {"captions": ColumnSettings(**plan.captions.common, column="long")},
)
