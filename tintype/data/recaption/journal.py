"""A journal of answers with one line per answer, so that no paid answer is lost.

Each line is written to the operating system at once, so it survives a kill of the process. The file is synced to disk
every few seconds, so a power failure loses only the lines written since the last sync. Each line has a checksum.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Annotated

from pydantic import BaseModel, Field

from tintype.errors import UserError, as_user_error
from tintype.runtime.files import Json, checksum_of, parse_object
from tintype.runtime.identity import check_same
from tintype.wording import again, option

_SYNC_S = 5.0
_FORMAT = "tintype-recaption-2"
_CHECKSUM, _DIGITS = "checksum", 16
MOST_TOKENS = 10**9
"""Maximum number of tokens of an answer. If a server reports more, an error is raised."""
Count = Annotated[int, Field(ge=0, le=MOST_TOKENS**2)]


class Entry(BaseModel, frozen=True, extra="forbid", strict=True):
    """The outcome for one image: a caption, or the reason why there is none."""

    key: str
    """The SHA-256 of the image's bytes."""
    source: str
    caption: str
    aside: str | None = None
    """The reason why the caption is empty."""
    answer: str | None = None
    """The model's original text, if it differs from the caption."""
    cleaned: bool = False
    shortened: bool = False
    tries: Count = 1
    empty: Count = 0
    """Number of attempts that gave an empty answer."""
    refusals: Count = 0
    input_tokens: Count = 0
    output_tokens: Count = 0


@dataclass
class Journal:
    path: Path
    file: IO[bytes]
    entries: dict[str, Entry]
    _synced_s: float = 0.0

    def add(self, entry: Entry) -> None:
        kept = f"{len(self.entries):,} answers are kept there"
        remedy = f"{kept}; make room, then {again()} again to resume"
        with as_user_error(OSError, f"cannot write to {self.path}", remedy):
            self.file.write(_line(entry.model_dump(exclude_defaults=True)))
            self.file.flush()
            if time.monotonic() - self._synced_s > _SYNC_S:
                self.sync()
        self.entries[entry.key] = entry

    def sync(self) -> None:
        os.fsync(self.file.fileno())
        self._synced_s = time.monotonic()


@contextmanager
def open_journal(path: Path, settings: Mapping[str, Json], anew: bool) -> Iterator[Journal]:
    """Open the journal with the entries of earlier attempts. Refuse a journal with other settings."""
    if anew:
        path.unlink(missing_ok=True)
    header = {"format": _FORMAT, "settings": json.loads(json.dumps(settings))}
    with path.open("a+b") as file:
        file.seek(0)
        content = file.read()
        whole = content.rfind(b"\n") + 1  # a last line without a line break is incomplete
        file.truncate(whole)
        journal = Journal(path, file, {})
        if content[:whole].count(b"\n") > 1:
            journal.entries.update(_read(path, content[:whole], header))
        else:  # empty, or only the header of an attempt without answers
            file.truncate(0)
            file.write(_line(header))
            file.flush()
        try:
            yield journal
        finally:
            journal.sync()


def _line(content: dict[str, Json]) -> bytes:
    checked = {**content, _CHECKSUM: checksum_of(content)[:_DIGITS]}
    return json.dumps(checked, ensure_ascii=False).encode() + b"\n"


def _content(line: bytes) -> dict[str, Json]:
    """Parse a line; raise `ValueError` if its checksum is wrong."""
    found = parse_object(line)
    if found.pop(_CHECKSUM, None) != checksum_of(found)[:_DIGITS]:
        raise ValueError("another checksum")
    return found


def _read(path: Path, content: bytes, wanted: dict[str, Json]) -> Iterator[tuple[str, Entry]]:
    lines = content.split(b"\n")[:-1]
    try:
        header = _content(lines[0])
    except ValueError:
        raise UserError(
            f"{path} is damaged in line 1", f"discard all answers in this file with {option('anew')}"
        ) from None
    way_out = f"run that command again to resume it, or forget its {len(lines) - 1:,} answers with {option('anew')}"
    check_same(path, "command", header, wanted, way_out)
    for number, line in enumerate(lines[1:], 2):
        try:
            entry = Entry.model_validate(_content(line))
        except ValueError:
            raise UserError(
                f"{path} is damaged in line {number}",
                f"remove this line to caption the image again, or discard all answers with {option('anew')}",
            ) from None
        yield entry.key, entry
