"""The embedded scenes, by name: `scenes`, or `scenes:count=1000,style=photo,size_px=64` with settings of theirs.

To look at them, to take them elsewhere, or to try what is done with stores. Behind the training scenes a tenth as many
follow of the held-out ones; the column `split` says which.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor

from tintype.data.store.doors import Item
from tintype.settings import DataSettings, plain
from tintype.strict import Document, assignments_in, parse

_NAME = "scenes"
_SPLIT = "split"
_AT_ONCE = 64


def open_scenes(path: Path) -> ScenesDoor | None:
    name, _, rest = str(path).partition(":")
    if name != _NAME or path.exists():
        return None
    document = Document(str(path), {})
    for assignment in assignments_in(rest):
        document.override(assignment, option=f"{_NAME}:")
    return ScenesDoor(parse(DataSettings, document))


class ScenesDoor:
    columns = ("long", "short", _SPLIT)

    def __init__(self, settings: DataSettings) -> None:
        self._settings = settings
        self.usual_captions = {"long": "long", "short": "short"}
        self._parts = [("train", settings.count), ("eval", -(-settings.count // 10))]
        self.count = sum(count for _, count in self._parts)

    @property
    def fingerprint(self) -> list[list[str | int]]:
        """There are no files; the settings decide the scenes."""
        return [[key, str(value)] for key, value in plain(self._settings).items()]

    def items(self, columns: Sequence[str], first: int) -> Iterator[Item]:
        for split, count in self._parts:
            for start in range(min(first, count), count, _AT_ONCE):
                yield from self._some(split, range(start, min(start + _AT_ONCE, count)), columns)
            first = max(0, first - count)

    def _some(self, split: str, ids: range, columns: Sequence[str]) -> Iterator[Item]:
        from tintype.data.scenes.source import scene_source

        source = scene_source(self._settings, "train" if split == "train" else "eval", torch.device("cpu"))
        for id_, image_CHW, record in zip(ids, source.images(ids), source.records(ids), strict=True):
            texts = {**record.captions, _SPLIT: split}
            yield Item(f"{_NAME}/{split}/{id_}", _png(image_CHW), {column: texts[column] for column in columns})


def _png(image_CHW: Tensor) -> bytes:
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(image_CHW.permute(1, 2, 0).numpy()).save(file, "png")
    return file.getvalue()
