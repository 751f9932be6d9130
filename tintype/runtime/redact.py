"""Redact passwords and local paths in text that leaves the machine, such as results, reports and cards."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping

_NUMBERS = frozenset({int, float})
LOCAL = "(a local file or folder)"
HIDDEN = "(hidden)"
_INSIDE = r"[^\s/?#\"<>\\{}|"
"""Start of a regex class for the user and password of an address. Quotes are excluded, since they end JSON strings."""
_PASSWORDS = re.compile(
    rf"(?<=://){_INSIDE}:@]*:{_INSIDE}]*@|(?:(?<=http://)|(?<=https://)){_INSIDE}@]+@", re.IGNORECASE
)
"""Match `user:password@`, and in web addresses `user@`, since a token can stand there without a password."""
_TOKENS = re.compile(
    r"(?:(?<=[?&])|(?<=&amp;))([\w-]{0,40}(?:token|key|secret|passw(?:or)?d|pwd|signature|sig|credential))=[^\s&#\"<>\\{}|]+",
    re.IGNORECASE,
)
"""Match secrets in an address's query, such as `?access_token=…`."""
_LETTER = r"(?:[^\s/'\"`,;:()\[\]{}]|:(?=\w))"
_IN_TEXT = (
    r"file://[^\s'\"`]+"
    rf"|(?<![\w/.~<>-])(?:(?:~[\w.-]*|\.{{1,2}})/{_LETTER}|/(?:{_LETTER}{{2}}|{_LETTER}/)){_LETTER}*(?:/{_LETTER}*)*"
    r"|\b[A-Za-z]:\\[^\s'\"`]+"
    r"|\\\\\w[^\s'\"`]+"
)
"""Match Unix paths, Windows paths and `file://` addresses, but no other addresses. `/x` alone does not match."""
_PATHS = re.compile(_IN_TEXT)
_WHOLE = re.compile(r"(?:~[\w.-]*/|/[^/\n]+/)[^/\n]*(?:/[^/\n]*)*")
"""Match a string that consists of one path, possibly with spaces."""

NamePath = Callable[[str], str]


def hide_passwords(text: str) -> str:
    return _TOKENS.sub(rf"\1={HIDDEN}", _PASSWORDS.sub(f"{HIDDEN}@", text)) if "://" in text else text


def redact_text(text: str, name: NamePath = lambda path: LOCAL) -> str:
    """Return the text with each path replaced by `name(path)`, and with passwords hidden."""
    return _PATHS.sub(lambda found: name(found[0]), hide_passwords(text))


def hide_all_passwords(value: object) -> object:
    """Hide the passwords in all strings and keys of nested data. Equal keys are still equal afterwards."""
    return _mapped(value, hide_passwords, hide_passwords)


def redact(value: object, name: NamePath) -> object:
    """Replace the paths in all strings of nested data, also inside strings if the path fills another whole string."""
    whole = dict.fromkeys(text for text in _strings(value) if _WHOLE.fullmatch(text))
    for path in whole:
        name(path)  # so that names are numbered in the order of the data
    known = "".join(re.escape(path) + r"(?![\w.-])|" for path in sorted(whole, key=len, reverse=True))
    paths = re.compile(known + _IN_TEXT)
    return _mapped(value, lambda text: paths.sub(lambda found: name(found[0]), text))


def last_names() -> NamePath:
    """Return a function that replaces each path by its last component, with a number if several paths share it."""
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
        if _NUMBERS.issuperset(map(type, value)):  # fast path: most lists in results are curves, without paths
            return list(value)
        return [_mapped(inner, change, rename) for inner in value]
    return change(value) if isinstance(value, str) else value
