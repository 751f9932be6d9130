"""Log notes for the user from packages that do not print. `terminal/` shows the logger `tintype`."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from tintype.wording import Language, rendered

LOGGER = logging.getLogger("tintype")
_language: ContextVar[Language] = ContextVar("language", default="command")
_noted: set[str] = set()


@contextmanager
def notes_in(language: Language) -> Iterator[None]:
    token = _language.set(language)
    try:
        yield
    finally:
        _language.reset(token)


def note(text: str) -> None:
    """Log a note. Options in the text are formatted for the current language (`notes_in`)."""
    LOGGER.warning(rendered(text, _language.get()))


def note_once(subject: str, text: str) -> None:
    if subject not in _noted:
        _noted.add(subject)
        note(text)
