"""Docs, docstrings and errors have short sentences: a tired reader reads each once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.sentences.collect import KINDS, MOST_WORDS, Kind, sentences

ROOT = Path(__file__).parents[2]
KNOWN = {"tintype/serve/guard.py:3"}
"""Long sentences that are still to be split."""


@pytest.mark.parametrize("kind", KINDS)
def test_no_sentence_is_long(kind: Kind) -> None:
    found = sentences(ROOT, kind)
    assert len(found) > 1_000
    long = {f"{one.file}:{one.line}": one.text for one in found if one.words > MOST_WORDS}
    assert not {place: text for place, text in long.items() if place not in KNOWN}
