"""What carries options inside messages never comes out: not on a terminal, in a file, in JSON or on a page."""

from __future__ import annotations

import io
import json
import logging
import sys
from pathlib import Path

import pytest
from rich.console import Console

from tests.live_server import serving
from tests.tiny import TINY, tiny_plan
from tintype import cli
from tintype.errors import UserError
from tintype.evaluation.protocol import Protocol
from tintype.runtime.interrupt import Interrupt
from tintype.runtime.locks import locked
from tintype.runtime.notes import note
from tintype.serve import server as server_module
from tintype.study.runner import Task, note_failure, run_task
from tintype.terminal import studies
from tintype.terminal.documents import ErrorDocument
from tintype.terminal.lines import show_notes
from tintype.train.loop import train
from tintype.train.record import FAILURES
from tintype.wording import MARKS, option, setting

MISTAKES = {
    ("plan", "show", "pocket", "--set", "seed=[0,1]"): '--set "seed=[0,1]"',
    ("train", "pocket", "--out", "notes"): "empty or new folder for --out",
    ("train", "pocket", "--out", "x", "--technique", "muom"): "unknown technique 'muom'",
    ("sample", "run", "--arm", "muon"): "--arm",
    ("judge", "runs.csv", "--margin", "much"): "--margin much",
    ("ablate", "pocket", "--out", "x", "--set", "evaluation.encoders=[inceptoin]"): "inceptoin",
    ("evaluate", "--images", "a", "--reference", "b", "--save-reference", "x.txt"): "--save-reference x.txt",
}


def marks_in(*texts: str) -> frozenset[str]:
    return MARKS & set("".join(texts))


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs.csv").write_text("arm,seed,fid\nbaseline,0,9\nmuon,0,7\n")
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "mine.txt").write_text("mine")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "plan.yaml").write_text(TINY)
    return tmp_path


@pytest.mark.parametrize("arguments", MISTAKES)
def test_a_command_that_fails_writes_none(
    arguments: tuple[str, ...], here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for json_ in ((), ("--json",)):
        monkeypatch.setattr(sys, "argv", ["tintype", *arguments, *json_])
        with pytest.raises(SystemExit) as ended:
            cli._run_command()
        shown = capsys.readouterr()
        assert ended.value.code == 2, shown.err
        assert not marks_in(shown.out, shown.err)
        assert MISTAKES[arguments] in shown.err
    error = ErrorDocument.model_validate_json(shown.out).error
    assert not marks_in(error.message, error.problem, error.fix)
    assert error.message in (error.problem, f"{error.problem}; {error.fix}", f"{error.problem}\n{error.fix}")


def test_the_document_of_an_error_has_the_problem_and_the_fix(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["tintype", "train", "poket", "--out", "x", "--json"])
    with pytest.raises(SystemExit):
        cli._run_command()
    assert json.loads(capsys.readouterr().out) == {
        "error": {
            "code": 2,
            "message": "unknown recipe 'poket'; did you mean 'pocket'? (or give the path of a .yaml file)",
            "problem": "unknown recipe 'poket'",
            "fix": "did you mean 'pocket'? (or give the path of a .yaml file)",
        }
    }


def test_notes_have_none(capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture) -> None:
    show_notes()
    with caplog.at_level(logging.WARNING, logger="tintype"):
        note(f"another {option('out')} trains them again, as {setting('seeds', '[0]')} does")
    shown = capsys.readouterr().err
    assert caplog.messages == ['another --out trains them again, as --set "seeds=[0]" does']
    assert caplog.messages[0] in shown and not marks_in(shown)


def test_notes_of_a_study_have_none(monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.StringIO()
    monkeypatch.setattr(studies, "progress_console", Console(file=written, width=200))
    studies.ShownProgress(Console(file=io.StringIO())).note(f"{option('like', 'past')}: it has measured nothing")
    assert written.getvalue() == "note: --like past: it has measured nothing\n"


def test_the_file_of_a_failed_run_has_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tintype.runtime.locks._WAIT_S", 0.0)
    task = Task("baseline", tiny_plan("train.steps=2"), tmp_path / "run")
    with locked(task.folder):
        message = run_task(task, Protocol(count=8, also=(), reference_count=8), Interrupt(), lambda message: None)
    note_failure(task, message)
    text = (task.folder / FAILURES["failed"]).read_text()
    assert "wait until it ends, or choose another --out" in text and not marks_in(text)


def test_pages_have_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train(tiny_plan("train.steps=1"), tmp_path / "run", Interrupt())

    def fail(*given: object) -> object:
        raise UserError(f"{option('arm', 'muon')} is gone", f"choose another {option('out')}")

    monkeypatch.setattr(server_module, "RunRecord", fail)
    with serving(tmp_path) as client:
        assert "--arm muon is gone; choose another --out" in (page := client.get("/run/run").text)
        monkeypatch.setattr(server_module, "find", fail)
        answer = client.get("/playground")
    assert answer.status == 400 and "--arm muon is gone; choose another --out" in answer.text
    assert not marks_in(page, answer.text)
