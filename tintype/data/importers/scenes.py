"""The embedded scenes as an import source, called `scenes`, or `scenes:count=1000,style=photo,size_px=64`.

The training scenes are followed by held-out scenes, which are a tenth as many. The column `split` has each scene's
split. Attributes can be `style`, `light`, `sky`, `ground` and the number of `objects`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path

import torch

from tintype.config.strict import Document, assignments_in, parse
from tintype.data.image_sets import encode
from tintype.data.importers.importer import Importer, Item
from tintype.data.scenes.scene import SCENE_VOCABULARY
from tintype.data.scenes.source import SceneSource, ScenesSettings, Split
from tintype.settings import plain

_NAME = "scenes"
_SPLIT, _OBJECTS = "split", "objects"
_AT_ONCE = 64


def open_scenes(path: Path) -> ScenesImporter | None:
    name, _, rest = str(path).partition(":")
    if name != _NAME or path.exists():
        return None
    document = Document(str(path), {})
    for assignment in assignments_in(rest):
        document.override(assignment, prefix=f"{_NAME}:")
    return ScenesImporter(parse(ScenesSettings, document))


class ScenesImporter(Importer):
    def __init__(self, settings: ScenesSettings) -> None:
        self._settings, self._held_out = settings, -(-settings.count // 10)
        kinds = {**dict.fromkeys((*SCENE_VOCABULARY, _SPLIT), ("text",)), _OBJECTS: ("int",)}
        super().__init__([], ["long", "short", _SPLIT], kinds, settings.count + self._held_out)

    @property
    def fingerprint(self) -> list[list[str | int]]:
        """Return the settings, which define the scenes, since there are no files."""
        return [[key, str(value)] for key, value in plain(self._settings).items()]

    def items(self, columns: Collection[str], first: int) -> Iterator[Item]:
        count = self._settings.count
        yield from self._some("train", range(min(first, count), count))
        yield from self._some("eval", range(max(0, first - count), self._held_out))

    def _some(self, split: Split, ids: range) -> Iterator[Item]:
        source = SceneSource(self._settings, split, torch.device("cpu"))
        for start in range(0, len(ids), _AT_ONCE):
            some = ids[start : start + _AT_ONCE]
            for id_, image_CHW, record in zip(some, source.images(some), source.records(some), strict=True):
                scene = record.attributes
                known = {**{name: vars(scene)[name] for name in SCENE_VOCABULARY}, _OBJECTS: len(scene.objects)}
                values = {**record.captions, **known, _SPLIT: split}
                yield Item(f"{_NAME}/{split}/{id_}", encode(image_CHW, "PNG"), values)
