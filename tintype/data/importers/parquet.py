"""Parquet files with an `image` column of bytes, or of structs with `bytes` and `path` as in Hugging Face data sets."""

from __future__ import annotations

from pathlib import Path

from tintype.data.folders import files_in
from tintype.data.importers.importer import Reading
from tintype.data.importers.metadata import is_metadata
from tintype.data.importers.table import Table, TableImporter
from tintype.data.parquet_file import open_bounded, parquet_rows


def open_parquet(path: Path, reading: Reading) -> TableImporter | None:
    """Open a Parquet file, or a folder with Parquet files at any depth, sorted by name."""
    found = files_in(path, (".parquet",), reading.follow_links)
    files = [file for file in found if file == path or not is_metadata(file)]
    tables = [Table(file, file.name, (it := open_bounded(file)).metadata.num_rows, it.schema_arrow) for file in files]
    if not tables:
        return None
    return TableImporter(tables, lambda table, *asked: parquet_rows(table.path, *asked), reading.limits.bytes)
