"""Data sets that `save_to_disk` of Hugging Face datasets wrote. In them, `state.json` names Arrow IPC streams.

If there are several splits, each has a folder that `dataset_dict.json` names. The column `folder` has the split's
folder, unless the rows have a column of that name.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeGuard

import pyarrow

from tintype.data.arrow_file import refuse_compressed
from tintype.data.folders import check_inside
from tintype.data.image_file import read_file
from tintype.data.importers.importer import FOLDER, MOST_TABLE_BYTES, Reading
from tintype.data.importers.table import Table, TableImporter
from tintype.data.parquet_file import rows
from tintype.errors import UserError, as_user_error
from tintype.runtime.files import Json, parse_object

_STATE, _DICT = "state.json", "dataset_dict.json"
_END = b"\xff\xff\xff\xff\0\0\0\0"
"""Last bytes of a complete stream."""


def open_saved(path: Path, reading: Reading) -> TableImporter | None:
    folders: dict[str | None, Path] = {None: path}
    if (path / _DICT).is_file():
        names = _json(path / _DICT).get("splits")
        splits = names if isinstance(names, list) else []
        folders = {name: path / name for name in splits if _is_name(name)}
        if not folders or len(folders) < len(splits):
            raise UserError(f"{path / _DICT} lists no splits")
    elif not (path / _STATE).is_file():
        return None
    files = [(split, file) for split, folder in folders.items() for file in _data_files(folder)]
    check_inside(path, [file for _, file in files], reading.follow_links)
    tables = [_table(path, file, split) for split, file in files]
    return TableImporter(tables, _rows, reading.limits.bytes, [] if None in folders else [FOLDER])


def _rows(table: Table, columns: Sequence[str], most_bytes: int, first: int) -> Iterator[tuple[int, dict[str, object]]]:
    row = 0
    with _reading(table.path) as (_, batches):
        for batch in batches:
            start = max(0, first - row)
            wanted = batch.select([column for column in columns if column in batch.schema.names]).slice(start)
            for number, values in enumerate(rows(wanted, most_bytes), row + start):
                yield number, {FOLDER: (table.split or "").encode(), **values}
            row += batch.num_rows


def _table(source: Path, path: Path, split: str | None) -> Table:
    with _reading(path) as (mapped, stream):
        count = sum(batch.num_rows for batch in stream)
        if mapped.tell() != mapped.size():
            raise UserError(f"{path} cannot be read as an Arrow stream: the file has data after the end of the stream")
        return Table(path, str(path.relative_to(source)), count, stream.schema, split)


@contextmanager
def _reading(path: Path) -> Iterator[tuple[pyarrow.MemoryMappedFile, pyarrow.RecordBatchStreamReader]]:
    kinds = (pyarrow.ArrowException, OSError, UnicodeDecodeError)  # UnicodeDecodeError comes from a column's name
    with as_user_error(kinds, f"{path} cannot be read as an Arrow stream"):
        with path.open("rb") as file:
            file.seek(-min(len(_END), path.stat().st_size), 2)
            if file.read() != _END:
                raise UserError(
                    f"{path} cannot be read as an Arrow stream: the file is truncated, or has another format"
                )
        refuse_compressed(path)
        with pyarrow.memory_map(str(path)) as mapped, pyarrow.ipc.open_stream(mapped) as stream:
            yield mapped, stream


def _data_files(folder: Path) -> list[Path]:
    state = _json(folder / _STATE)
    if state.get("_indices_data_files"):
        raise UserError(
            f"{folder} selects its rows with a separate index file, which tintype cannot read",
            "call flatten_indices() on the data set and save it again",
        )
    listed = state.get("_data_files")
    names = (
        [one.get("filename") if isinstance(one, dict) else None for one in listed] if isinstance(listed, list) else []
    )
    files = [folder / name for name in names if _is_name(name)]
    if not files or len(files) < len(names):
        raise UserError(f"{folder / _STATE} lists no data files in its folder")
    if missing := next((file for file in files if not file.is_file()), None):
        raise UserError(f"{folder / _STATE} lists {missing}, but this file is missing", "copy the data set again")
    return files


def _is_name(name: object) -> TypeGuard[str]:
    """Return whether `name` is a single file or folder name, not a path."""
    return isinstance(name, str) and name not in ("", ".", "..") and Path(name).name == name


def _json(path: Path) -> dict[str, Json]:
    with as_user_error(OSError, f"{path} cannot be read"), as_user_error(ValueError, str(path)):
        return parse_object(read_file(path, MOST_TABLE_BYTES))
