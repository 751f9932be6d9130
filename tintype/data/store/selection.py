"""The selected records of a store: `data.where` and `data.skip` select without rewriting the store.

A skip list names records by the SHA-256 of their image files, as in the column `sha256`. It is a text file with one
entry per line, or a Parquet file with the entries in its column `sha256`. `HASH` leaves out all records with that image
file; `HASH repeats` leaves out all of them but the first. A remark may follow `#`.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow
from numpy.typing import NDArray
from pyarrow import ArrowException, compute, types

from tintype.data.parquet_file import check_pages, open_bounded
from tintype.data.store.layout import Split, Store
from tintype.data.store.where import kept_by
from tintype.errors import UserError, as_user_error
from tintype.runtime.identity import Pin, check_pin

REPEATS = "repeats"
_ENTRY = re.compile(rf"([0-9a-f]{{64}})(?:\s+({REPEATS}))?")


@dataclass(frozen=True)
class SkipList:
    whole: frozenset[str] = frozenset()
    repeats: frozenset[str] = frozenset()

    @property
    def identity(self) -> str:
        """A hash of the entries; order and remarks do not matter."""
        lines = [*sorted(self.whole), *(f"{one} {REPEATS}" for one in sorted(self.repeats))]
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()


@dataclass(frozen=True)
class Selection:
    kept: NDArray[np.bool_]
    by_where: int = 0
    """Number of records that `where` leaves out, including those also in the skip list."""
    by_skip: int = 0
    unknown: frozenset[str] = frozenset()
    """Hashes in the skip list that no record has."""

    def rows(self, store: Store, split: Split) -> NDArray[np.int64]:
        rows = store.rows(split)
        return rows[self.kept[rows]]

    def identity(self, store_identity: str) -> str:
        """Return the identity of the selected records. If all records are selected, it equals the store's identity."""
        if self.kept.all():
            return store_identity
        return hashlib.sha256(store_identity.encode() + np.packbits(self.kept).tobytes()).hexdigest()

    @property
    def note(self) -> str | None:
        if not self.unknown:
            return None
        count, some = len(self.unknown), sorted(self.unknown)[0][:12]
        hashes = "hash is" if count == 1 else "hashes are"
        return f"{count:,} {hashes} in the skip list and not in the store (for example {some}…); they leave nothing out"


def select(store: Store, where: str | None, skip: Path | None, pin: Pin = None, name: str = "data.where") -> Selection:
    """Select records by `where` and the skip list, whose identity must begin with `pin`.

    `name` names `where` in messages.
    """
    kept = np.ones(len(store), dtype=np.bool_)
    wanted = kept if where is None else kept_by(store, where, name)
    entries = SkipList() if skip is None else read_skip_list(skip)
    check_pin("data.skip_sha256", pin, f"the skip list {skip}", entries.identity, "give the right file")
    skipped, unknown = _skipped(store, entries)
    return Selection(wanted & ~skipped, int((~wanted).sum()), int(skipped.sum()), unknown)


def refuse_empty(store: Store, selection: Selection, split: Split) -> None:
    before = len(store.rows(split))
    if before and not len(selection.rows(store, split)):
        raise UserError(
            f"none of the {before:,} {split} records of {store.path} remains: of all {len(store):,} records, "
            f"data.where excludes {selection.by_where:,} and data.skip excludes {selection.by_skip:,}",
            "exclude fewer records",
        )


def _skipped(store: Store, entries: SkipList) -> tuple[NDArray[np.bool_], frozenset[str]]:
    if entries == SkipList():
        return np.zeros(len(store), dtype=np.bool_), frozenset()
    column = store.table["sha256"]
    named = [pyarrow.array(sorted(some), pyarrow.string()) for some in (entries.whole, entries.repeats)]
    whole, repeats = (compute.is_in(column, value_set=some).to_numpy().astype(np.bool_) for some in named)
    at = np.flatnonzero(repeats)
    _, first = np.unique(np.array(column.take(at).to_pylist(), dtype="U64"), return_index=True)
    repeats[at[first]] = False
    return whole | repeats, (entries.whole | entries.repeats).difference(column.unique().to_pylist())


def read_skip_list(path: Path) -> SkipList:
    path = path.expanduser()
    lines = _parquet_lines(path) if path.suffix.lower() == ".parquet" else _text_lines(path)
    found: dict[str | None, set[str]] = {None: set(), REPEATS: set()}
    for place, line in lines:
        entry = line.partition("#")[0].strip()
        if not entry:
            continue
        parts = _ENTRY.fullmatch(entry)
        if parts is None:
            raise UserError(
                f"{place}: {entry[:80]!r} is not a valid entry. An entry is the SHA-256 of an image file (64 "
                f"digits, as in a store's column sha256), alone or followed by '{REPEATS}'"
            )
        found[parts[2]].add(parts[1])
    return SkipList(frozenset(found[None]), frozenset(found[REPEATS]))


def _text_lines(path: Path) -> Iterable[tuple[str, str]]:
    with (
        as_user_error(OSError, f"cannot read the skip list {path}"),
        as_user_error(UnicodeDecodeError, f"the skip list {path} is not text in UTF-8", "write one hash per line"),
    ):
        text = path.read_text(encoding="utf-8")
    return ((f"{path}, line {number}", line) for number, line in enumerate(text.split("\n"), 1))


def _parquet_lines(path: Path) -> Iterable[tuple[str, str]]:
    names = open_bounded(path).schema_arrow.names
    if "sha256" not in names:
        raise UserError(f"the skip list {path} has no column 'sha256'; its columns are {', '.join(names)}")
    file = open_bounded(path, read_dictionary=["sha256"])  # stores a repeated text once
    check_pages(file, path, ["sha256"])
    with as_user_error((ArrowException, OSError), f"cannot read the skip list {path} as a Parquet file"):
        values = [value for batch in file.iter_batches(columns=["sha256"]) for value in _values(batch.column(0))]
    return ((f"{path}, row {row}", "" if value is None else str(value)) for row, value in enumerate(values))


def _values(column: pyarrow.Array) -> list[object]:
    if not types.is_dictionary(column.type):
        return list(column.to_pylist())
    words = column.dictionary.to_pylist()
    return [None if index is None else words[index] for index in column.indices.to_pylist()]
