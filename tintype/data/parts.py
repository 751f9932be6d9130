"""The kinds of data and of caption policies that a plan may have."""

from tintype.data.caption_curriculum import CurriculumSettings
from tintype.data.caption_mix import MixSettings
from tintype.data.captions import CaptionsPart, ColumnSettings
from tintype.data.mixture.settings import MixtureSettings
from tintype.data.scenes.settings import ScenesSettings
from tintype.data.store.settings import StoreSettings
from tintype.settings import DataPart

DATA: tuple[type[DataPart], ...] = (ScenesSettings, StoreSettings, MixtureSettings)
CAPTIONS: tuple[type[CaptionsPart], ...] = (ColumnSettings, MixSettings, CurriculumSettings)
