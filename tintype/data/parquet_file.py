"""Read foreign Parquet files and rows of Arrow tables, one row at a time and within limits.

Arrow's reader unpacks the footer and each page as a whole. The reader does not check the sizes that the file states. A
malicious file of a few kilobytes can make the reader allocate gigabytes. So this module checks the headers of all pages
of a column before the column is read. Headers are parsed according to the format's definition (Apache Parquet,
`parquet.thrift`, in Thrift's compact protocol).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
import pyarrow
from pyarrow import ArrowException, parquet

from tintype.data.image_file import too_large
from tintype.data.store.attributes import kind_of_arrow, plain_type
from tintype.errors import UserError, as_user_error

MOST_FOOTER_BYTES = 64 << 20
MOST_PAGE_BYTES = 1 << 30
UNCOUNTED_PAGE_BYTES = 64 << 20
MOST_TIMES = 100
"""Maximum compression factor of a page with more than `UNCOUNTED_PAGE_BYTES` bytes. Pages of images hardly compress."""
MOST_PAGE_VALUES = 1 << 24
_READ_AHEAD = 1 << 20
_MOST_HEADER_BYTES = 1 << 24
_DEEPEST = 8
_DATA, _DATA_V2 = 0, 3


def open_bounded(path: Path, read_dictionary: Sequence[str] = ()) -> parquet.ParquetFile:
    """Open a file after checking the size of its footer. Columns are read in small parts, not in whole row groups."""
    kinds = (ArrowException, OSError, UnicodeDecodeError)  # UnicodeDecodeError comes from a column's name
    with as_user_error(kinds, f"{path} cannot be read as a Parquet file"):
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - 8))
            footer, mark = int.from_bytes(file.read(4), "little"), file.read(4)
        if mark == b"PAR1" and footer > MOST_FOOTER_BYTES:
            raise UserError(f"{path} has a footer of {footer:,} bytes; the limit is {MOST_FOOTER_BYTES:,}")
        return parquet.ParquetFile(
            path, read_dictionary=list(read_dictionary), pre_buffer=False, buffer_size=_READ_AHEAD
        )


def check_pages(file: parquet.ParquetFile, path: Path, columns: Sequence[str]) -> None:
    """Raise if a page of these columns is too large, or if a column holds lists."""
    leaves = [leaf for leaf in range(len(file.schema)) if _is_of(file.schema.column(leaf).path, columns)]
    for leaf in leaves:
        if file.schema.column(leaf).max_repetition_level:
            raise UserError(
                f"{path}: the column {file.schema.column(leaf).path} contains lists, which tintype cannot read"
            )
    content = np.memmap(path, np.uint8, "r").data
    for group in range(file.num_row_groups):
        for leaf in leaves:
            _check_chunk(content, path, file.metadata.row_group(group).column(leaf))


def _is_of(leaf: str, columns: Sequence[str]) -> bool:
    return any(leaf == column or leaf.startswith(f"{column}.") for column in columns)


def _check_page(column: str, packed: int, unpacked: int, values: int) -> None:
    if values > MOST_PAGE_VALUES:
        raise UserError(f"{column} has {values:,} values; the limit is {MOST_PAGE_VALUES:,}")
    most = min(MOST_PAGE_BYTES, max(UNCOUNTED_PAGE_BYTES, MOST_TIMES * packed))
    if unpacked > most:
        raise UserError(
            f"{column} would decompress from {packed:,} to {unpacked:,} bytes; the limit is {most:,}",
            "write the file with smaller pages or row groups",
        )


def _check_chunk(content: memoryview, path: Path, chunk: parquet.ColumnChunkMetaData) -> None:
    """Check all pages that the reader will read. The reader stops at the number of values that the footer states."""
    at = chunk.data_page_offset
    if chunk.has_dictionary_page and 0 < chunk.dictionary_page_offset < at:
        at = chunk.dictionary_page_offset
    end, left = at + chunk.total_compressed_size, chunk.num_values
    damaged = f"{path} cannot be read as a Parquet file: the header of a page is cut short or damaged"
    while left > 0 and at < end:
        with as_user_error((ValueError, LookupError, TypeError), damaged):
            fields, size = _struct(content[at : at + _MOST_HEADER_BYTES], 0, _DEEPEST)
            kind, unpacked, packed = (fields[number,] for number in (1, 2, 3))
            values = max(fields.get((number, 1), 0) for number in (5, 7, 8))
            if min(unpacked, packed, values) < 0:
                raise ValueError("a negative size")
        _check_page(f"{path}: a page of {chunk.path_in_schema}", packed, unpacked, values)
        left -= values if kind in (_DATA, _DATA_V2) else 0
        at += size + packed


_Fields: TypeAlias = dict[tuple[int, ...], int]
"""Numbers by field path. The path of a number in a nested struct is the struct's field and the number's field."""


def _struct(data: memoryview, at: int, deepest: int) -> tuple[_Fields, int]:
    """Read the numbers of a struct in Thrift's compact protocol, by field. Skip all other values."""
    if not deepest:
        raise ValueError("the metadata is nested too deeply")
    fields: _Fields = {}
    last = 0
    while (byte := data[at]) != 0:
        at, kind = at + 1, byte & 15
        if byte >> 4:
            last += byte >> 4
        else:
            last, at = _signed(data, at)
        if kind in (4, 5, 6):  # i16, i32, i64
            fields[last,], at = _signed(data, at)
        elif kind == 12:
            inner, at = _struct(data, at, deepest - 1)
            fields |= {(last, *field): number for field, number in inner.items()}
        elif kind == 8:  # bytes
            length, at = _unsigned(data, at)
            at += length
        elif kind in (3, 7):  # one byte, a double
            at += 1 if kind == 3 else 8
        elif kind not in (1, 2):  # true and false
            raise ValueError(f"the metadata has a field of the unknown type {kind}")
    return fields, at + 1


def _unsigned(data: memoryview, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = data[at]
        at += 1
        number |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return number, at
        if shift > 63:
            raise ValueError("the metadata has a number of more than 64 bits")


def _signed(data: memoryview, at: int) -> tuple[int, int]:
    number, at = _unsigned(data, at)
    return (number >> 1) ^ -(number & 1), at


@dataclass(frozen=True)
class TooLarge:
    """A value that exceeds the byte limit and is not read."""

    bytes: int
    most: int

    def __str__(self) -> str:
        return too_large("it", self.bytes, self.most)


def rows(batch: pyarrow.RecordBatch, most_bytes: int) -> Iterator[dict[str, object]]:
    """Yield the rows one at a time, to save memory: many rows can refer to one large dictionary value.

    Texts are yielded as bytes, so a text that is not UTF-8 only affects its own row. A value of more than `most_bytes`
    bytes is yielded as `TooLarge`.
    """
    for row in range(batch.num_rows):
        one = batch.slice(row, 1)
        yield {name: _value(column, most_bytes) for name, column in zip(one.schema.names, one.columns, strict=True)}


def _value(column: pyarrow.Array, most_bytes: int) -> object:
    column = column.cast(_as_bytes(column.type))
    column.validate(full=True)  # rejects offsets that point outside the buffers
    return TooLarge(column.nbytes, most_bytes) if column.nbytes > most_bytes else column[0].as_py()


def parquet_rows(
    path: Path, columns: Sequence[str], most_bytes: int, first: int = 0
) -> Iterator[tuple[int, dict[str, object]]]:
    """Yield a file's rows with their numbers, from `first` on. Texts are yielded as bytes.

    Rows are read one at a time, since a compressed file does not state the size of a single row.
    """
    file = open_bounded(path)
    check_pages(file, path, columns)
    groups: list[int] = []
    row = 0
    for group in range(file.num_row_groups):
        count = file.metadata.row_group(group).num_rows
        if groups or row + count > first:
            groups.append(group)
        else:
            row += count
    try:
        for batch in file.iter_batches(batch_size=1, row_groups=groups, columns=list(columns)):
            for values in rows(batch, most_bytes):
                if row >= first:
                    yield row, values
                row += 1
    except (ArrowException, OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read as a Parquet file from row {row} onwards: {error}") from None


def _as_bytes(kind: pyarrow.DataType) -> pyarrow.DataType:
    """Return the type with `string` replaced by `binary`, also within structs."""
    kind = plain_type(kind)
    if pyarrow.types.is_struct(kind):
        return pyarrow.struct([one.with_type(_as_bytes(one.type)) for one in kind])
    if kind_of_arrow(kind) == "text":
        return pyarrow.large_binary() if pyarrow.types.is_large_string(kind) else pyarrow.binary()
    return kind
