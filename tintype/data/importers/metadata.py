"""A folder of images with a `metadata.jsonl`, `.csv` or `.parquet`, as in Hugging Face image folders.

Each row has an image's path in `file_name`, relative to the metadata file's folder. The row's other values are columns,
and texts among them can be captions. An image that no row names becomes an item with a problem.

The column `folder` is the first folder on the path to an image, unless the rows have a column of that name.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path

from tintype.data.folders import check_inside, files_in, first_folder, leads_out
from tintype.data.image_file import read_file
from tintype.data.image_sets import SUFFIXES
from tintype.data.importers.importer import FOLDER, MOST_TABLE_BYTES, MOST_TEXT_BYTES, Importer, Item, Reading
from tintype.data.importers.table import IMAGE, kinds
from tintype.data.parquet_file import TooLarge, open_bounded, parquet_rows
from tintype.data.store.attributes import kinds_in
from tintype.errors import UserError
from tintype.runtime.files import parse_object

_NAME = "file_name"
_LONGEST_CELL = 1 << 27


def _name(row: Item) -> str | None:
    found = row.values.get(_NAME)
    return found if isinstance(found, str) else None


def _is_table(file: Path) -> bool:
    return file.name == "metadata.parquet"


def is_metadata(file: Path) -> bool:
    """Return whether a file is metadata. A `metadata.parquet` with image bytes and no file names is not metadata."""
    if _is_table(file):
        names = open_bounded(file).schema_arrow.names
        return _NAME in names or IMAGE not in names
    return file.name in _READERS


def open_metadata(path: Path, reading: Reading) -> MetadataImporter | None:
    if not path.is_dir():
        return None
    files = files_in(path, follow_links=reading.follow_links)
    metadata = [file for file in files if is_metadata(file)]
    images = [file for file in files if file.suffix.lower() in SUFFIXES]
    others = [file for file in files if file.suffix.lower() in (".tar", ".parquet", ".mds", ".arrow")]
    if not metadata or (not images and set(others) - set(metadata)):
        return None
    return MetadataImporter(path, metadata, images, reading)


class MetadataImporter(Importer):
    def __init__(self, path: Path, metadata: Sequence[Path], images: Sequence[Path], reading: Reading) -> None:
        self._path, self._reading = path, reading
        folders = [file.parent for file in metadata]
        if twice := next((folder for folder in folders if folders.count(folder) > 1), None):
            raise UserError(f"{twice} has several metadata files", "keep only one metadata file in the folder")
        self._rows = [(file.parent, row) for file in metadata for row in _READERS[file.name](file)]
        named = {folder / name for folder, row in self._rows if (name := _name(row)) is not None}
        self._unnamed = [image for image in images if image not in named]
        if not named:
            raise UserError(f"{metadata[0]} has no column '{_NAME}', which names the image of each row")
        seen = kinds_in(row.values for _, row in self._rows)
        for name, some in kinds([open_bounded(file).schema_arrow for file in metadata if _is_table(file)]).items():
            seen.setdefault(name, set()).update(some)
        del seen[_NAME]
        columns = [*(name for name, some in seen.items() if "text" in some), FOLDER]
        count = len(self._rows) + len(self._unnamed)
        super().__init__([*metadata, *images], columns, {FOLDER: {"text"}, **seen}, count)

    def items(self, columns: Collection[str], first: int) -> Iterator[Item]:
        for folder, row in self._rows[first:]:
            yield self._item(folder, row, columns)
        for image in self._unnamed[max(0, first - len(self._rows)) :]:
            yield Item(str(image.relative_to(self._path)), problem="no row of the metadata names this image")

    def _item(self, folder: Path, row: Item, columns: Collection[str]) -> Item:
        if row.problem:
            return row
        name = _name(row) or ""
        if not name.strip():
            return Item(row.source, problem=f"the {_NAME} of this row is empty")
        if leads_out(name):
            return Item(row.source, problem=f"the {_NAME} {name} of this row is a path outside the folder")
        file = folder / name
        source = str(file.relative_to(self._path))
        known = {FOLDER: first_folder(file, self._path), **row.values}
        try:
            if not file.is_file():
                return Item(source, problem=f"{row.source} names this image, but the file does not exist")
            check_inside(self._path, [file], self._reading.follow_links)
            content = read_file(file, self._reading.limits.bytes)
            return Item(source, content, {column: known.get(column) for column in columns})
        except (OSError, UserError) as error:
            return Item(source, problem=f"the image cannot be read: {error}")


def _text(file: Path) -> str:
    """Return the text of a file. Bytes that are not UTF-8 are kept, so only the rows with such bytes are refused."""
    return read_file(file, MOST_TABLE_BYTES).decode("utf-8-sig", "surrogateescape")


def _read_jsonl(file: Path) -> Iterator[Item]:
    for number, line in enumerate(_text(file).split("\n"), 1):
        place = f"{file.name}, line {number}"
        if line.strip():
            try:
                yield Item(place, values=parse_object(line))
            except ValueError as error:
                yield Item(place, problem=f"the row {error}")


def _read_csv(file: Path) -> Iterator[Item]:
    before = csv.field_size_limit(_LONGEST_CELL)
    reader = csv.reader(io.StringIO(_text(file), newline=""), strict=True)
    try:
        header = next(reader, [])
        for cells in reader:
            place = f"{file.name}, line {reader.line_num}"
            if len(cells) == len(header):
                yield Item(place, values=dict(zip(header, cells, strict=True)))
            elif cells:
                yield Item(place, problem=f"the row has {len(cells)} cells, but the header has {len(header)}")
    except csv.Error as error:
        raise UserError(f"{file} cannot be read as CSV, line {reader.line_num}: {error}") from None
    finally:
        csv.field_size_limit(before)


def _read_parquet(file: Path) -> Iterator[Item]:
    columns = kinds([open_bounded(file).schema_arrow])
    for number, values in parquet_rows(file, list(columns), MOST_TEXT_BYTES):
        place = f"{file.name}, row {number}"
        if large := next((value for value in values.values() if isinstance(value, TooLarge)), None):
            yield Item(place, problem=str(large))
        else:
            yield Item(place, values={name: _decoded(value) for name, value in values.items()})


def _decoded(value: object) -> object:
    return value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else value


_READERS: dict[str, Callable[[Path], Iterator[Item]]] = {
    "metadata.jsonl": _read_jsonl,
    "metadata.csv": _read_csv,
    "metadata.parquet": _read_parquet,
}
