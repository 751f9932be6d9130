"""Docs, docstrings and errors have short sentences: a tired reader reads each once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.sentences.collect import KINDS, MOST_WORDS, Kind, sentences

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("kind", KINDS)
def test_no_sentence_is_long(kind: Kind) -> None:
    found = sentences(ROOT, kind)
    assert len(found) > 1_000
    long = {f"{one.file}:{one.line}": one.text for one in found if one.words > MOST_WORDS}
    assert not long
