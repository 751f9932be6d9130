"""The embedded scenes, by name: `scenes`, or `scenes:count=1000,style=photo,size_px=64` with settings of theirs.

To look at them, to take them elsewhere, or to try what is done with stores. Behind the training scenes a tenth as many
follow of the held-out ones; the column `split` says which. `style`, `light`, `sky`, `ground` and the number of
`objects` can be taken for attributes.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tintype.config.strict import Document, assignments_in, parse
from tintype.data.importers import Item
from tintype.data.scenes.scene import SCENE_VOCABULARY, Scene
from tintype.data.scenes.settings import ScenesSettings
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
        document.override(assignment, option=f"{_NAME}:")
    return ScenesImporter(parse(ScenesSettings, document))


class ScenesImporter:
    columns = ("long", "short", _SPLIT)

    def __init__(self, settings: ScenesSettings) -> None:
        self._settings = settings
        self.kinds = {**dict.fromkeys((*SCENE_VOCABULARY, _SPLIT), ("text",)), _OBJECTS: ("int",)}
        self.usual_captions = {"long": "long", "short": "short"}
        self._parts = [("train", settings.count), ("eval", -(-settings.count // 10))]
        self.count = sum(count for _, count in self._parts)

    @property
    def fingerprint(self) -> list[list[str | int]]:
        """There are no files; the settings decide the scenes."""
        return [[key, str(value)] for key, value in plain(self._settings).items()]

    def items(self, columns: Sequence[str], first: int, attributes: Sequence[str] = ()) -> Iterator[Item]:
        for split, count in self._parts:
            for start in range(min(first, count), count, _AT_ONCE):
                yield from self._some(split, range(start, min(start + _AT_ONCE, count)), columns, attributes)
            first = max(0, first - count)

    def _some(self, split: str, ids: range, columns: Sequence[str], attributes: Sequence[str]) -> Iterator[Item]:
        from tintype.data.scenes.source import scene_source

        source = scene_source(self._settings, "train" if split == "train" else "eval", torch.device("cpu"))
        for id_, image_CHW, record in zip(ids, source.images(ids), source.records(ids), strict=True):
            known = {**record.captions, **_known_of(record.attributes), _SPLIT: split}
            texts, values = ({column: known[column] for column in some} for some in (columns, attributes))
            yield Item(f"{_NAME}/{split}/{id_}", _png(image_CHW), texts, values=values)


def _known_of(scene: Scene) -> dict[str, Any]:
    return {**{name: vars(scene)[name] for name in SCENE_VOCABULARY}, _OBJECTS: len(scene.objects)}


def _png(image_CHW: Tensor) -> bytes:
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(image_CHW.permute(1, 2, 0).numpy()).save(file, "png")
    return file.getvalue()
