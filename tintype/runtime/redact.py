"""Redact the paths of this machine from what is passed on: results, reports, model cards."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping

LOCAL = "(a local file or folder)"
_LETTER = r"(?:[^\s/'\"`,;:()\[\]{}]|:(?=\w))"
_IN_TEXT = (
    r"file://[^\s'\"`]+"
    rf"|(?<![\w/.~<>-])(?:(?:~[\w.-]*|\.{{1,2}})/{_LETTER}|/(?:{_LETTER}{{2}}|{_LETTER}/)){_LETTER}*(?:/{_LETTER}*)*"
    r"|\b[A-Za-z]:\\[^\s'\"`]+"
    r"|\\\\\w[^\s'\"`]+"
)
"""Unix paths, Windows paths and `file://` addresses; other addresses stay. `/x` alone is taken for a mere stroke."""
_PATHS = re.compile(_IN_TEXT)
_WHOLE = re.compile(r"(?:~[\w.-]*/|/[^/\n]+/)[^/\n]*(?:/[^/\n]*)*")
"""A string that is a path as a whole; it may have spaces."""

NamePath = Callable[[str], str]
"""Return what stands in place of a path."""


def redact_text(text: str, name: NamePath = lambda path: LOCAL) -> str:
    """Return the text with each path replaced by its `name`."""
    return _PATHS.sub(lambda found: name(found[0]), text)


def redact(value: object, name: NamePath) -> object:
    """Redact all strings of nested data. A path that is a whole string somewhere is found within other strings too."""
    whole = dict.fromkeys(text for text in _strings(value) if _WHOLE.fullmatch(text))
    for path in whole:
        name(path)  # numbered in the order of the data
    known = "".join(re.escape(path) + r"(?![\w.-])|" for path in sorted(whole, key=len, reverse=True))
    paths = re.compile(known + _IN_TEXT)
    return _mapped(value, lambda text: paths.sub(lambda found: name(found[0]), text))


def last_names() -> NamePath:
    """Name each path by its last part; two paths that end alike get numbers, so that they stay two."""
    names: dict[str, str] = {}

    def name(path: str) -> str:
        if path not in names:
            last, taken = re.split(r"[/\\]", path.rstrip("/\\"))[-1], set(names.values())
            numbered = (f"{last}-{number}" for number in range(2, len(taken) + 3))
            names[path] = last if last not in taken else next(one for one in numbered if one not in taken)
        return names[path]

    return name


def _strings(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping | list | tuple):
        for inner in value.values() if isinstance(value, Mapping) else value:
            yield from _strings(inner)


def _mapped(value: object, change: Callable[[str], str]) -> object:
    if isinstance(value, Mapping):
        return {key: _mapped(inner, change) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_mapped(inner, change) for inner in value]
    return change(value) if isinstance(value, str) else value
