"""Adds a kind of caption to a store that is there, without touching its images.

The captions lie in files of their own, one beside each shard, named by what they hold. They count from the moment at
which `store.json` names them, and that file is exchanged as a whole: a column is there with all its rows, or not.
"""

from __future__ import annotations

import fcntl
import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tintype.data.store.layout import (
    ABOUT,
    CAPTION,
    AboutStore,
    AddedColumn,
    AddedPart,
    Identity,
    Store,
    added_schema,
    refuse_built_in,
)
from tintype.errors import UserError
from tintype.runtime.files import write_bytes

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


def check_name(name: str) -> None:
    """The name goes into the names of files."""
    if not _NAME.fullmatch(name):
        raise UserError(
            f"--column {name}: the name of a caption has up to 64 letters, digits, '_', '-' and '.', and begins with a "
            "letter or digit"
        )
    refuse_built_in(name, "--column")


def add_column(
    path: Path, name: str, texts: Sequence[str], made_by: Mapping[str, Any], journal: bytes | None = None
) -> AboutStore:
    """Adds the texts, one for each row, under a name that is new or that was added before, which is then replaced."""
    check_name(name)
    with _writing(path):
        store = Store(path)  # as it is now: another column may have come since the caller looked
        before = store.about.find_added(name)
        if before is None and name in store.captions:
            raise UserError(f"the caption {name} of {path} was imported, and lies in the shards; take another name")
        if name in store.attributes:
            raise UserError(f"{name} is an attribute of {path}; take another name for the caption")
        if len(texts) != len(store):
            raise ValueError(f"{len(texts)} captions for {len(store)} rows")
        # All is on the disk before it is named: what it was made of is removed next.
        column = _write_files(store, name, texts, made_by, journal)
        added = [one for one in store.about.added if one.name != name] + [column]
        captions = [one for one in store.captions if one != name] + [name]
        columns = _columns(store, [one for one in store.captions if one != name]) | {name: texts}
        about = store.about.model_copy(
            update={"identity": identity_of(store, columns), "captions": captions, "added": added}
        )
        write_bytes(path / ABOUT, about.to_json().encode(), durable=True)
        for file in set(before.files if before else []) - set(column.files):
            (path / file).unlink(missing_ok=True)
    return about


def _write_files(
    store: Store, name: str, texts: Sequence[str], made_by: Mapping[str, Any], journal: bytes | None
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
        content = _arrow(name, hashes[rows], texts[rows])
        file = f"{stem}-{index:05d}.arrow"
        write_bytes(store.path / file, content, durable=True)
        parts.append(AddedPart(name=file, bytes=len(content), sha256=hashlib.sha256(content).hexdigest()))
    kept = None if journal is None else f"{stem}.jsonl"
    if journal is not None and kept is not None:
        write_bytes(store.path / kept, journal, durable=True)
    sha256 = None if journal is None else hashlib.sha256(journal).hexdigest()
    return AddedColumn(name=name, parts=parts, journal=kept, journal_sha256=sha256, made_by=dict(made_by))


def _arrow(name: str, hashes: Sequence[str], texts: Sequence[str]) -> bytes:
    import pyarrow

    batch = pyarrow.RecordBatch.from_arrays(
        [pyarrow.array(hashes, pyarrow.string()), pyarrow.array(texts, pyarrow.string())], schema=added_schema(name)
    )
    sink = pyarrow.BufferOutputStream()
    with pyarrow.ipc.new_file(sink, batch.schema) as writer:
        writer.write_batch(batch)
    content: bytes = sink.getvalue().to_pybytes()
    return content


def earlier_identities(store: Store) -> Iterator[str]:
    """Those that it had, as far as the order says in which its captions were added; the newest first."""
    captions = list(store.captions)
    for column in reversed(store.about.added):
        captions.remove(column.name)
        yield identity_of(store, _columns(store, captions))


def _columns(store: Store, names: Sequence[str]) -> dict[str, Sequence[str]]:
    return {name: store.texts(CAPTION + name) for name in names}


def identity_of(store: Store, columns: Mapping[str, Sequence[str]]) -> str:
    """That of the store with these captions."""
    identity = Identity()
    rows = zip(store.texts("sha256"), store.texts("split"), *columns.values(), strict=True)
    for number, (sha256, split, *row) in enumerate(rows):
        identity.add(sha256, split, dict(zip(columns, row, strict=True)), store.attributes_of(number))
    return identity.hexdigest()


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Of two columns that are ready at the same time, one waits: it takes seconds."""
    try:
        with (path / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
    except OSError as error:
        raise UserError(
            f"cannot write to {path}: {error.strerror or error}. The store is as it was; mend this, then run the same "
            "command again"
        ) from error
