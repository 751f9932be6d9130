"""Text with marked words. Each mark has a remark as a tooltip and for screen readers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from markupsafe import Markup, escape


class Remark(Protocol):
    """A remark about the characters from `start` up to, but not including, `end` of a text."""

    @property
    def start(self) -> int: ...

    @property
    def end(self) -> int: ...

    @property
    def words(self) -> str: ...


def marked(text: str, remarks: Sequence[Remark]) -> Markup:
    """Return a text with marks, without remarks that overlap an earlier remark or are outside of the text."""
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
    """Return marked words. Marked words are underlined, and the remark is a tooltip and a text for screen readers."""
    return Markup('<mark class="wrong" title="{0}">{1}<span class="unseen"> ({0})</span></mark>').format(remark, words)
