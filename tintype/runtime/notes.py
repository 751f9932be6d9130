"""Notes for the user from rooms that do not print: they go to the logger `tintype`, and `terminal/` shows them."""

from __future__ import annotations

import logging

LOGGER = logging.getLogger("tintype")
_noted: set[str] = set()


def note(text: str) -> None:
    LOGGER.warning(text)


def note_once(subject: str, text: str) -> None:
    """Note something once in a process for each subject."""
    if subject not in _noted:
        _noted.add(subject)
        note(text)
