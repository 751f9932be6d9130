"""A folder of pictures, looked through to its leaves, with captions in text or JSON files beside them.

The column `folder` is the first folder on the way to a picture, for splits that lie so.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from tintype.data.pictures import SUFFIXES
from tintype.data.store.doors import Item, files_in, fingerprint, first_folder
from tintype.data.store.doors.beside import FOLDER, PLAIN, UnreadableError, captions_beside, entries_of, text_of
from tintype.data.store.doors.metadata import is_metadata
from tintype.errors import UserError


def open_folder(path: Path) -> FolderDoor | None:
    if not path.is_dir():
        return None
    files = files_in(path)
    pictures = [file for file in files if file.suffix.lower() in SUFFIXES]
    if not pictures or any(is_metadata(file) for file in files):
        return None
    return FolderDoor(path, pictures, {file for file in files if file.suffix.lower() in (".txt", ".json")})


class FolderDoor:
    def __init__(self, path: Path, pictures: Sequence[Path], beside: set[Path]) -> None:
        self._path, self._pictures, self._beside = path, pictures, beside
        stems = {picture.with_suffix("") for picture in pictures}
        if len(stems) < len(pictures):
            raise UserError(f"{path} has two pictures of one name, {_twin(pictures)}: their captions would be the same")
        texts = {column for file in beside if (column := _column(file, stems))}
        entries = _entries(file for file in beside if file.suffix.lower() == ".json" and file.with_suffix("") in stems)
        if double := sorted(texts & entries):
            raise UserError(f"{path}: {', '.join(double)} is the name of .txt files and of entries in .json files")
        self._texts = texts
        self.columns = list(dict.fromkeys([*sorted(texts | entries), FOLDER]))
        self.usual_captions = captions_beside(texts, entries)
        self.count = len(pictures)

    @property
    def fingerprint(self) -> list[list[str | int]]:
        return fingerprint([*self._pictures, *sorted(self._beside)])

    def items(self, columns: Sequence[str], first: int) -> Iterator[Item]:
        return (self._item(picture, columns) for picture in self._pictures[first:])

    def _item(self, picture: Path, columns: Sequence[str]) -> Item:
        source = str(picture.relative_to(self._path))
        try:
            texts = self._texts_of(picture, columns)
            return Item(source, picture.read_bytes(), texts)
        except (OSError, UnreadableError) as error:
            return Item(source, None, {}, f"it or its caption cannot be read: {error}")

    def _texts_of(self, picture: Path, columns: Sequence[str]) -> dict[str, str | None]:
        found: dict[str, str | None] = {**dict.fromkeys(columns), FOLDER: first_folder(picture, self._path)}
        entries = picture.with_suffix(".json")
        if entries in self._beside and set(columns) - self._texts - {FOLDER}:
            found.update(entries_of(entries.read_bytes(), entries.name))
        for column in self._texts & set(columns):
            file = picture.with_suffix(".txt" if column == PLAIN else f".{column}.txt")
            found[column] = text_of(file.read_bytes(), file.name) if file in self._beside else None
        return {column: found[column] for column in columns}


def _entries(files: Iterator[Path]) -> set[str]:
    """The names of all entries; a file that cannot be read is told of when its picture comes."""
    found: set[str] = set()
    for file in files:
        try:
            found.update(entries_of(file.read_bytes(), file.name))
        except (OSError, UnreadableError):
            continue
    return found


def _column(file: Path, stems: set[Path]) -> str | None:
    """The column of a text file, or None where it stands beside no picture."""
    stem = file.with_suffix("")
    if file.suffix.lower() != ".txt":
        return None
    if stem in stems:
        return PLAIN
    name = stem.suffix.removeprefix(".")
    return name if name and stem.with_suffix("") in stems else None


def _twin(pictures: Sequence[Path]) -> str:
    seen: dict[Path, Path] = {}
    for picture in pictures:
        if (other := seen.setdefault(picture.with_suffix(""), picture)) is not picture:
            return f"{other.name} and {picture.name}"
    return ""
