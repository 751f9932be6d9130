"""Change an existing store: add a kind of caption, or the checksums that an earlier version did not write.

Added captions lie in separate files, one per shard, named by a hash of the texts. The store has a new column once
`store.json` names its files. `store.json` is replaced atomically, so a column has all its rows or is absent. The files
with the images do not change.

`tintype data upgrade` checks the hash of each image, the identity of all records, and the stored sizes of images. Then
it rewrites `store.json`; no other file changes. The command cannot check the columns `source` and `pixels`, which
training does not read.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow
from pydantic import ValidationError

from tintype.data.arrow_file import file_of
from tintype.data.image_file import open_image
from tintype.data.store import layout
from tintype.data.store.layout import ABOUT, CAPTION, AboutStore, AddedColumn, AddedPart, Store, identity_of, shard_of
from tintype.errors import UserError, as_user_error
from tintype.runtime.files import sha256_of, write_bytes
from tintype.runtime.locks import taking_turns
from tintype.wording import again, option

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


def check_column(store: Store, name: str) -> None:
    """Refuse a name that new captions cannot have. The name becomes part of file names."""
    if not _NAME.fullmatch(name):
        raise UserError(
            f"{option('column', name)} is not a valid name of a caption",
            "use at most 64 letters, digits, '_', '-' or '.', and begin with a letter or digit",
        )
    layout.refuse_built_in(name, "column")
    if name in store.about.imported:
        raise UserError(
            f"{option('column', name)}: {store.path} has captions of this name from its import, which are never "
            "overwritten",
            "take another name",
        )
    if name in store.attributes:
        raise UserError(f"{option('column', name)}: this is an attribute of {store.path}", "take another name")


def add_column(
    path: Path, name: str, texts: Sequence[str], made_by: Mapping[str, object], journal: bytes | None = None
) -> AboutStore:
    """Add one text per row as a new kind of caption, or replace a kind that was added before."""
    with _writing(path):
        store = Store(path)  # reopen: another column may have been added meanwhile
        check_column(store, name)
        before = store.about.find_added(name)
        if len(texts) != len(store):
            raise ValueError(f"{len(texts)} captions for {len(store)} rows")
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


def upgrade_store(path: Path, on_records: Callable[[int, int], None] = lambda done, total: None) -> AboutStore:
    """Check the whole store, then add the checksums. A store that already has checksums is not changed.

    Each record is read twice, so `on_records` counts each record twice.
    """
    content = layout.read_content(path)
    if content.get("format") != layout.EARLIER_FORMAT:
        return layout.read_about(path)
    store = Store(path, _with_checksums(path, content))
    store.check(lambda done: on_records(done, 2 * len(store)))
    _check_sizes(store, lambda done: on_records(len(store) + done, 2 * len(store)))
    write_bytes(path / ABOUT, store.about.to_json().encode(), durable=True)
    return store.about


def _with_checksums(path: Path, content: dict[str, Any]) -> AboutStore:
    kinds = (LookupError, TypeError, AttributeError, OSError, ValidationError)
    with as_user_error(kinds, f"{path / ABOUT} or a file that it lists is damaged", "import the store again"):
        shards = [_same(path, one) for one in content["shards"]]
        added = [
            {**one, "journal_sha256": sha256_of(path / Path(one["journal"]).name) if one.get("journal") else None}
            for one in content.get("added", [])
        ]
        quarantine = sha256_of(path / layout.QUARANTINE) if content["quarantined"] else None
        known = {"format": layout.FORMAT, "shards": shards, "added": added, "quarantine_sha256": quarantine}
        return AboutStore.model_validate_json(json.dumps({**content, **known}))


def _same(path: Path, earlier: dict[str, Any]) -> dict[str, Any]:
    found = shard_of(path / Path(earlier["name"]).name).model_dump()
    if any(found[key] != value for key, value in earlier.items()):
        raise UserError(f"{path / found['name']} does not match its SHA-256 in {ABOUT}", "import the store again")
    return found


def _check_sizes(store: Store, on_records: Callable[[int], None]) -> None:
    widths, heights = store.sizes()
    for row in range(len(store)):
        one = store.encoded(row)
        with open_image(one.content, one.name) as image:
            if image.size != (widths[row], heights[row]):
                raise UserError(
                    f"{one.name} is damaged: its size differs from the stored one", "import the store again"
                )
        on_records(row + 1)
