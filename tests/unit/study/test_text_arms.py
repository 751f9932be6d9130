"""Arms that read captions with several encoders."""

from __future__ import annotations

import pytest

from tests.tiny import tiny_plan
from tests.tiny_text import option
from tintype.errors import UserError
from tintype.study.results import Run
from tintype.study.runs import _text, check_identities


def run_of(identity: str, *techniques: str) -> Run:
    text = _text(tiny_plan(techniques=techniques), identity)
    return Run(seed=0, hash="", folder="runs/x", state="done", text=text)


def test_results_say_what_read_the_captions() -> None:
    words, minilm = run_of(""), run_of("ab" * 32, option())
    assert words.text is not None and (words.text.kind, words.text.identity) == ("words", "")
    assert minilm.text is not None and (minilm.text.kind, minilm.text.identity) == ("minilm", "ab" * 32)


def test_an_encoder_that_changed_between_runs_is_refused() -> None:
    words, one, two = (
        run_of(""),
        run_of("ab" * 32, option()),
        run_of("ab" * 32, option()),
    )
    elsewhere = run_of("ef" * 32, option() + ",to.clean=true")
    check_identities({"baseline": [words], "one": [one], "two": [two], "elsewhere": [elsewhere]})
    changed = run_of("cd" * 32, option())
    with pytest.raises(
        UserError, match=r"the text encoder 'minilm' had the identity abab.* for 'one', seed 0, but cdcdcdcdcdcd for"
    ):
        check_identities({"one": [one], "two": [changed]})
