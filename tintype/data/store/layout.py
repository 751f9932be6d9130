"""How a store lies on the disk, and how it is read.

`store.json` says what the folder holds; each `shard-00000.arrow` is an Arrow IPC file of one record batch, which is
memory-mapped, so that any row is found at once and nothing is read before it is asked for. The columns are `image` (the
bytes of an image file), `width`, `height`, `source` (where the record came from), `sha256` (of the image's bytes),
`pixels` (SHA-256 of the decoded pixels, by which copies are known), `split`, and one column `caption:NAME` for each
kind of caption.
"""

from __future__ import annotations

import hashlib
import json
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tintype.errors import UserError

if TYPE_CHECKING:
    from tintype.data.pictures import Encoded

Split = Literal["train", "eval"]
SPLITS: tuple[Split, ...] = get_args(Split)
ABOUT = "store.json"
CAPTION = "caption:"
"""Stands before the names of caption columns."""
_NUMBERS = ("width", "height")
ROW_TEXTS = ("split", "sha256", "source")
"""What is told of a record beside its captions, where it leaves the store."""
_TEXTS = ("source", "sha256", "pixels", "split")


class Shard(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    name: str
    rows: int
    bytes: int


class AboutStore(BaseModel):
    """What `store.json` says."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    format: Literal["tintype-store-1"] = "tintype-store-1"
    identity: str
    """SHA-256 over the records in order: the hash of each picture, its split and its captions."""
    counts: dict[str, int]
    """Records of each split."""
    quarantined: int
    captions: list[str]
    shards: list[Shard] = Field(min_length=1)
    made_from: dict[str, Any]
    """The source and the options of the import."""


def schema(captions: Sequence[str]) -> Any:
    import pyarrow

    numbers = [(name, pyarrow.int32()) for name in _NUMBERS]
    texts = [(name, pyarrow.string()) for name in (*_TEXTS, *(CAPTION + name for name in captions))]
    return pyarrow.schema([("image", pyarrow.binary()), *numbers, *texts])


class Identity:
    """Names a sequence of records by their content, whatever the shards that they lie in."""

    def __init__(self) -> None:
        self._total = hashlib.sha256()

    def add(self, sha256: str, split: str, captions: Mapping[str, str]) -> None:
        record = json.dumps([sha256, split, sorted(captions.items())], ensure_ascii=False)
        self._total.update(hashlib.sha256(record.encode()).digest())

    def hexdigest(self) -> str:
        return self._total.hexdigest()


def is_store(path: Path) -> bool:
    return (path / ABOUT).is_file()


class Store:
    """A store that is open. Rows count through all its shards."""

    def __init__(self, path: Path) -> None:
        self.path, self.about = path, _read_about(path)
        self.captions = list(self.about.captions)
        self._batches = [_open_shard(path, shard, self.captions) for shard in self.about.shards]
        self._ends: list[int] = np.cumsum([shard.rows for shard in self.about.shards]).tolist()
        self._rows = {split: self._of_split(split) for split in SPLITS}
        if {split: len(rows) for split, rows in self._rows.items()} != self.about.counts:
            raise UserError(
                f"{path} is damaged: its splits do not have the {self.about.counts} records that {ABOUT} says"
            )

    @property
    def identity(self) -> str:
        return self.about.identity

    def __len__(self) -> int:
        return int(self._ends[-1])

    def rows(self, split: Split) -> NDArray[np.int64]:
        return self._rows[split]

    def sizes(self) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Width and height of every row."""
        return self._all("width"), self._all("height")

    def encoded(self, row: int) -> Encoded:
        """The bytes of a picture, which must be those that were stored."""
        from tintype.data.pictures import Encoded

        content: bytes = self._value("image", row)
        name = self.name(row)
        if hashlib.sha256(content).hexdigest() != self._value("sha256", row):
            raise UserError(f"{name} is damaged: its bytes are not those that were stored; import the store again")
        return Encoded(name, content, Path(self._value("source", row)).stem)

    def all_encoded(self, split: Split | None = None) -> Iterator[Encoded]:
        rows = range(len(self)) if split is None else self.rows(split).tolist()
        return (self.encoded(row) for row in rows)

    def captions_of(self, row: int) -> dict[str, str]:
        return {name: self._value(CAPTION + name, row) for name in self.captions}

    def about_row(self, row: int) -> dict[str, str]:
        return {name: self._value(name, row) for name in ROW_TEXTS}

    def name(self, row: int) -> str:
        """A record in messages."""
        return f"{self.path}, row {row} ({self._value('source', row)})"

    def check(self) -> None:
        """Reads everything, and refuses a store whose content is not what its identity says."""
        identity = Identity()
        for row in range(len(self)):
            self.encoded(row)
            identity.add(self._value("sha256", row), self._value("split", row), self.captions_of(row))
        if identity.hexdigest() != self.identity:
            raise UserError(
                f"{self.path} is damaged: its records give the identity {identity.hexdigest()[:12]}…, and {ABOUT} says "
                f"{self.identity[:12]}…; import the store again"
            )

    def _of_split(self, split: Split) -> NDArray[np.int64]:
        from pyarrow import compute

        ours = [compute.equal(batch.column("split"), split) for batch in self._batches]
        return np.flatnonzero(np.concatenate([one.to_numpy(zero_copy_only=False) for one in ours]))

    def _value(self, column: str, row: int) -> Any:
        shard = bisect_right(self._ends, row)
        first = self._ends[shard - 1] if shard else 0
        return self._batches[shard].column(column)[row - first].as_py()

    def _all(self, column: str) -> Any:
        return np.concatenate([batch.column(column).to_numpy() for batch in self._batches])


def open_store(path: Path) -> Store:
    """One for each folder in a process, as long as it is the same store: its splits share the maps."""
    about = path / ABOUT
    return _opened(path, about.stat().st_mtime_ns if about.is_file() else 0)


@lru_cache(maxsize=8)
def _opened(path: Path, written_ns: int) -> Store:
    return Store(path)


def _read_about(path: Path) -> AboutStore:
    file = path / ABOUT
    if not file.is_file():
        raise UserError(f"{path} is no store (it has no {ABOUT}); `tintype data import SOURCE --out {path}` makes one")
    try:
        return AboutStore.model_validate_json(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, ValidationError) as error:
        reason = error.errors()[0]["msg"] if isinstance(error, ValidationError) else error
        raise UserError(f"{file} is not what `tintype data import` of this version wrote ({reason})") from None


def _open_shard(folder: Path, shard: Shard, captions: Sequence[str]) -> Any:
    if Path(shard.name).name != shard.name:
        raise UserError(f"{folder / ABOUT} names the shard {shard.name}, which does not lie in the folder")
    path = folder / shard.name
    if not path.is_file() or path.stat().st_size != shard.bytes:
        found = f"has {path.stat().st_size:,} bytes" if path.is_file() else "is missing"
        raise UserError(f"{path} {found}, and {ABOUT} says {shard.bytes:,}; copy the store again, or import it again")
    batch = open_shard(path)
    if batch.schema != schema(captions) or batch.num_rows != shard.rows:
        raise UserError(f"{path} does not hold the {shard.rows:,} rows and the columns that {ABOUT} says")
    return batch


def open_shard(path: Path) -> Any:
    """The one record batch of a shard, memory-mapped."""
    import pyarrow

    try:
        with pyarrow.memory_map(str(path)) as file:
            reader = pyarrow.ipc.open_file(file)
            if reader.num_record_batches != 1:
                raise UserError(f"{path} has {reader.num_record_batches} record batches; a shard of a store has one")
            batch = reader.get_batch(0)
            batch.validate(full=True)  # offsets that point elsewhere would be followed
            return batch
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read as a shard of a store: {error}") from None
