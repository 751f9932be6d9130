"""short-captions: the model reads a few words instead of the full description.

In PRX's study, short captions were the most harmful of all changes (FID 18.2 to 36.8), but were scored only on long
prompts. Score on both.
"""

from tintype.data.captions import ColumnSettings
from tintype.techniques.technique import Technique

TECHNIQUE = Technique(
    seam="captions",
    summary="train on captions of a few words instead of full descriptions",
    apply=lambda plan, options: {"captions": ColumnSettings(**plan.captions.common, column="short")},
)
