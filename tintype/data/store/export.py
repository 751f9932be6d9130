"""`tintype data export`: a store's records as WebDataset tars or Parquet files, for other tools or another import.

All files are written into a temporary folder, which is renamed when it is complete.
"""

from __future__ import annotations

import io
import json
import shlex
import shutil
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Literal

import pyarrow
from pyarrow import Table, parquet

from tintype.data.image_file import open_image
from tintype.data.store.attributes import ARROW_TYPES, Kind, Value
from tintype.data.store.layout import ROW_TEXTS, Split, Store
from tintype.errors import StoppedError, UserError
from tintype.runtime.files import flush
from tintype.runtime.interrupt import Interrupt
from tintype.runtime.locks import locked
from tintype.wording import again, option

Form = Literal["webdataset", "parquet"]
PART_BYTES, PART_ROWS = 256 << 20, 10_000
"""Most bytes and rows of one file."""
_GROUP_ROWS = 100
_ENDINGS = {"JPEG": "jpg", "MPO": "jpg", "TIFF": "tif"}
"""File suffixes that differ from the name of their format."""


@dataclass(frozen=True)
class Row:
    name: str
    """The row's number in the export."""
    ending: str
    content: bytes
    values: dict[str, Value]
    """The captions as `caption_NAME`, the attributes as `attribute_NAME`, `split`, `sha256` and `source`."""


@dataclass(frozen=True)
class Exported:
    """The counts of an export."""

    rows: int
    files: int


def export_store(
    store: Store,
    form: Form,
    out: Path,
    split: Split | None,
    interrupt: Interrupt,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> Exported:
    """Write the records of one split, or of both, in the store's order. A stopped export leaves no files."""
    rows = store.rows(split).tolist()
    if not rows:
        raise UserError(f"{store.path} has no records in the split {split}; nothing to export")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"{out} exists already", f"choose an empty or new folder for {option('out')}")
    work = out.with_name(f".{out.name}.exporting")

    def watched() -> Iterator[Row]:
        for number, row in enumerate(rows):
            if interrupt.signal is not None:
                raise StoppedError("nothing was exported", f"{again()} again")
            yield _row(store, row, number)
            on_progress(number + 1, len(rows))

    with locked(work):
        try:
            for file in work.glob("[!.]*"):  # left by a killed export
                file.unlink()
            _WRITERS[form](work, store, watched())
            (work / ".lock").unlink()
            files = list(work.iterdir())
            for file in files:
                flush(file)
            flush(work)
            work.replace(out)
            flush(out.parent)
        except OSError as error:
            raise UserError(f"cannot write to {work}: {error.strerror or error}. Nothing was exported") from None
        finally:
            shutil.rmtree(work, ignore_errors=True)
    return Exported(len(rows), len(files))


def _row(store: Store, row: int, number: int) -> Row:
    content = store.encoded(row).content
    captions = {f"caption_{name}": text for name, text in store.captions_of(row).items()}
    attributes = {f"attribute_{name}": value for name, value in store.attributes_of(row).items()}
    with open_image(content, store.name(row)) as image:
        form = image.format or ""
    ending = _ENDINGS.get(form, form.lower())
    return Row(f"{number:09d}", ending, content, {**captions, **attributes, **store.about_row(row)})


def _parts(rows: Iterator[Row]) -> Iterator[Iterator[Row]]:
    """Split the rows into files. Each iterator must be exhausted before the next."""
    ahead = next(rows, None)

    def part() -> Iterator[Row]:
        nonlocal ahead
        count = size = 0
        while ahead is not None and count < PART_ROWS and size < PART_BYTES:
            count, size = count + 1, size + len(ahead.content)
            yield ahead
            ahead = next(rows, None)

    while ahead is not None:
        yield part()


def _write_tars(work: Path, store: Store, rows: Iterator[Row]) -> None:
    for number, part in enumerate(_parts(rows)):
        with tarfile.open(work / f"{number:05d}.tar", "w", format=tarfile.GNU_FORMAT) as tar:
            for row in part:
                _add(tar, f"{row.name}.{row.ending}", row.content)
                _add(tar, f"{row.name}.json", json.dumps(row.values, ensure_ascii=False).encode())


def _add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    """Add a member without times and owners: the same records give the same bytes."""
    info = tarfile.TarInfo(name)
    info.size = len(content)
    tar.addfile(info, io.BytesIO(content))


def _write_parquet(work: Path, store: Store, rows: Iterator[Row]) -> None:
    schema = _schema(store)
    for number, part in enumerate(_parts(rows)):
        with parquet.ParquetWriter(work / f"{number:05d}.parquet", schema) as writer:
            while group := list(islice(part, _GROUP_ROWS)):
                images = [{"bytes": row.content, "path": f"{row.name}.{row.ending}"} for row in group]
                records = [{"image": image, **row.values} for image, row in zip(images, group, strict=True)]
                writer.write_table(Table.from_pylist(records, schema=schema))


def _schema(store: Store) -> pyarrow.Schema:
    """Return the schema, with the metadata by which Hugging Face datasets recognise a column of images."""
    columns: dict[str, Kind] = {f"caption_{name}": "text" for name in store.captions}
    columns |= {f"attribute_{name}": kind for name, kind in store.attributes.items()}
    columns |= dict.fromkeys(ROW_TEXTS, "text")
    image = pyarrow.struct([("bytes", pyarrow.binary()), ("path", pyarrow.string())])
    values = {name: {"dtype": ARROW_TYPES[kind], "_type": "Value"} for name, kind in columns.items()}
    note = json.dumps({"info": {"features": {"image": {"_type": "Image"}, **values}}})
    fields = [("image", image), *((name, ARROW_TYPES[kind]) for name, kind in columns.items())]
    return pyarrow.schema(fields, metadata={"huggingface": note})


_WRITERS: dict[Form, Callable[[Path, Store, Iterator[Row]], None]] = {
    "webdataset": _write_tars,
    "parquet": _write_parquet,
}


def quoted_import_options(store: Store) -> str:
    """Return the import options that restore the same captions, attributes and splits."""
    captions = [("--caption", f"{name}=caption_{name}") for name in store.captions]
    attributes = [("--attribute", f"{name}=attribute_{name}:{kind}") for name, kind in store.attributes.items()]
    return shlex.join([part for pair in (*captions, *attributes, ("--split-column", "split")) for part in pair])
