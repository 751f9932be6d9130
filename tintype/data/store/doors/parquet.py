"""Parquet files with a column `image`: bytes, or a struct with `bytes` and `path`, as data sets on the hub have it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tintype.data.store.doors import Item, fingerprint, usual_captions
from tintype.errors import UserError

_IMAGE = "image"
_ROWS = 64


def open_parquet(path: Path) -> ParquetDoor | None:
    """A file, or a folder with such files at any depth, in the order of their names."""
    if path.is_file():
        return ParquetDoor([path]) if path.suffix.lower() == ".parquet" else None
    files = sorted(file for file in path.rglob("*") if file.suffix.lower() == ".parquet" and _shown(file, path))
    return ParquetDoor(files) if files else None


def _shown(file: Path, folder: Path) -> bool:
    return file.is_file() and not any(part.startswith(".") for part in file.relative_to(folder).parts)


class ParquetDoor:
    def __init__(self, files: Sequence[Path]) -> None:
        self._files = files
        self.columns, rows = _text_columns(files[0]), []
        for file in files:
            if missing := set(self.columns) - set(_text_columns(file)):
                raise UserError(f"{file} lacks the columns {', '.join(sorted(missing))}, which {files[0]} has")
            rows.append(_open(file).metadata.num_rows)
        self.count = sum(rows)
        self.usual_captions = usual_captions(self.columns)

    @property
    def fingerprint(self) -> list[list[str | int]]:
        return fingerprint(self._files)

    def items(self, columns: Sequence[str], first: int) -> Iterator[Item]:
        for file in self._files:
            rows = _open(file).metadata.num_rows
            if first < rows:
                yield from _read(file, columns, first)
            first = max(0, first - rows)


def _read(path: Path, columns: Sequence[str], first: int) -> Iterator[Item]:
    from pyarrow import ArrowException

    file = _open(path)
    groups: list[int] = []
    row = 0
    for group in range(file.num_row_groups):
        rows = file.metadata.row_group(group).num_rows
        if groups or row + rows > first:
            groups.append(group)
        else:
            row += rows
    wanted = list(dict.fromkeys([_IMAGE, *columns]))
    try:
        for batch in file.iter_batches(batch_size=_ROWS, row_groups=groups, columns=wanted):
            for values in batch.to_pylist():
                if row >= first:
                    yield _item(values, columns, f"{path.name}, row {row}")
                row += 1
    except ArrowException as error:
        raise UserError(f"{path} cannot be read as a Parquet file, from row {row} on: {error}") from None


def _item(values: dict[str, Any], columns: Sequence[str], place: str) -> Item:
    image = values[_IMAGE]
    content = image.get("bytes") if isinstance(image, dict) else image
    path = image.get("path") if isinstance(image, dict) else None
    texts = {column: values[column] for column in columns}
    source = f"{place}, {path}" if path else place
    if not isinstance(content, bytes):
        return Item(source, None, texts, "the column 'image' holds no bytes of an image file")
    return Item(source, content, texts)


def _open(path: Path) -> Any:
    from pyarrow import ArrowException, parquet

    try:
        return parquet.ParquetFile(path)
    except (ArrowException, OSError) as error:
        raise UserError(f"{path} cannot be read as a Parquet file: {error}") from None


def _text_columns(path: Path) -> list[str]:
    from pyarrow import types

    fields = _open(path).schema_arrow
    if _IMAGE not in fields.names:
        raise UserError(f"{path} has no column 'image'; its columns are {', '.join(fields.names)}")
    plain = {one.name: one.type.value_type if types.is_dictionary(one.type) else one.type for one in fields}
    return [name for name, kind in plain.items() if types.is_string(kind) or types.is_large_string(kind)]
