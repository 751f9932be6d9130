"""Redact what is passed on: passwords in addresses everywhere, paths of this machine in results, reports and cards."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping

LOCAL = "(a local file or folder)"
HIDDEN = "(hidden)"
_INSIDE = r"[^\s/?#\"<>\\{}|"
"""The start of a class of letters that stand in the user and password of an address; quotes end JSON's texts."""
_PASSWORDS = re.compile(
    rf"(?<=://){_INSIDE}:@]*:{_INSIDE}]*@|(?:(?<=http://)|(?<=https://)){_INSIDE}@]+@", re.IGNORECASE
)
"""`user:password@` in any address; in those of the web, where a token may stand alone, also `user@`."""
_TOKENS = re.compile(
    r"(?:(?<=[?&])|(?<=&amp;))([\w-]{0,40}(?:token|key|secret|passw(?:or)?d|pwd|signature|sig|credential))=[^\s&#\"<>\\{}|]+",
    re.IGNORECASE,
)
"""Values of an address's query that let their owner in, as `?access_token=…`."""
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


def hide_passwords(text: str) -> str:
    """Return the text without the passwords and tokens of its addresses."""
    return _TOKENS.sub(rf"\1={HIDDEN}", _PASSWORDS.sub(f"{HIDDEN}@", text)) if "://" in text else text


def redact_text(text: str, name: NamePath = lambda path: LOCAL) -> str:
    """Return the text with each path replaced by its `name`, and without passwords."""
    return _PATHS.sub(lambda found: name(found[0]), hide_passwords(text))


def hide_all_passwords(value: object) -> object:
    """Hide the passwords in all strings of nested data, keys too: what names a key elsewhere still does."""
    return _mapped(value, hide_passwords, hide_passwords)


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


def _mapped(value: object, change: Callable[[str], str], rename: Callable[[str], str] = str) -> object:
    if isinstance(value, Mapping):
        return {
            rename(key) if isinstance(key, str) else key: _mapped(inner, change, rename) for key, inner in value.items()
        }
    if isinstance(value, list | tuple):
        return [_mapped(inner, change, rename) for inner in value]
    return change(value) if isinstance(value, str) else value
