"""Text for the public: without the places of this machine, and of a kind that Markdown and YAML take for mere text.

A card is made of plans, captions and file names that anybody may have written. All of them pass through here.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

LOCAL = "(a local file or folder)"
_PATH_KEYS = frozenset({"path", "skip", "folder", "latents_folder"})
_SOURCE_KEYS = frozenset({"weights", "source"})
"""A repository of the hub, or a place on this machine."""
_NO_PLACE = frozenset({"raw", "average"})
"""Which weights of a run another one starts from (`start.weights`)."""
HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)
_PATHS = re.compile(
    r"file://\S+"
    r"|(?<![\w/:.~<])(?:~[\w.-]*|\.{1,2})?/[^\s/'\"`]{2,}(?:/[^\s'\"`]*)*"
    r"|\b[A-Za-z]:\\[^\s'\"`]+"
    r"|\\\\\w[^\s'\"`]+"
)
_MEANINGFUL = re.compile(r"[\\`*|~]|(?<!\w)_|_(?!\w)|^[#+=-]|(?<=^\d)[.)](?= |$)|(?<=^\d\d)[.)](?= |$)")
_ENTITIES = {"&": "&amp;", "<": "&lt;", ">": "&gt;", "[": "&#91;", "]": "&#93;", "$": "&#36;"}
"""Brackets and dollars are entities: the hub takes them for mathematics with a backslash before them."""


def words(value: object) -> str:
    """One line of text without control characters, without marks that turn its direction, and without paths."""
    one_line = " ".join(str(value).split())
    seen = "".join(letter for letter in one_line if unicodedata.category(letter)[0] != "C")
    return _PATHS.sub(LOCAL, seen)


def text(value: object) -> str:
    """The same as Markdown that shows it letter by letter, in a table's cell as elsewhere."""
    shown = _MEANINGFUL.sub(lambda found: "\\" + found[0], words(value))
    shown = "".join(_ENTITIES.get(letter, letter) for letter in shown)
    return re.sub(r"(?i)(https?|ftp|www)([:.])", r"\1&#8203;\2", shown)  # no address becomes a link by itself


def table(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> Iterator[str]:
    """The cells are escaped here; they must not be before."""
    yield _row(heads)
    yield "|" + " --- |" * len(heads)
    yield from (_row(row) for row in rows)
    yield ""


def _row(cells: Sequence[object]) -> str:
    return "| " + " | ".join(text(cell) for cell in cells) + " |"


def fenced(content: str, language: str) -> str:
    """A block of code that its content cannot end."""
    longest = max((len(ticks) for ticks in re.findall(r"`+", content)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{content.rstrip()}\n{fence}\n"


def front_matter(content: Mapping[str, Any]) -> str:
    """The head of a card. Unlike our own YAML it quotes what any reader could take for something else than text."""
    dumped: str = yaml.safe_dump(_public(content), sort_keys=False, allow_unicode=True, width=1_000_000)
    return f"---\n{dumped}---\n"


def _public(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _public(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_public(inner) for inner in value]
    return words(value) if isinstance(value, str) else value


def settings(value: Any, key: str = "") -> Any:
    """Settings as they may be shown: a place on this machine becomes `LOCAL`, a repository of the hub stays."""
    if isinstance(value, Mapping):
        return {name: settings(inner, str(name)) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [settings(inner, key) for inner in value]
    if not isinstance(value, str):
        return value
    return LOCAL if is_local(value, key) else words(value)


def is_local(value: str, key: str) -> bool:
    """Return whether a setting is a place on this machine."""
    if key in _PATH_KEYS:
        return True
    if key in _SOURCE_KEYS:
        return value not in _NO_PLACE and (not HUB_NAME.fullmatch(value) or Path(value).exists())
    return value.startswith(("/", "~", "\\", "./", "../"))
