"""Data sets that `save_to_disk` of the library datasets wrote: `state.json` names Arrow IPC streams.

Several splits lie in folders that `dataset_dict.json` names; the column `folder` says which, unless the rows have a
column of that name.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tintype.data.arrow_file import refuse_compressed
from tintype.data.folders import check_inside
from tintype.data.image_file import read_file
from tintype.data.importers import MOST_TABLE_BYTES, Item, Reading, fingerprint, usual_captions
from tintype.data.importers.beside import FOLDER
from tintype.data.importers.table import image_column, item, kinds, rows, text_columns
from tintype.errors import UserError

_STATE, _DICT = "state.json", "dataset_dict.json"
_END = b"\xff\xff\xff\xff\0\0\0\0"
"""What a whole stream ends with."""


@dataclass(frozen=True)
class _Stream:
    path: Path
    folder: str | None
    rows: int


def open_saved(path: Path, reading: Reading) -> SavedImporter | None:
    if (path / _DICT).is_file():
        names = _json(path / _DICT).get("splits")
        if not isinstance(names, list) or not names or not all(_is_name(name) for name in names):
            raise UserError(f"{path / _DICT} names no splits")
        return SavedImporter(path, {name: path / name for name in names}, reading)
    return SavedImporter(path, {None: path}, reading) if (path / _STATE).is_file() else None


class SavedImporter:
    def __init__(self, path: Path, folders: dict[str | None, Path], reading: Reading) -> None:
        self._path, self._most_bytes = path, reading.limits.bytes
        files = [(name, file) for name, folder in folders.items() for file in _data_files(folder)]
        check_inside(path, [file for _, file in files], reading.follow_links)
        self._streams: list[_Stream] = []
        self._image, self._table, schemas = "", list[str](), []
        for name, file in files:
            with _reading(file) as (mapped, stream):
                image, texts = image_column(stream.schema, str(file)), text_columns(stream.schema)
                if not self._image:
                    self._image, self._table = image, texts
                if missing := {self._image, *self._table} - {image, *texts}:
                    raise UserError(f"{file} lacks the columns {', '.join(sorted(missing))}, which {files[0][1]} has")
                schemas.append(stream.schema)
                self._streams.append(_Stream(file, name, sum(batch.num_rows for batch in stream)))
                if mapped.tell() != mapped.size():
                    raise UserError(f"{file} cannot be read as an Arrow stream: something follows its end")
        folder = [] if None in folders else [FOLDER]
        self.columns = list(dict.fromkeys([*self._table, *folder]))
        self.kinds = {**{name: {"text"} for name in folder}, **kinds(schemas)}
        self.usual_captions = usual_captions(self.columns)
        self.count = sum(stream.rows for stream in self._streams)

    @property
    def fingerprint(self) -> list[list[str | int]]:
        return fingerprint([stream.path for stream in self._streams])

    def items(self, columns: Sequence[str], first: int, attributes: Sequence[str] = ()) -> Iterator[Item]:
        for stream in self._streams:
            if first < stream.rows:
                yield from self._read(stream, columns, attributes, first)
            first = max(0, first - stream.rows)

    def _read(self, stream: _Stream, columns: Sequence[str], attributes: Sequence[str], first: int) -> Iterator[Item]:
        asked = dict.fromkeys([self._image, *columns, *attributes])
        row = 0
        with _reading(stream.path) as (_, batches):
            for batch in batches:
                start = max(0, first - row)
                wanted = batch.select([column for column in asked if column in batch.schema.names]).slice(start)
                for number, values in enumerate(rows(wanted, self._most_bytes), row + start):
                    values[FOLDER] = values.get(FOLDER, (stream.folder or "").encode())
                    place = f"{stream.path.relative_to(self._path)}, row {number}"
                    yield item(values, self._image, columns, attributes, place)
                row += batch.num_rows


@contextmanager
def _reading(path: Path) -> Iterator[tuple[Any, Any]]:
    """The file and the stream in it."""
    import pyarrow

    try:
        with path.open("rb") as file:
            file.seek(-min(len(_END), path.stat().st_size), 2)
            if file.read() != _END:
                raise UserError(f"{path} cannot be read as an Arrow stream: it is cut short, or of another format")
        refuse_compressed(path)
        with pyarrow.memory_map(str(path)) as mapped, pyarrow.ipc.open_stream(mapped) as stream:
            yield mapped, stream
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:  # the last of a column's name
        raise UserError(f"{path} cannot be read as an Arrow stream: {error}") from None


def _data_files(folder: Path) -> list[Path]:
    state = _json(folder / _STATE)
    if state.get("_indices_data_files"):
        raise UserError(f"{folder} has a choice of its rows in a file of its own; save it after flatten_indices()")
    listed = state.get("_data_files")
    names = [one.get("filename") if isinstance(one, dict) else None for one in listed or []]
    if not isinstance(listed, list) or not names or not all(_is_name(name) for name in names):
        raise UserError(f"{folder / _STATE} names no data files in its folder")
    files = [folder / name for name in names if name]
    if missing := next((file for file in files if not file.is_file()), None):
        raise UserError(f"{missing} is missing, and {folder / _STATE} names it; copy the data set again")
    return files


def _is_name(name: Any) -> bool:
    """Of a file or folder that lies in the same folder."""
    return isinstance(name, str) and name not in ("", ".", "..") and Path(name).name == name


def _json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(read_file(path, MOST_TABLE_BYTES))
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path} cannot be read as JSON: {error}") from None
    if not isinstance(found, dict):
        raise UserError(f"{path} holds no JSON object")
    return found
