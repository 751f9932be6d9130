"""Read rows of Arrow tables and Parquet files from outside, one at a time and within bounds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tintype.data.image_file import too_large
from tintype.data.parquet_file import check_pages, open_bounded
from tintype.data.store.attributes import kind_of_arrow
from tintype.errors import UserError

if TYPE_CHECKING:
    import pyarrow


@dataclass(frozen=True)
class TooLarge:
    """A value that is not read."""

    bytes: int
    most: int

    def __str__(self) -> str:
        return too_large("it", self.bytes, self.most)


def rows(batch: pyarrow.RecordBatch, most_bytes: int) -> Iterator[dict[str, object]]:
    """Yield the rows of a batch, one at a time: a dictionary with one large value may stand for any number of them.

    Texts are bytes until their own row is read: one that is not UTF-8 spoils no other. For a value of more than
    `most_bytes` a `TooLarge` is given.
    """
    for row in range(batch.num_rows):
        one = batch.slice(row, 1)
        yield {name: _value(column, most_bytes) for name, column in zip(one.schema.names, one.columns, strict=True)}


def _value(column: pyarrow.Array, most_bytes: int) -> object:
    column = column.cast(_as_bytes(column.type))
    column.validate(full=True)  # offsets that point elsewhere would be followed
    return TooLarge(column.nbytes, most_bytes) if column.nbytes > most_bytes else column[0].as_py()


def parquet_rows(
    path: Path, columns: Sequence[str], most_bytes: int, first: int = 0
) -> Iterator[tuple[int, dict[str, object]]]:
    """Yield the rows of a file with their numbers, from `first` on; texts are bytes.

    A batch is one row: what a row of a compressed file holds is known only when it is read.
    """
    from pyarrow import ArrowException

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
        raise UserError(f"{path} cannot be read as a Parquet file, from row {row} on: {error}") from None


def _as_bytes(kind: pyarrow.DataType) -> pyarrow.DataType:
    """Return the type with bytes in place of texts, also of those in a struct."""
    import pyarrow

    kind = plain_type(kind)
    if pyarrow.types.is_struct(kind):
        return pyarrow.struct([one.with_type(_as_bytes(one.type)) for one in kind])
    if kind_of_arrow(kind) == "text":
        return pyarrow.large_binary() if pyarrow.types.is_large_string(kind) else pyarrow.binary()
    return kind


def plain_type(kind: pyarrow.DataType) -> pyarrow.DataType:
    from pyarrow import types

    return kind.value_type if types.is_dictionary(kind) else kind
