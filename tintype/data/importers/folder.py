"""A folder of images, searched to its leaves, with captions in text or JSON files beside them.

The column `folder` is the first folder on the path to an image.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path

from tintype.data.folders import files_in
from tintype.data.image_file import BadImageError, read_file
from tintype.data.image_sets import SUFFIXES
from tintype.data.importers.beside import PLAIN, UnreadableError, entries_of, side_columns, text_of
from tintype.data.importers.importer import FOLDER, MOST_TEXT_BYTES, Importer, Item, Reading, first_folder
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


class FolderImporter(Importer):
    def __init__(self, path: Path, images: Sequence[Path], beside: set[Path], most_bytes: int) -> None:
        self._path, self._images, self._beside, self._most_bytes = path, images, beside, most_bytes
        stems: dict[Path, Path] = {}
        for image in images:
            if (other := stems.setdefault(image.with_suffix(""), image)) is not image:
                twins = f"{other.name} and {image.name}"
                raise UserError(f"{path} has two images of one name, {twins}: their captions would be the same")
        self._texts = {column for file in beside if (column := _column(file, stems))}
        entries = _entries(file for file in beside if file.suffix.lower() == ".json" and file.with_suffix("") in stems)
        found = side_columns(path, self._texts, entries)
        kinds = {**found.kinds, FOLDER: {"text"}}
        super().__init__([*images, *sorted(beside)], [*found.columns, FOLDER], kinds, len(images), found.usual)

    def items(self, columns: Collection[str], first: int) -> Iterator[Item]:
        return (self._item(image, set(columns)) for image in self._images[first:])

    def _item(self, image: Path, columns: set[str]) -> Item:
        source = str(image.relative_to(self._path))
        try:
            return Item(source, read_file(image, self._most_bytes), self._values_of(image, columns))
        except (OSError, UnreadableError, BadImageError) as error:
            return Item(source, problem=f"it or its caption cannot be read: {error}")

    def _values_of(self, image: Path, columns: set[str]) -> dict[str, object]:
        found: dict[str, object] = {**dict.fromkeys(columns), FOLDER: first_folder(image, self._path)}
        entries = image.with_suffix(".json")
        if entries in self._beside and columns - self._texts - {FOLDER}:
            known = entries_of(read_file(entries, MOST_TEXT_BYTES), entries.name)
            found.update({key: value for key, value in known.items() if key != FOLDER or isinstance(value, str)})
        for column in self._texts & columns:
            file = image.with_suffix(".txt" if column == PLAIN else f".{column}.txt")
            there = file in self._beside
            found[column] = text_of(read_file(file, MOST_TEXT_BYTES), file.name) if there else None
        return found


def _entries(files: Iterable[Path]) -> dict[str, set[str]]:
    """Return the names of all entries and their kinds; an unreadable file is reported with its image."""
    found: dict[str, set[str]] = {}
    for file in files:
        try:
            add_kinds(found, entries_of(read_file(file, MOST_TEXT_BYTES), file.name))
        except (OSError, UnreadableError, BadImageError):
            continue
    return found


def _column(file: Path, stems: Collection[Path]) -> str | None:
    """Return the column of a text file, or None where it stands beside no image."""
    stem = file.with_suffix("")
    if file.suffix.lower() != ".txt":
        return None
    if stem in stems:
        return PLAIN
    name = stem.suffix.removeprefix(".")
    return name if name and stem.with_suffix("") in stems else None
