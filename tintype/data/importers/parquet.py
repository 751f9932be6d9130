"""Parquet files with a column `image`: bytes, or a struct with `bytes` and `path`, as data sets on the hub have it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from tintype.data.folders import files_in
from tintype.data.importers import Item, Reading, fingerprint, usual_captions
from tintype.data.importers.metadata import is_metadata
from tintype.data.importers.table import image_column, item, kinds, parquet_rows, text_columns
from tintype.data.parquet_file import open_bounded
from tintype.errors import UserError


def open_parquet(path: Path, reading: Reading) -> ParquetImporter | None:
    """A file, or a folder with such files at any depth, in the order of their names."""
    if path.is_file():
        return ParquetImporter([path], reading.limits.bytes) if path.suffix.lower() == ".parquet" else None
    files = [file for file in files_in(path, (".parquet",), reading.follow_links) if not is_metadata(file)]
    return ParquetImporter(files, reading.limits.bytes) if files else None


class ParquetImporter:
    def __init__(self, files: Sequence[Path], most_bytes: int) -> None:
        self._files, self._most_bytes = files, most_bytes
        schemas = [open_bounded(file).schema_arrow for file in files]
        self._image, self.columns = image_column(schemas[0], str(files[0])), text_columns(schemas[0])
        for file, schema in zip(files, schemas, strict=True):
            has = {image_column(schema, str(file)), *text_columns(schema)}
            if missing := {self._image, *self.columns} - has:
                raise UserError(f"{file} lacks the columns {', '.join(sorted(missing))}, which {files[0]} has")
        self.kinds = kinds(schemas)
        self.count = sum(open_bounded(file).metadata.num_rows for file in files)
        self.usual_captions = usual_captions(self.columns)

    @property
    def fingerprint(self) -> list[list[str | int]]:
        return fingerprint(self._files)

    def items(self, columns: Sequence[str], first: int, attributes: Sequence[str] = ()) -> Iterator[Item]:
        for file in self._files:
            count = open_bounded(file).metadata.num_rows
            if first < count:
                wanted = list(dict.fromkeys([self._image, *columns, *attributes]))
                for row, values in parquet_rows(file, wanted, self._most_bytes, first):
                    yield item(values, self._image, columns, attributes, f"{file.name}, row {row}")
            first = max(0, first - count)
