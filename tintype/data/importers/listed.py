"""Read JSON Lines files with the paths of images in separate folders, as `Listed` describes them.

Keys of nested objects become columns `NAME.KEY`. The files may be larger than the memory: only each line's offset is
kept, and a line is read again together with its image. Lines whose image folder is missing are skipped, so a partly
downloaded set can be imported.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Iterator
from pathlib import Path

from tintype.data.folders import check_inside, first_folder, leads_out
from tintype.data.image_file import read_file
from tintype.data.importers.importer import FOLDER, MOST_TEXT_BYTES, Importer, Item, Listed, Reading
from tintype.data.store.attributes import add_kinds
from tintype.errors import UserError
from tintype.runtime.files import Json, parse_object


def open_listed(path: Path, reading: Reading) -> ListedImporter | None:
    if reading.listed is None or not path.is_dir():
        return None
    if not any((path / file).is_file() for file in reading.listed.files):
        raise UserError(f"{path} has none of the files {', '.join(reading.listed.files)}")
    return ListedImporter(path, reading.listed, reading)


class ListedImporter(Importer):
    def __init__(self, path: Path, listed: Listed, reading: Reading) -> None:
        self._path, self._listed, self._reading = path, listed, reading
        there = {path / file: path / images for file, images in listed.files.items() if (path / file).is_file()}
        check_inside(path, list(there), reading.follow_links)
        self._places = {file: array("q") for file in there}
        """Byte offsets of the lines that have an image."""
        kinds: dict[str, set[str]] = {}
        folders: dict[Path, bool] = {}
        for file, images in there.items():
            for start, line in _lines(file):
                row = _row(line)
                if isinstance(row, dict):
                    folder = (images / self._name(row)).parent
                    if folder not in folders:
                        folders[folder] = folder.is_dir()
                    if not folders[folder]:
                        continue
                    add_kinds(kinds, row)
                self._places[file].append(start)
        kinds.pop(listed.image, None)
        columns = [*(name for name, some in kinds.items() if "text" in some), FOLDER]
        present = sorted(folder for folder, is_there in folders.items() if is_there)
        count = sum(map(len, self._places.values()))
        self._images = there
        super().__init__([*there, *present], columns, {FOLDER: {"text"}, **kinds}, count)

    def items(self, columns: Collection[str], first: int) -> Iterator[Item]:
        for file, places in self._places.items():
            for start in places[first:]:
                yield self._item(file, start, columns)
            first = max(0, first - len(places))

    def _item(self, file: Path, start: int, columns: Collection[str]) -> Item:
        place = f"{file.relative_to(self._path)}, byte {start}"
        row = _row(next(_lines(file, start))[1])
        if isinstance(row, str):
            return Item(place, problem=row)
        name = self._name(row)
        if not name or leads_out(name):
            return Item(place, problem=f"the value {name} of the key {self._listed.image} is not a file in the folder")
        image = self._images[file] / name
        source = str(image.relative_to(self._path))
        known = {FOLDER: first_folder(image, self._path), **row}
        try:
            check_inside(self._path, [image], self._reading.follow_links)
            content = read_file(image, self._reading.limits.bytes)
        except (OSError, UserError) as error:
            return Item(source, problem=f"the image cannot be read: {error}")
        return Item(source, content, {column: known.get(column) for column in columns})

    def _name(self, row: dict[str, Json]) -> str:
        found = row.get(self._listed.image)
        return found if isinstance(found, str) else ""


def _lines(file: Path, start: int = 0) -> Iterator[tuple[int, bytes]]:
    """Yield each non-empty line with its byte offset. Lines that are too long are truncated."""
    with file.open("rb") as opened:
        opened.seek(start)
        while line := opened.readline(MOST_TEXT_BYTES + 1):
            rest = line
            while len(rest) > MOST_TEXT_BYTES and not rest.endswith(b"\n"):
                rest = opened.readline(MOST_TEXT_BYTES + 1)
            if line.strip():
                yield start, line
            start = opened.tell()


def _row(line: bytes) -> dict[str, Json] | str:
    """Parse a line. Keys of nested objects become `NAME.KEY`. For an invalid line, return an error text."""
    if len(line) > MOST_TEXT_BYTES:
        return f"the line has more than {MOST_TEXT_BYTES:,} bytes"
    try:
        content = parse_object(line.decode("utf-8"))
    except ValueError as error:  # UnicodeDecodeError is one
        return f"the line {error}"
    flat: dict[str, Json] = {}
    for key, value in content.items():
        if isinstance(value, dict):
            flat |= {f"{key}.{inner}": one for inner, one in value.items()}
        else:
            flat[key] = value
    return flat
