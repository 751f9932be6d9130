"""A folder of images, looked through to its leaves, with captions in text or JSON files beside them.

The column `folder` is the first folder on the way to an image, for splits that lie so.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tintype.data.folders import files_in
from tintype.data.image_file import BadImageError, read_file
from tintype.data.image_sets import SUFFIXES
from tintype.data.importers import MOST_TEXT_BYTES, Item, Reading, fingerprint, first_folder
from tintype.data.importers.beside import (
    FOLDER,
    PLAIN,
    UnreadableError,
    captions_beside,
    entries_of,
    kinds_beside,
    strings_in,
    text_of,
)
from tintype.data.importers.metadata import is_metadata
from tintype.data.store.attributes import add_kinds
from tintype.errors import UserError


def open_folder(path: Path, reading: Reading) -> FolderImporter | None:
    if not path.is_dir():
        return None
    files = files_in(path, follow_links=reading.follow_links)
    images = [file for file in files if file.suffix.lower() in SUFFIXES]
    if not images or any(is_metadata(file) for file in files):
        return None
    beside = {file for file in files if file.suffix.lower() in (".txt", ".json")}
    return FolderImporter(path, images, beside, reading.limits.bytes)


class FolderImporter:
    def __init__(self, path: Path, images: Sequence[Path], beside: set[Path], most_bytes: int) -> None:
        self._path, self._images, self._beside, self._most_bytes = path, images, beside, most_bytes
        stems = {image.with_suffix("") for image in images}
        if len(stems) < len(images):
            raise UserError(f"{path} has two images of one name, {_twin(images)}: their captions would be the same")
        texts = {column for file in beside if (column := _column(file, stems))}
        kinds = _entries(file for file in beside if file.suffix.lower() == ".json" and file.with_suffix("") in stems)
        entries = {name for name, some in kinds.items() if "text" in some}
        if double := sorted(texts & entries):
            raise UserError(f"{path}: {', '.join(double)} is the name of .txt files and of entries in .json files")
        self._texts = texts
        self.columns = list(dict.fromkeys([*sorted(texts | entries), FOLDER]))
        self.kinds = kinds_beside({*texts, FOLDER}, kinds)
        self.usual_captions = captions_beside(texts, entries)
        self.count = len(images)

    @property
    def fingerprint(self) -> list[list[str | int]]:
        return fingerprint([*self._images, *sorted(self._beside)])

    def items(self, columns: Sequence[str], first: int, attributes: Sequence[str] = ()) -> Iterator[Item]:
        return (self._item(image, columns, attributes) for image in self._images[first:])

    def _item(self, image: Path, columns: Sequence[str], attributes: Sequence[str]) -> Item:
        source = str(image.relative_to(self._path))
        try:
            found = self._values_of(image, {*columns, *attributes})
            texts = {**dict.fromkeys(columns), **strings_in({column: found[column] for column in columns})}
            content = read_file(image, self._most_bytes)
            return Item(source, content, texts, values={column: found[column] for column in attributes})
        except (OSError, UnreadableError, BadImageError) as error:
            return Item(source, None, {}, f"it or its caption cannot be read: {error}")

    def _values_of(self, image: Path, columns: set[str]) -> dict[str, Any]:
        found: dict[str, Any] = {**dict.fromkeys(columns), FOLDER: first_folder(image, self._path)}
        entries = image.with_suffix(".json")
        if entries in self._beside and columns - self._texts - {FOLDER}:
            known = entries_of(read_file(entries, MOST_TEXT_BYTES), entries.name)
            found.update({key: value for key, value in known.items() if key != FOLDER or isinstance(value, str)})
        for column in self._texts & columns:
            file = image.with_suffix(".txt" if column == PLAIN else f".{column}.txt")
            there = file in self._beside
            found[column] = text_of(read_file(file, MOST_TEXT_BYTES), file.name) if there else None
        return found


def _entries(files: Iterator[Path]) -> dict[str, set[str]]:
    """The names of all entries and their kinds; a file that cannot be read is told of when its image comes."""
    found: dict[str, set[str]] = {}
    for file in files:
        try:
            add_kinds(found, entries_of(read_file(file, MOST_TEXT_BYTES), file.name))
        except (OSError, UnreadableError, BadImageError):
            continue
    return found


def _column(file: Path, stems: set[Path]) -> str | None:
    """The column of a text file, or None where it stands beside no image."""
    stem = file.with_suffix("")
    if file.suffix.lower() != ".txt":
        return None
    if stem in stems:
        return PLAIN
    name = stem.suffix.removeprefix(".")
    return name if name and stem.with_suffix("") in stems else None


def _twin(images: Sequence[Path]) -> str:
    seen: dict[Path, Path] = {}
    for image in images:
        if (other := seen.setdefault(image.with_suffix(""), image)) is not image:
            return f"{other.name} and {image.name}"
    return ""
