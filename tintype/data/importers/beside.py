"""Captions in files that stand beside an image under its name, on a disk or in a tar.

`dog.txt` is the column `txt`, `dog.short.txt` the column `short`, and so on for any name between the dots. The entries
of `dog.json` are columns under their own names; captions are those that are strings.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from tintype.data.importers.importer import Kinds, usual_captions
from tintype.errors import UserError
from tintype.runtime.files import Json, parse_object

PLAIN = "txt"


class UnreadableError(Exception):
    """A side file that cannot be used; the message says why."""


def text_of(content: bytes, name: str) -> str:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UnreadableError(f"{name} is not text in UTF-8: {error}") from None


def entries_of(content: bytes, name: str) -> dict[str, Json]:
    """Return the entries of a JSON object."""
    try:
        return parse_object(text_of(content, name))
    except ValueError as error:
        raise UnreadableError(f"{name} {error}") from None


@dataclass(frozen=True)
class SideColumns:
    """The columns that text files and entries of JSON files beside images give."""

    columns: list[str]
    kinds: Kinds
    usual: dict[str, str]


def side_columns(source: Path, texts: Collection[str], entries: Kinds) -> SideColumns:
    """Return the columns of text files and of entries; a text file takes precedence over an entry of its name.

    Captions are every text file, and of the entries those with a usual name.
    """
    strings = {name for name, kinds in entries.items() if "text" in kinds}
    if double := sorted(strings.intersection(texts)):
        raise UserError(f"{source}: {', '.join(double)} is the name of .txt files and of entries in .json files")
    kinds = {name: entries[name] for name in sorted(entries)} | {name: {"text"} for name in sorted(texts)}
    named = {name: name for name in sorted(texts) if name != PLAIN}
    plain = {"long": PLAIN} if PLAIN in texts else {}
    return SideColumns(sorted({*texts, *strings}), kinds, {**usual_captions(strings), **plain, **named})
