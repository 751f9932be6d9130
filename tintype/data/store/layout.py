"""The layout of a store on disk, and its reader.

`store.json` describes the folder. Each `shard-00000.arrow` is a memory-mapped Arrow IPC file of one record batch, so
any row is found directly and images are read only when requested. The columns are:

- `image`: the bytes of an image file, with `width` and `height`
- `source`: where the record came from
- `sha256`: hash of the image file
- `pixels`: SHA-256 of the decoded pixels, by which copies are recognised
- `split`
- `caption:NAME` for each imported kind of caption
- `attribute:NAME` for each attribute, which may be null

A kind of caption that was added later lies in separate files, one per shard, with the columns `sha256` and
`caption:NAME` (`changes.py` writes them).

Everything is checked before use. `store.json` has a checksum of itself, and a checksum of each other file without its
images. Opening the store checks these. Each read of an image checks the image's `sha256`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from shlex import quote
from typing import Any, Literal, Self, get_args

import numpy as np
import pyarrow
from numpy.typing import NDArray
from pyarrow import Table, compute
from pydantic import BaseModel, Field, ValidationError, model_validator

from tintype.data.arrow_file import FILE_HEAD, refuse_compressed
from tintype.data.image_file import Encoded
from tintype.data.store.attributes import ARROW_TYPES, RESERVED, Kind, Value
from tintype.errors import UserError, as_user_error
from tintype.runtime.files import Json, checksum_of, read_object
from tintype.wording import option

Split = Literal["train", "eval"]
SPLITS: tuple[Split, ...] = get_args(Split)
ABOUT = "store.json"
QUARANTINE = "quarantine.jsonl"
FORMAT: Literal["tintype-store-2"] = "tintype-store-2"
_CHECKSUM = "checksum"
_AGAIN = "copy the store again, or import it again"
CAPTION = "caption:"
ATTRIBUTE = "attribute:"
_NUMBERS = ("width", "height")
ROW_TEXTS = ("split", "sha256", "source")
"""Columns that are exported with a record, besides its captions."""
_TEXTS = ("source", "sha256", "pixels", "split")


def refuse_built_in(caption: str, name: str, rest: str = "") -> None:
    """Refuse a new kind of caption with a column name of the store. `name` is the option's name."""
    if caption in RESERVED:
        raise UserError(
            f"{option(name, caption + rest)}: every store has a built-in column '{caption}', which `where` reads",
            f"give the captions another name, for example {option(name, f'{caption}_text{rest}')}",
        )


class Shard(BaseModel, frozen=True, extra="forbid", strict=True):
    name: str
    rows: int
    bytes: int
    images_at: int
    """Offset of the images, which lie in one contiguous block."""
    images_bytes: int
    sha256: str
    """SHA-256 of the file without the images."""


class AddedPart(BaseModel, frozen=True, extra="forbid", strict=True):
    """The file with the added captions of one shard."""

    name: str
    bytes: int
    sha256: str


class AddedColumn(BaseModel, frozen=True, extra="forbid", strict=True):
    """A kind of caption that was added to the store after the import."""

    name: str
    parts: list[AddedPart]
    """One part per shard, in the order of the shards."""
    journal: str | None = None
    """The file with the questions' settings and the answers."""
    journal_sha256: str | None = None
    made_by: dict[str, Any]
    """Record of who wrote the captions, how, when, and how many are empty."""

    @property
    def files(self) -> list[str]:
        return [*(part.name for part in self.parts), *([self.journal] if self.journal else [])]


class AboutStore(BaseModel, frozen=True, extra="forbid", strict=True):
    """The content of `store.json`."""

    format: Literal["tintype-store-2"] = FORMAT
    identity: str
    """SHA-256 over the records in order: each image's hash, split and captions, and its attributes if there are any."""
    counts: dict[str, int]
    """Number of records of each split."""
    quarantined: int
    quarantine_sha256: str | None = None
    """SHA-256 of the file that lists the quarantined records; None without such records."""
    captions: list[str]
    shards: list[Shard] = Field(min_length=1)
    made_from: dict[str, Any]
    added: list[AddedColumn] = []
    """Caption columns that are not in the shards."""
    attributes: dict[str, Kind] = {}

    @model_validator(mode="after")
    def _columns_fit(self) -> Self:
        names = [column.name for column in self.added]
        if len(set(names)) != len(names) or not set(names) <= set(self.captions):
            raise ValueError(
                f"each of the added captions {names} must be listed exactly once in the captions {self.captions}"
            )
        for column in self.added:
            if len(column.parts) != len(self.shards):
                raise ValueError(
                    f"the caption {column.name} has {len(column.parts)} files, but needs one for each shard"
                )
        if taken := sorted(set(self.attributes) & {*self.captions, *RESERVED}):
            raise ValueError(f"the attributes {taken} have the same names as captions or other columns")
        return self

    @property
    def imported(self) -> list[str]:
        """Names of the captions that are in the shards."""
        added = {column.name for column in self.added}
        return [name for name in self.captions if name not in added]

    def find_added(self, name: str) -> AddedColumn | None:
        return next((column for column in self.added if column.name == name), None)

    def to_json(self) -> str:
        content = self.model_dump(mode="json", exclude_defaults=True) | {"format": self.format}
        return json.dumps({**content, _CHECKSUM: checksum_of(content)}, indent=1, ensure_ascii=False) + "\n"


class StoreShown(AboutStore, frozen=True):
    """The content of `store.json`, and counts."""

    missing: dict[str, int]
    checked: bool
    """Whether everything was read and compared with its checksums."""
    left: dict[str, int] | None
    """Number of selected records of each split; None without `where` and `skip`."""
    left_out: dict[str, int]
    """Number of records that `where` and `skip` leave out."""
    note: str | None
    """A note on the skip list."""


def schema(captions: Sequence[str], attributes: Mapping[str, Kind]) -> pyarrow.Schema:
    numbers = [(name, "int32") for name in _NUMBERS]
    texts = [(name, "string") for name in (*_TEXTS, *(CAPTION + name for name in captions))]
    typed = [(ATTRIBUTE + name, ARROW_TYPES[kind]) for name, kind in attributes.items()]
    return pyarrow.schema([("image", "binary"), *numbers, *texts, *typed])


def added_schema(name: str) -> pyarrow.Schema:
    return pyarrow.schema([("sha256", "string"), (CAPTION + name, "string")])


def add_records(total: hashlib._Hash, batch: pyarrow.RecordBatch) -> None:
    """Add the records of a batch to an identity. Records without attributes hash as before attributes existed."""
    for row in batch.select([name for name in batch.schema.names if name != "image"]).to_pylist():
        captions, attributes = (
            sorted((name.removeprefix(kind), value) for name, value in row.items() if name.startswith(kind))
            for kind in (CAPTION, ATTRIBUTE)
        )
        record = [row["sha256"], row["split"], captions, *([attributes] if attributes else [])]
        total.update(hashlib.sha256(json.dumps(record, ensure_ascii=False).encode()).digest())


def identity_of(table: pyarrow.Table) -> str:
    """Return the identity of all records of a table; it does not depend on the shards."""
    total = hashlib.sha256()
    for batch in table.to_batches():
        add_records(total, batch)
    return total.hexdigest()


def is_store(path: Path) -> bool:
    return (path / ABOUT).is_file()


class Store:
    """An open store. Row numbers continue through all its shards."""

    def __init__(self, path: Path, about: AboutStore | None = None) -> None:
        self.path, self.about = path, about or read_about(path)
        self.captions, self.attributes = list(self.about.captions), dict(self.about.attributes)
        shards = range(len(self.about.shards))
        self.table = Table.from_batches([_open_whole(path, self.about, index) for index in shards])
        """All columns of all records, memory-mapped without a copy."""
        own = self.table["split"]
        self._rows = {split: np.flatnonzero(compute.equal(own, split).to_numpy()) for split in SPLITS}
        if {split: len(rows) for split, rows in self._rows.items()} != self.about.counts:
            raise UserError(
                f"{path} is damaged: its splits do not have the {self.about.counts} records that {ABOUT} states"
            )

    @property
    def identity(self) -> str:
        return self.about.identity

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def rows(self, split: Split | None) -> NDArray[np.int64]:
        """Return the row numbers of a split; for None, of all records."""
        return np.arange(len(self)) if split is None else self._rows[split]

    def sizes(self) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        return self.table["width"].to_numpy(), self.table["height"].to_numpy()

    def pixels(self, row: int) -> int:
        return int(self._value("width", row)) * int(self._value("height", row))

    def encoded(self, row: int) -> Encoded:
        """Return the bytes of an image; raise if they do not match the stored hash."""
        content: bytes = self._value("image", row)
        name = self.name(row)
        if hashlib.sha256(content).hexdigest() != self._value("sha256", row):
            raise UserError(f"{name} is damaged: its bytes do not match the recorded checksum", _AGAIN)
        return Encoded(name, content, Path(self._value("source", row)).stem)

    def all_encoded(self, split: Split | None = None) -> Iterator[Encoded]:
        return (self.encoded(row) for row in self.rows(split).tolist())

    def captions_of(self, row: int) -> dict[str, str]:
        return {name: self._value(CAPTION + name, row) for name in self.captions}

    def attributes_of(self, row: int) -> dict[str, Value]:
        return {name: self._value(ATTRIBUTE + name, row) for name in self.attributes}

    def missing(self) -> dict[str, int]:
        return {name: self.table[ATTRIBUTE + name].null_count for name in self.attributes}

    def texts(self, column: str) -> list[str]:
        """Return a text column of all rows; a kind of caption is named `caption:NAME`."""
        return list(self.table[column].to_pylist())

    def about_row(self, row: int) -> dict[str, str]:
        return {name: self._value(name, row) for name in ROW_TEXTS}

    def name(self, row: int) -> str:
        return f"{self.path}, row {row} ({self._value('source', row)})"

    def quarantine(self) -> list[dict[str, str]]:
        """Return source and reason of each record that the import set aside."""
        if self.about.quarantine_sha256 is None:
            return []
        content = self._checked_file(QUARANTINE, self.about.quarantine_sha256)
        try:
            return [
                {key: str(said[key]) for key in ("source", "reason")} for said in map(json.loads, content.splitlines())
            ]
        except (ValueError, RecursionError, KeyError, TypeError):
            raise UserError(
                f"{self.path / QUARANTINE} was changed after `tintype data import` had written it", _AGAIN
            ) from None

    def check(self, on_records: Callable[[int], None] = lambda done: None) -> None:
        """Read the whole store, and raise if any content differs from its checksums."""
        self.quarantine()
        for column in self.about.added:
            if column.journal is not None and column.journal_sha256 is not None:
                self._checked_file(column.journal, column.journal_sha256)
        for row in range(len(self)):
            self.encoded(row)
            on_records(row + 1)
        if (found := identity_of(self.table)) != self.identity:
            raise UserError(
                f"{self.path} is damaged: its records give the identity {found[:12]}…, but {ABOUT} states "
                f"{self.identity[:12]}…",
                _AGAIN,
            )

    def _checked_file(self, name: str, sha256: str) -> bytes:
        path = _inside(self.path, name)
        content = path.read_bytes() if path.is_file() else None
        if content is None or hashlib.sha256(content).hexdigest() != sha256:
            found = "is missing" if content is None else "is damaged: its content is not what was stored"
            raise UserError(f"{path} {found}", _AGAIN)
        return content

    def _value(self, column: str, row: int) -> Any:
        return self.table[column][row].as_py()


def open_store(path: Path) -> Store:
    """Return the same open store as earlier in this process, unless its files have changed, to share memory maps."""
    files = sorted(path.glob("*.arrow")) if is_store(path) else []
    found = [(file.name, file.stat()) for file in [path / ABOUT, *files] if file.exists()]
    return _opened(path, tuple((name, stat.st_size, stat.st_mtime_ns) for name, stat in found))


@lru_cache(maxsize=8)
def _opened(path: Path, files: tuple[tuple[str, int, int], ...]) -> Store:
    return Store(path)


def read_about(path: Path) -> AboutStore:
    content = read_content(path)
    said = content.pop(_CHECKSUM, None)
    if said != checksum_of(content):
        raise UserError(f"{path / ABOUT} is damaged: it does not match its checksum", _AGAIN)
    try:
        return AboutStore.model_validate_json(json.dumps(content))
    except ValidationError as error:
        reason = error.errors()[0]["msg"]
        raise UserError(
            f"{path / ABOUT} is not a file that `tintype data import` of this version writes ({reason})"
        ) from None


def read_content(path: Path) -> dict[str, Json]:
    """Return the content of `store.json` without checking it."""
    file = path / ABOUT
    if not file.is_file():
        raise UserError(
            f"{path} is not a store: {ABOUT} is missing",
            f"`tintype data import SOURCE --out {quote(str(path))}` makes one",
        )
    with as_user_error(ValueError, f"{file} is damaged", _AGAIN):
        return read_object(file)


def _open_whole(folder: Path, about: AboutStore, index: int) -> pyarrow.RecordBatch:
    """Open a shard together with the captions that were added to it."""
    shard = about.shards[index]
    batch = _open_part(folder, shard, shard.rows, schema(about.imported, about.attributes), _AGAIN)
    for column in about.added:
        part = column.parts[index]
        again = (
            f"copy the store again, or write these captions again with `tintype data recaption {quote(str(folder))} "
            f"--column {quote(column.name)} --overwrite` and the options of before"
        )
        beside = _open_part(folder, part, batch.num_rows, added_schema(column.name), again)
        if not beside.column("sha256").equals(batch.column("sha256")):
            raise UserError(f"{folder / part.name} has captions for other images than {shard.name}", again)
        batch = batch.append_column(CAPTION + column.name, beside.column(1))
    return batch


def _open_part(
    folder: Path, part: Shard | AddedPart, rows: int, columns: pyarrow.Schema, again: str
) -> pyarrow.RecordBatch:
    path = _inside(folder, part.name)
    check_part(path, part, again)
    batch = open_shard(path)
    if batch.schema != columns or batch.num_rows != rows:
        raise UserError(f"{path} does not contain the {rows:,} rows and the columns that {ABOUT} states", again)
    return batch


def _inside(folder: Path, name: str) -> Path:
    if Path(name).name != name:
        raise UserError(f"{folder / ABOUT} lists the file {name}, which is not in the folder")
    return folder / name


def check_part(path: Path, part: Shard | AddedPart, again: str) -> None:
    """Raise if any byte of the file outside the images has changed. `again` is the fix in the error."""
    if not path.is_file() or not part.bytes or path.stat().st_size != part.bytes:
        found = f"has {path.stat().st_size:,} bytes, not {part.bytes:,}" if path.is_file() else "is missing"
        raise UserError(f"{path} {found}", again)
    skipped = (part.images_at, part.images_bytes) if isinstance(part, Shard) else (0, 0)
    if sum_of(path, *skipped) != part.sha256:
        raise UserError(f"{path} is damaged: its captions or other columns do not match the recorded checksums", again)


def sum_of(path: Path, skip_at: int, skip_bytes: int) -> str:
    content = np.memmap(path, np.uint8, "r")
    total = hashlib.sha256(content[: max(0, skip_at)].data)
    total.update(content[max(0, skip_at + skip_bytes) :].data)
    return total.hexdigest()


def shard_of(path: Path) -> Shard:
    """Describe the file of a shard."""
    whole, batch = _mapped(path)
    images = batch.column("image").buffers()[2]
    at, size = (0, 0) if images is None else (images.address - whole.address, images.size)
    return Shard(
        name=path.name,
        rows=batch.num_rows,
        bytes=path.stat().st_size,
        images_at=at,
        images_bytes=size,
        sha256=sum_of(path, at, size),
    )


def open_shard(path: Path) -> pyarrow.RecordBatch:
    """Return the only record batch of a shard, memory-mapped."""
    return _mapped(path)[1]


def _mapped(path: Path) -> tuple[pyarrow.Buffer, pyarrow.RecordBatch]:
    """Return the bytes of a shard, and its only record batch, whose columns refer to these bytes."""
    refuse_compressed(path, FILE_HEAD)
    kinds = (pyarrow.ArrowException, OSError, ValueError)
    explained = as_user_error(kinds, f"{path} cannot be read as a shard of a store")
    with explained, pyarrow.memory_map(str(path)) as file:
        whole = file.read_buffer()
        batches = list(pyarrow.ipc.open_stream(whole.slice(FILE_HEAD)))  # read the checked stream, not the footer
        if len(batches) != 1:
            raise UserError(f"{path} has {len(batches)} record batches, but a shard of a store must have exactly one")
        batches[0].validate(full=True)  # rejects offsets that point outside the buffers
        return whole, batches[0]
