"""Rows of Arrow tables with one image per row. Importers of Parquet files and saved data sets share this base class."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import pyarrow
from pyarrow import types

from tintype.data.importers.importer import Importer, Item
from tintype.data.parquet_file import TooLarge
from tintype.data.store.attributes import kind_of_arrow, plain_type
from tintype.errors import UserError

IMAGE = "image"


@dataclass(frozen=True)
class Table:
    path: Path
    name: str
    rows: int
    schema: pyarrow.Schema
    split: str | None = None


Rows: TypeAlias = Callable[[Table, Sequence[str], int, int], Iterator[tuple[int, dict[str, object]]]]
"""Function (table, columns, most bytes per value, first row) -> (row number, values). Texts are yielded as bytes."""


class TableImporter(Importer):
    def __init__(self, tables: Sequence[Table], rows: Rows, most_bytes: int, folder: Sequence[str] = ()) -> None:
        """Open the tables. `folder` names columns that `rows` adds and that the tables lack."""
        first, schemas = tables[0], [table.schema for table in tables]
        self._tables, self._rows, self._most_bytes = tables, rows, most_bytes
        self._image, texts = image_column(first.schema, first.path), _text_columns(first.schema)
        for table in tables:
            has = {image_column(table.schema, table.path), *_text_columns(table.schema)}
            if missing := {self._image, *texts} - has:
                raise UserError(f"{table.path} lacks the columns {', '.join(sorted(missing))}, which {first.path} has")
        count, its = sum(table.rows for table in tables), {**{name: {"text"} for name in folder}, **kinds(schemas)}
        super().__init__([table.path for table in tables], [*texts, *folder], its, count)

    def items(self, columns: Collection[str], first: int) -> Iterator[Item]:
        wanted = list(dict.fromkeys([self._image, *columns]))
        for table in self._tables:
            if first < table.rows:
                for row, values in self._rows(table, wanted, self._most_bytes, first):
                    yield _item(values, self._image, columns, f"{table.name}, row {row}")
            first = max(0, first - table.rows)


def image_column(schema: pyarrow.Schema, path: Path) -> str:
    """Return the column `image`, else the only struct column with `bytes`, as in Hugging Face data sets."""
    if IMAGE in schema.names:
        kind = plain_type(schema.field(IMAGE).type)
        if not _is_bytes(kind) and not _has_bytes(kind):
            raise UserError(
                f"{path}: the column 'image' must contain the bytes of image files, but has the type {str(kind)[:80]}"
            )
        return IMAGE
    structs = [one.name for one in schema if _has_bytes(one.type)]
    if len(structs) == 1:
        return str(structs[0])
    raise UserError(f"{path} has no column 'image'; its columns are {', '.join(schema.names)}")


def _text_columns(schema: pyarrow.Schema) -> list[str]:
    return [one.name for one in schema if kind_of_arrow(one.type) == "text"]


def kinds(schemas: Sequence[pyarrow.Schema]) -> dict[str, set[str]]:
    """Return the columns with texts, numbers or booleans that all tables have, each with its kinds."""
    each = [{one.name: kind for one in schema if (kind := kind_of_arrow(one.type)) is not None} for schema in schemas]
    return {name: {one[name] for one in each} for name in (each[0] if each else ()) if all(name in one for one in each)}


def _item(values: Mapping[str, object], image: str, columns: Collection[str], place: str) -> Item:
    for column in (image, *columns):
        if isinstance(values[column], TooLarge):
            return Item(place, problem=f"the column {column} is too large: {values[column]}")
    found = values[image]
    content, path = (found.get("bytes"), found.get("path")) if isinstance(found, dict) else (found, None)
    source = f"{place}, {path.decode(errors='replace')}" if isinstance(path, bytes) and path else place
    decoded: dict[str, object] = {}
    for column in columns:
        value = values[column]
        try:
            decoded[column] = value.decode() if isinstance(value, bytes) else value
        except UnicodeDecodeError as error:
            return Item(source, problem=f"the column {column} is not text in UTF-8: {error}")
    if not isinstance(content, bytes):
        return Item(source, problem=f"the column '{image}' does not contain the bytes of an image file")
    return Item(source, content, decoded)


def _is_bytes(kind: pyarrow.DataType) -> bool:
    tests = (types.is_binary, types.is_large_binary, types.is_binary_view, types.is_string, types.is_large_string)
    return any(test(kind) for test in tests)


def _has_bytes(kind: pyarrow.DataType) -> bool:
    """Return whether the type is a struct with `bytes` and without lists: few bytes can encode a list of any length."""
    if not types.is_struct(kind) or kind.get_field_index("bytes") < 0:
        return False
    return all(_is_bytes(one.type) or types.is_null(one.type) or kind_of_arrow(one.type) for one in kind)
