"""Text with some of its words marked, each with a remark that is shown on demand and read aloud."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from markupsafe import Markup, escape


class Remark(Protocol):
    """A part of a text, by the places of its first character and the one after its last, and words about it."""

    @property
    def start(self) -> int: ...

    @property
    def end(self) -> int: ...

    @property
    def words(self) -> str: ...


def marked(text: str, remarks: Sequence[Remark]) -> Markup:
    """Return a text with marks. A remark outside of the text, or inside of another, is left out."""
    return Markup("").join(_pieces(text, remarks))


def _pieces(text: str, remarks: Sequence[Remark]) -> Iterator[Markup]:
    done = 0
    for one in sorted(remarks, key=lambda one: one.start):
        if done <= one.start < one.end <= len(text):
            yield escape(text[done : one.start])
            yield mark(text[one.start : one.end], one.words)
            done = one.end
    yield escape(text[done:])


def mark(words: str, remark: str) -> Markup:
    """Return marked words: underlined, with the remark as a tooltip and for screen readers."""
    return Markup('<mark class="wrong" title="{0}">{1}<span class="unseen"> ({0})</span></mark>').format(remark, words)
