"""Captions in files that stand beside an image under its name, on a disk or in a tar.

`dog.txt` is the column `txt`, `dog.short.txt` the column `short`, and so on for any name between the dots. The entries
of `dog.json` are columns under their own names; captions are those that are strings.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Any

from tintype.data.importers import usual_captions

PLAIN, FOLDER = "txt", "folder"


class UnreadableError(Exception):
    """A side file that cannot be used; the message says why."""


def text_of(content: bytes, name: str) -> str:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UnreadableError(f"{name} is not text in UTF-8: {error}") from None


def entries_of(content: bytes, name: str) -> dict[str, Any]:
    """What is in a JSON object."""
    try:
        found = json.loads(text_of(content, name))
    except (ValueError, RecursionError) as error:
        raise UnreadableError(f"{name} cannot be read as JSON: {error}") from None
    if not isinstance(found, dict):
        raise UnreadableError(f"{name} holds no JSON object")
    return found


def strings_in(entries: Mapping[str, Any]) -> dict[str, str]:
    return {key: value for key, value in entries.items() if isinstance(value, str)}


def kinds_beside(text_columns: Collection[str], entries: Mapping[str, Collection[str]]) -> dict[str, Collection[str]]:
    """A text file goes before an entry of its name."""
    return {name: entries[name] for name in sorted(entries)} | {name: {"text"} for name in sorted(text_columns)}


def captions_beside(text_columns: Collection[str], json_columns: Collection[str]) -> dict[str, str]:
    """What one takes for captions: every text file, and of the entries of JSON files those with a usual name."""
    named = {name: name for name in sorted(text_columns) if name != PLAIN}
    plain = {"long": PLAIN} if PLAIN in text_columns else {}
    return {**usual_captions(sorted(json_columns)), **plain, **named}
