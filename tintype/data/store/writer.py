"""Write a store shard by shard, so that a stopped import resumes. A record counts only once it is synced to disk."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from contextlib import AbstractContextManager
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow
from pydantic import BaseModel

from tintype.data.arrow_file import file_of
from tintype.data.store import layout
from tintype.data.store.attributes import Kind, Value
from tintype.data.store.encode import Prepared
from tintype.data.store.layout import AboutStore, Shard, Split
from tintype.errors import UserError, as_user_error
from tintype.runtime.files import checksum_of, flush, write_bytes
from tintype.wording import again

SHARD_BYTES, SHARD_ROWS = 64 << 20, 4096
_PROGRESS, _CHECKSUM = "progress.json", "checksum"


class Written(BaseModel, extra="forbid"):
    request: dict[str, Any]
    """All settings that determine the stored content."""
    items: int = 0
    """Number of items that were stored or refused."""
    shards: list[Shard] = []
    quarantined: int = 0
    quarantine_bytes: int = 0
    quarantine_sha256: str = hashlib.sha256().hexdigest()
    bad: int = 0
    """Number of bad records in the quarantine. Records that the import's options leave out are not counted."""


class Writer:
    def __init__(self, work: Path, request: Mapping[str, Any]) -> None:
        self._work, self.written = work, _read_kept(work, request)
        self._items_kept = self.written.items
        self.quarantine = work / layout.QUARANTINE
        self._quarantine_total = hashlib.sha256(self.quarantine.read_bytes())
        begun = self.written.request  # existing shards have the first request's column order
        self._captions = list(begun["captions"])
        self._attributes: dict[str, Kind] = {name: one["kind"] for name, one in begun.get("attributes", {}).items()}
        self._identity, self._counts = hashlib.sha256(), dict.fromkeys(layout.SPLITS, 0)
        self.first_seen: dict[str, tuple[Split, str]] = {}
        """The split and the source of each stored image, by the hash of its pixels."""
        for shard in self.written.shards:
            layout.check_part(work / shard.name, shard, _again(work))
            self._take_in(layout.open_shard(work / shard.name))
        self._rows: list[dict[str, bytes | Value]] = []
        self._refused = bytearray()
        self._bytes = 0

    def add(
        self, image: Prepared, source: str, split: Split, captions: Mapping[str, str], attributes: Mapping[str, Value]
    ) -> None:
        self._rows.append(
            {
                **vars(image),
                "source": source.encode(errors="backslashreplace").decode(),  # a file's name may be any bytes
                "split": split,
                **{layout.CAPTION + name: text for name, text in captions.items()},
                **{layout.ATTRIBUTE + name: value for name, value in attributes.items()},
            }
        )
        self._bytes += len(image.image)
        self.written.items += 1
        if self._bytes >= SHARD_BYTES or len(self._rows) >= SHARD_ROWS:
            self.keep()

    def refuse(self, source: str, reason: str, bad: bool = True) -> None:
        said = {"source": source, "reason": reason, **({} if bad else {"asked": True})}
        self._refused += (json.dumps(said, ensure_ascii=False) + "\n").encode(errors="backslashreplace")
        self.written.bad += bad
        self.written.quarantined += 1
        self.written.items += 1

    def first_bad(self, count: int) -> list[str]:
        """Return source and reason of the first bad items in the quarantine file."""
        with self.quarantine.open(encoding="utf-8") as file:
            bad = (said for said in map(json.loads, file) if "asked" not in said)
            return [f"{said['source']}: {said['reason']}" for said in islice(bad, count)]

    def keep(self) -> None:
        """Write the records since the last call, and then the progress."""
        written = self.written
        if written.items == self._items_kept:
            return
        with self._writing():
            if self._rows:
                written.shards.append(self._write_shard(len(written.shards)))
            with self.quarantine.open("ab") as file:
                file.write(self._refused)
            flush(self.quarantine)  # sync the content before the progress that counts it
            self._quarantine_total.update(self._refused)
            written.quarantine_bytes += len(self._refused)
            written.quarantine_sha256 = self._quarantine_total.hexdigest()
            content = written.model_dump(mode="json")
            text = json.dumps({**content, _CHECKSUM: checksum_of(content)}, indent=1)
            write_bytes(self._work / _PROGRESS, text.encode(), durable=True)
        self._rows, self._refused, self._bytes, self._items_kept = [], bytearray(), 0, written.items

    def finish(self, out: Path) -> AboutStore:
        """Turn the work folder into a store, and rename it."""
        kept = self.written
        if not kept.shards:
            raise UserError(
                f"no image could be stored; {self.quarantine} has the reasons for all {kept.quarantined} records"
            )
        about = AboutStore(
            identity=self._identity.hexdigest(),
            counts={str(split): count for split, count in self._counts.items()},
            quarantined=kept.quarantined,
            quarantine_sha256=kept.quarantine_sha256 if kept.quarantined else None,
            captions=list(self._captions),
            shards=kept.shards,
            made_from=kept.request,
            attributes=dict(self._attributes),
        )
        with self._writing():
            write_bytes(self._work / layout.ABOUT, about.to_json().encode(), durable=True)
            (self._work / _PROGRESS).unlink()
            (self._work / ".lock").unlink(missing_ok=True)
            if not kept.quarantined:
                self.quarantine.unlink()
            flush(self._work)
            self._work.replace(out)
            flush(out.parent)
        return about

    def _write_shard(self, index: int) -> Shard:
        batch = pyarrow.RecordBatch.from_pylist(self._rows, schema=layout.schema(self._captions, self._attributes))
        name = f"shard-{index:05d}.arrow"
        write_bytes(self._work / name, file_of(batch), durable=True)
        self._take_in(batch)
        return layout.shard_of(self._work / name)

    def _take_in(self, batch: pyarrow.RecordBatch) -> None:
        layout.add_records(self._identity, batch)
        for row in batch.select(["pixels", "split", "source"]).to_pylist():
            self._counts[row["split"]] += 1
            self.first_seen.setdefault(row["pixels"], (row["split"], row["source"]))

    def _writing(self) -> AbstractContextManager[None]:
        kept = f"no store was made; {self._items_kept:,} items are kept there"
        fix = f"{kept}. Free some disk space, then {again()} again to resume"
        return as_user_error(OSError, f"cannot write to {self._work}", fix)


def has_kept(work: Path) -> bool:
    return (work / _PROGRESS).exists()


def _read_kept(work: Path, request: Mapping[str, Any]) -> Written:
    """Return the progress of an earlier attempt, and truncate the quarantine to its counted lines."""
    file, kept = work / _PROGRESS, Written(request=dict(request))
    if file.exists():
        with as_user_error((ValueError, RecursionError, AttributeError), f"{file} is damaged", _again(work)):
            content = json.loads(file.read_text(encoding="utf-8"))
            said = content.pop(_CHECKSUM, None)
            if said != checksum_of(content):
                raise ValueError("the file does not match its checksum")
            found = Written.model_validate(content)
        if found.request == json.loads(json.dumps(request)):
            kept = found
        elif found.shards:
            raise UserError(
                f"{work} contains an unfinished import from another source or with other options",
                "run the earlier command again to resume that import, or remove the folder",
            )
    _cut_quarantine(work / layout.QUARANTINE, kept)
    return kept


def _cut_quarantine(path: Path, kept: Written) -> None:
    """Drop the lines that were written after the last saved progress."""
    with path.open("a+b") as file:
        file.seek(0)
        content = file.read(kept.quarantine_bytes)
        if hashlib.sha256(content).hexdigest() != kept.quarantine_sha256:
            raise UserError(f"{path} is damaged: its content differs from what the import wrote", _again(path.parent))
        file.truncate(kept.quarantine_bytes)


def _again(work: Path) -> str:
    return f"remove the folder {work} and {again()} to import anew"
