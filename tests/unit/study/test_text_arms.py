"""Arms that read captions with several encoders."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tiny import tiny_plan
from tests.tiny_text import option
from tintype.errors import UserError
from tintype.runtime.files import write_json
from tintype.study.compare import _check_texts, _text
from tintype.study.results import Run
from tintype.train.folder import RunFolder


def run_of(folder: Path, identity: str | None, *techniques: str) -> Run:
    """As a study reads it: the plan, and what the run noted of what it loaded."""
    folder.mkdir(parents=True)
    if identity is not None:
        write_json(folder / "loaded.json", {"text": identity, "tokenizer": "01" * 32})
    text = _text(tiny_plan(techniques=techniques), RunFolder(folder))
    return Run(seed=0, hash="", folder=str(folder), state="done", text=text)


def test_results_say_what_read_the_captions(tmp_path: Path) -> None:
    words, minilm = run_of(tmp_path / "words", None), run_of(tmp_path / "minilm", "ab" * 32, option())
    assert words.text is not None and (words.text.kind, words.text.identity) == ("words", "")
    assert minilm.text is not None and (minilm.text.kind, minilm.text.identity) == ("minilm", "ab" * 32)


def test_an_encoder_that_changed_between_runs_is_refused(tmp_path: Path) -> None:
    words, one, two = (
        run_of(tmp_path / "words", None),
        run_of(tmp_path / "one", "ab" * 32, option()),
        run_of(tmp_path / "two", "ab" * 32, option()),
    )
    elsewhere = run_of(tmp_path / "elsewhere", "ef" * 32, option() + ",to.clean=true")
    _check_texts({"baseline": [words], "one": [one], "two": [two], "elsewhere": [elsewhere]})
    changed = run_of(tmp_path / "changed", "cd" * 32, option())
    with pytest.raises(UserError, match=r"the text encoder 'minilm' was abab.* for 'one', seed 0 and cdcdcdcdcdcd for"):
        _check_texts({"one": [one], "two": [changed]})
