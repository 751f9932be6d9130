"""Workers of another version: another commit is an event, and one that computes other numbers does not join."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import tintype
from tests.edit_checked import edit_json
from tests.fault.promises import Promise
from tests.tiny import tiny_plan
from tests.unit.study.test_adaptive import run, study_with
from tests.unit.study.test_work import work
from tests.written_runs import Writer
from tintype.errors import UserError
from tintype.runtime import machine
from tintype.runtime.interrupt import Interrupt
from tintype.study import version
from tintype.study.lab import prepare_study, report_study
from tintype.study.study import Study
from tintype.study.version import VERSION, check_version, read_version
from tintype.train import folder
from tintype.train.loop import train
from tintype.train.record import RunRecord
from tintype.train.steps import Progress


@pytest.fixture
def study(tmp_path: Path) -> Study:
    return study_with(tmp_path, "seeds=[0, 1]", "arms=[]")


def joins(study: Study, out: Path) -> dict[str, bool]:
    """Return for each command that trains whether it works on a study."""
    found = dict[str, bool]()
    commands: dict[str, Callable[[], object]] = {
        "work": lambda: work(out, Writer()),
        "ablate": lambda: run(study, out, Writer()),
    }
    for name, command in commands.items():
        try:
            command()
            found[name] = True
        except UserError as error:
            found[name] = "gives other numbers" not in str(error)
    return found


@pytest.mark.promise(29)
def test_a_worker_that_computes_other_numbers_does_not_join(
    promise: Promise, study: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Raise and lower NUMERICS, then work on a study that was prepared, and run it again by its command."""
    out, own = tmp_path / "out", tintype.NUMERICS
    prepare_study(study, out)
    for other in (own + 1, own - 1):
        monkeypatch.setattr(tintype, "NUMERICS", other)
        for name, joined in joins(study, out).items():
            promise.count(not joined and not list(out.glob("runs/*")), f"{name}, {other}")
    monkeypatch.setattr(tintype, "NUMERICS", own)
    assert joins(study, out) == {"work": True, "ablate": True}


@pytest.mark.promise(29, control="the version is not compared")
def test_control_without_the_check_it_joins(
    promise: Promise, study: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Raise NUMERICS, and work on the study."""
    prepare_study(study, tmp_path / "out")
    monkeypatch.setattr(tintype, "NUMERICS", tintype.NUMERICS + 1)
    for place in ("lab", "folder"):
        monkeypatch.setattr(f"tintype.study.{place}.check_version", lambda out: None)
    for name, joined in joins(study, tmp_path / "out").items():
        promise.count(not joined, name)


def test_the_message_names_the_version_that_began_the_study(study: Study, tmp_path: Path) -> None:
    prepare_study(study, tmp_path / "out")
    edit_json(tmp_path / "out" / VERSION, lambda content: content.update(commit="abc", numerics=7))
    with pytest.raises(
        UserError, match=r"started with tintype 0.*, commit abc.*NUMERICS 7, but 1 in this version.*another --out"
    ):
        check_version(tmp_path / "out")
    (tmp_path / "out" / VERSION).unlink()
    check_version(tmp_path / "out")
    assert read_version(tmp_path / "out") == {}, "a study of before it was recorded"


def test_runs_of_another_commit_are_events_of_the_report(
    study: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    monkeypatch.setattr(version, "code_commit", lambda: "first")
    prepare_study(study, out)
    assert read_version(out)["commit"] == "first"
    work(out, Writer())
    (mine, others) = sorted(out.glob("runs/*/environment.json"))
    edit_json(mine, lambda content: content.update(commit="first", tintype=tintype.__version__))
    edit_json(others, lambda content: content.update(commit="second", tintype=tintype.__version__))
    report = report_study(out)
    events = {run.hash: run.events for arm in report.results.arms for run in arm.runs}
    assert events[mine.parent.name] == []
    (event,) = events[others.parent.name]
    assert event["event"] == "another-version" and event["commit"] == "second; the study was begun by first"
    assert "the study was begun by first" in report.page.read_text()


def test_a_run_that_another_commit_resumes_has_an_event(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def commit(name: str) -> None:
        for module in (folder, machine):
            monkeypatch.setattr(module, "code_commit", lambda: name)

    plan, stopped = tiny_plan("run.save_every_steps=1"), Interrupt()

    def stop(progress: Progress) -> None:
        stopped.signal = 15 if progress.step else None

    commit("first")
    assert not train(plan, tmp_path, stopped, stop).finished
    commit("second")
    assert train(plan, tmp_path, Interrupt()).finished
    (event,) = RunRecord(tmp_path).events
    assert (event["event"], event["before"], event["commit"]) == ("another-version", "first", "second")
