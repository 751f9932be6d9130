"""Add a kind of caption to an existing store.

Added captions lie in separate files, one per shard, named by a hash of the texts. The store has a new column once
`store.json` names its files. `store.json` is replaced atomically, so a column has all its rows or is absent. The files
with the images do not change.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pyarrow

from tintype.data.arrow_file import file_of
from tintype.data.store import layout
from tintype.data.store.layout import ABOUT, CAPTION, AboutStore, AddedColumn, AddedPart, Store, identity_of
from tintype.errors import UserError, as_user_error
from tintype.runtime.files import write_bytes
from tintype.runtime.locks import taking_turns
from tintype.wording import again, option

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


def check_column(store: Store, name: str) -> None:
    """Refuse a name that new captions cannot have. The name becomes part of file names."""
    if not _NAME.fullmatch(name):
        raise UserError(
            f"{option('column', name)} is not a valid name for a caption column",
            "use at most 64 letters, digits, '_', '-' or '.', and begin with a letter or digit",
        )
    layout.refuse_built_in(name, "column")
    if name in store.about.imported:
        raise UserError(
            f"{option('column', name)}: {store.path} has imported captions with this name, which are never overwritten",
            "take another name",
        )
    if name in store.attributes:
        raise UserError(
            f"{option('column', name)}: {store.path} has an attribute with this name", "choose another name"
        )


def add_column(
    path: Path, name: str, texts: Sequence[str], made_by: Mapping[str, object], journal: bytes | None = None
) -> AboutStore:
    """Add one text per row as a new kind of caption, or replace a kind that was added before."""
    with _writing(path):
        store = Store(path)  # reopen: another column may have been added meanwhile
        check_column(store, name)
        before = store.about.find_added(name)
        if len(texts) != len(store):
            raise ValueError(f"{len(texts)} captions were given for {len(store)} rows")
        # Write all files before `store.json` names them, since the caller removes the journal next.
        column = _write_files(store, name, texts, made_by, journal)
        added = [one for one in store.about.added if one.name != name] + [column]
        captions = [one for one in store.captions if one != name] + [name]
        columns = store.table.drop_columns([CAPTION + name] if before else [])
        identity = identity_of(columns.append_column(CAPTION + name, [texts]))
        about = store.about.model_copy(update={"identity": identity, "captions": captions, "added": added})
        write_bytes(path / ABOUT, about.to_json().encode(), durable=True)
        for file in set(before.files if before else []) - set(column.files):
            (path / file).unlink(missing_ok=True)
    return about


def _write_files(
    store: Store, name: str, texts: Sequence[str], made_by: Mapping[str, object], journal: bytes | None
) -> AddedColumn:
    hashes = store.texts("sha256")
    total = hashlib.sha256()
    for text in texts:
        total.update(hashlib.sha256(text.encode()).digest())
    stem = f"captions-{name}-{total.hexdigest()[:12]}"
    parts, first = [], 0
    for index, shard in enumerate(store.about.shards):
        rows = slice(first, first + shard.rows)
        first += shard.rows
        columns = [pyarrow.array(some[rows], pyarrow.string()) for some in (hashes, texts)]
        content = file_of(pyarrow.RecordBatch.from_arrays(columns, schema=layout.added_schema(name)))
        file = f"{stem}-{index:05d}.arrow"
        write_bytes(store.path / file, content, durable=True)
        parts.append(AddedPart(name=file, bytes=len(content), sha256=hashlib.sha256(content).hexdigest()))
    column = AddedColumn(name=name, parts=parts, made_by=dict(made_by))
    if journal is None:
        return column
    write_bytes(store.path / f"{stem}.jsonl", journal, durable=True)
    return column.model_copy(update={"journal": f"{stem}.jsonl", "journal_sha256": hashlib.sha256(journal).hexdigest()})


def earlier_identities(store: Store) -> Iterator[str]:
    """Yield the identities that the store had before captions were added, the newest first."""
    columns = store.table
    for column in reversed(store.about.added):
        columns = columns.drop_columns([CAPTION + column.name])
        yield identity_of(columns)


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Hold the store's lock, so that two commands add their columns one after the other."""
    remedy = f"the store is as it was; fix this, then {again()} again"
    with as_user_error(OSError, f"cannot write to {path}", remedy), taking_turns(path / ".lock"):
        yield
