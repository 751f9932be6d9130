"""`tintype data upgrade`: add checksums to a store that an earlier version imported.

Such a store has a hash of each image and the identity of all records. Both are checked first, and the sizes of images
against their files. Then `store.json` is written anew; no other file changes. Only the columns `source` and `pixels`,
which no training reads, are taken as they are.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from tintype.data.image_file import open_image
from tintype.data.store.layout import (
    ABOUT,
    EARLIER_FORMAT,
    FORMAT,
    QUARANTINE,
    AboutStore,
    Store,
    read_about,
    read_content,
    shard_of,
)
from tintype.errors import UserError
from tintype.runtime.files import sha256_of, write_bytes


def upgrade_store(path: Path, on_records: Callable[[int, int], None] = lambda done, total: None) -> AboutStore:
    """Check the whole store, then add the checksums. A store that has them stays as it is.

    Each record is read twice, and counted so.
    """
    content = read_content(path)
    if content.get("format") != EARLIER_FORMAT:
        return read_about(path)
    store = Store(path, _with_checksums(path, content))
    store.check(lambda done: on_records(done, 2 * len(store)))
    _check_sizes(store, lambda done: on_records(len(store) + done, 2 * len(store)))
    write_bytes(path / ABOUT, store.about.to_json().encode(), durable=True)
    return store.about


def _with_checksums(path: Path, content: dict[str, Any]) -> AboutStore:
    try:
        shards = [_same(path, one) for one in content["shards"]]
        added = [
            {**one, "journal_sha256": sha256_of(path / Path(one["journal"]).name) if one.get("journal") else None}
            for one in content.get("added", [])
        ]
        quarantine = sha256_of(path / QUARANTINE) if content["quarantined"] else None
        known = {"format": FORMAT, "shards": shards, "added": added, "quarantine_sha256": quarantine}
        return AboutStore.model_validate_json(json.dumps({**content, **known}))
    except (LookupError, TypeError, AttributeError, OSError, ValidationError) as error:
        raise UserError(
            f"{path / ABOUT} is damaged, or names a file that is ({error}); import the store again"
        ) from None


def _same(path: Path, earlier: dict[str, Any]) -> dict[str, Any]:
    found = shard_of(path / Path(earlier["name"]).name).model_dump()
    if any(found[key] != value for key, value in earlier.items()):
        raise UserError(f"{path / found['name']} is not the file that {ABOUT} says; import the store again")
    return found


def _check_sizes(store: Store, on_records: Callable[[int], None]) -> None:
    widths, heights = store.sizes()
    for row in range(len(store)):
        one = store.encoded(row)
        with open_image(one.content, one.name) as image:
            if image.size != (widths[row], heights[row]):
                raise UserError(
                    f"{one.name} is damaged: its size is not the one that was stored; import the store again"
                )
        on_records(row + 1)
