"""A folder of pictures, looked through to its leaves, with captions in text files beside them.

`dog.txt` is the caption of `dog.jpg` in the column `txt`, `dog.short.txt` that in the column `short`, and so on for any
name between the dots. The column `folder` is the first folder on the way to a picture, for splits that lie so.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from tintype.data.pictures import SUFFIXES
from tintype.data.store.doors import Item, fingerprint
from tintype.errors import UserError

_PLAIN, _FOLDER = "txt", "folder"


def open_folder(path: Path) -> FolderDoor | None:
    if not path.is_dir():
        return None
    shown = [file for file in path.rglob("*") if not any(part.startswith(".") for part in file.relative_to(path).parts)]
    files = sorted(file for file in shown if file.is_file())
    pictures = [file for file in files if file.suffix.lower() in SUFFIXES]
    texts = {file for file in files if file.suffix.lower() == ".txt"}
    return FolderDoor(path, pictures, texts) if pictures else None


class FolderDoor:
    def __init__(self, path: Path, pictures: Sequence[Path], texts: set[Path]) -> None:
        self._path, self._pictures, self._texts = path, pictures, texts
        stems = {picture.with_suffix("") for picture in pictures}
        if len(stems) < len(pictures):
            raise UserError(f"{path} has two pictures of one name, {_twin(pictures)}: their captions would be the same")
        names = {_column(text, stems) for text in texts} - {None}
        self.columns = [*sorted(name for name in names if name), _FOLDER]
        named = {name: name for name in self.columns if name not in (_PLAIN, _FOLDER)}
        self.usual_captions = {**({"long": _PLAIN} if _PLAIN in names else {}), **named}
        self.count = len(pictures)

    @property
    def fingerprint(self) -> list[list[str | int]]:
        return fingerprint([*self._pictures, *sorted(self._texts)])

    def items(self, columns: Sequence[str], first: int) -> Iterator[Item]:
        return (self._item(picture, columns) for picture in self._pictures[first:])

    def _item(self, picture: Path, columns: Sequence[str]) -> Item:
        source = str(picture.relative_to(self._path))
        try:
            texts = {column: self._text(picture, column) for column in columns}
            return Item(source, picture.read_bytes(), texts)
        except (OSError, UnicodeDecodeError) as error:
            return Item(source, None, {}, f"it or its caption cannot be read: {error}")

    def _text(self, picture: Path, column: str) -> str | None:
        if column == _FOLDER:
            parts = picture.relative_to(self._path).parts
            return parts[0] if len(parts) > 1 else None
        file = picture.with_suffix(".txt" if column == _PLAIN else f".{column}.txt")
        return file.read_text(encoding="utf-8-sig") if file in self._texts else None


def _column(text: Path, stems: set[Path]) -> str | None:
    """The column of a text file, or None where it stands beside no picture."""
    stem = text.with_suffix("")
    if stem in stems:
        return _PLAIN
    name = stem.suffix.removeprefix(".")
    return name if name and stem.with_suffix("") in stems else None


def _twin(pictures: Sequence[Path]) -> str:
    seen: dict[Path, Path] = {}
    for picture in pictures:
        if (other := seen.setdefault(picture.with_suffix(""), picture)) is not picture:
            return f"{other.name} and {picture.name}"
    return ""
