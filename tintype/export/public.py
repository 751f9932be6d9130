"""Prepare text for publication by removing paths of this machine and escaping Markdown.

A card contains plans, captions and file names from any source. All of them pass through this module.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path

from markupsafe import Markup

from tintype.config.strict import marks_of
from tintype.runtime.files import Json
from tintype.runtime.redact import LOCAL, redact_text
from tintype.settings import NamesFile, Settings

_HUB_KEYS = frozenset({"weights", "source"})
"""Settings whose value is the name of a hub repository, or a path."""
_WHICH_WEIGHTS = frozenset({"raw", "average"})
"""Values of `start.weights`. Unlike settings called `weights` in other sections, `start.weights` names no file."""
_WRITTEN_TO = frozenset({"latents_folder"})
"""Settings with paths to which a run writes. Such settings are not marked as files to read."""
HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)
_MEANINGFUL = re.compile(r"[\\`*|~]|(?<!\w)_|_(?!\w)|^[#+=-]|(?<=^\d)[.)](?= |$)|(?<=^\d\d)[.)](?= |$)")
_ENTITIES = {"&": "&amp;", "<": "&lt;", ">": "&gt;", "[": "&#91;", "]": "&#93;", "$": "&#36;"}
"""Characters that become HTML entities. After a backslash, the hub would read them as mathematics."""


def one_line(value: object) -> str:
    """Return the value as one line of text. Control characters, marks of text direction, and paths are removed."""
    joined = " ".join(str(value).split())
    return redact_text("".join(letter for letter in joined if unicodedata.category(letter)[0] != "C"))


def escape(value: object) -> Markup:
    """Return one line of Markdown that shows the text literally, also in a table cell.

    A card's template passes every value to this function, except tintype's own Markdown, which is `Markup`.
    """
    if isinstance(value, Markup):
        return value
    shown = _MEANINGFUL.sub(lambda found: "\\" + found[0], one_line(value))
    shown = "".join(_ENTITIES.get(letter, letter) for letter in shown)
    return Markup(re.sub(r"(?i)(https?|ftp|www)([:.])", r"\1&#8203;\2", shown))  # no address becomes a link by itself


def fenced(content: str, language: str) -> Markup:
    """Return a fenced block whose fence is longer than any run of backticks in its content."""
    longest = max((len(ticks) for ticks in re.findall(r"`+", content)), default=0)
    fence = "`" * max(3, longest + 1)
    return Markup(f"{fence}{language}\n{content.rstrip()}\n{fence}\n")


def redacted(value: Json, key: str = "") -> Json:
    """Return settings with every path replaced by `LOCAL`. Names of hub repositories are kept."""
    return changed(value, lambda text, key: LOCAL if is_local(text, key) else one_line(text), key)


def changed(value: Json, change: Callable[[str, str], str], key: str = "") -> Json:
    if isinstance(value, Mapping):
        return {name: changed(inner, change, str(name)) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [changed(inner, change, key) for inner in value]
    return change(value, key) if isinstance(value, str) else value


def is_local(value: str, key: str) -> bool:
    """Return whether the value of a setting is a path on this machine."""
    names_file = key in _WRITTEN_TO or any(not mark.is_word(value) for mark in _file_marks().get(key, ()))
    if names_file and key in _HUB_KEYS:
        return value not in _WHICH_WEIGHTS and (not HUB_NAME.fullmatch(value) or Path(value).exists())
    return names_file or value.startswith(("/", "~", "\\", "./", "../"))


@cache
def _file_marks() -> dict[str, list[NamesFile]]:
    """Return the marks of all settings that name a file, by key, over all kinds of settings."""
    found: dict[str, list[NamesFile]] = {}
    classes: list[type[Settings]] = [Settings]
    for one in classes:
        classes += one.__subclasses__()
        for key, field in one.model_fields.items():
            found.setdefault(key, []).extend(mark for mark in marks_of(field) if isinstance(mark, NamesFile))
    return found
