from __future__ import annotations

import pytest

from tintype.runtime.notes import LOGGER, note, note_once
from tintype.terminal.lines import show_notes


def test_a_note_is_one_line_on_stderr_however_often_it_is_switched_on(capsys: pytest.CaptureFixture[str]) -> None:
    show_notes()
    show_notes()
    note("the first")
    note_once("subject of this test", "the second")
    note_once("subject of this test", "the second")
    assert capsys.readouterr().err == "note: the first\nnote: the second\n"


def test_a_library_user_hears_notes_by_logging_alone(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LOGGER, "handlers", [])
    note("the third")
    assert capsys.readouterr().err == "" and caplog.messages == ["the third"]
