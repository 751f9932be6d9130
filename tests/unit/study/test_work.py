"""`tintype work` and `tintype status`: a study that workers run from its folder alone, and how far it is."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.edit_checked import edit_json
from tests.unit.study.test_adaptive import EFFECTS, run, study_with
from tests.unit.study.test_tune import study_of
from tests.written_runs import Writer
from tintype import cli
from tintype.errors import UserError
from tintype.evaluation.protocol import Protocol
from tintype.runtime.fence import Fence
from tintype.runtime.interrupt import Interrupt
from tintype.runtime.leases import Lease, Leases
from tintype.study import worker
from tintype.study.lab import WorkOutcome, prepare_study, report_study, work_on_study
from tintype.study.runner import Message, Task, tasks_of
from tintype.study.status import status_of
from tintype.study.tune import tuning_of, tuning_tasks
from tintype.train.record import FAILURES


@contextmanager
def written(writer: Writer) -> Iterator[None]:
    """Let the writer make the runs of workers in this process."""

    def write(
        task: Task, protocol: Protocol, interrupt: Interrupt, send: object, fence: Fence, on_step: object = None
    ) -> Message:
        writer.run_tasks([task], protocol, 1, interrupt, lambda message: None)
        return Message(task.key, "failed" if task.key in writer.failing else "done", 1.0, text="it was made to fail")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(worker, "run_task", write)
        patch.setattr("tintype.study.worker.gc.collect", lambda: 0)
        yield


def work(out: Path, writer: Writer, run: str | None = None) -> WorkOutcome:
    with written(writer):
        return work_on_study(out, run=run)


def test_workers_run_the_looks_that_ablate_would_run(tmp_path: Path) -> None:
    study, out = study_with(tmp_path, "seeds={first: 4, most: 8}"), tmp_path / "worked"
    whole, writer = Writer(EFFECTS), Writer(EFFECTS)
    run(study, tmp_path / "whole", whole)
    prepare_study(study, out)
    begun = status_of(out)
    assert not list(out.glob("runs/*")) and begun.of("perhaps"), "later looks may want more"
    assert begun.perhaps_words == "for later looks"
    outcome = work(out, writer)
    assert sorted(writer.begun) == sorted(whole.begun) and outcome.done == len(whole.begun)
    found = status_of(out)
    assert found.is_over and len(found.of("done")) == len(whole.begun)
    assert found.of("perhaps") and found.perhaps_words == "that no look needs"
    assert report_study(out).results.arms == report_study(tmp_path / "whole").results.arms


def test_a_worker_tunes_first_and_then_compares(tmp_path: Path) -> None:
    study, out = study_of(tmp_path), tmp_path / "out"
    prepare_study(study, out)
    tried = [task.key for task in tuning_tasks(study, out)]
    assert [run.state for run in status_of(out).runs] == ["waiting"] * len(tried)
    writer = Writer()
    assert work(out, writer).done == len(tried) + 6
    assert writer.begun[: len(tried)] == tried and tuning_of(study, out) is not None


def test_a_failed_run_is_left_by_workers_and_tried_again_by_its_hash(tmp_path: Path) -> None:
    study, out = study_with(tmp_path, "seeds=[0, 1]", "arms=[]"), tmp_path / "out"
    prepare_study(study, out)
    first, second = tasks_of(study, out)
    outcome = work(out, Writer(failing={first.key}))
    assert {key: message.state for key, message in outcome.last.items()} == {first.key: "failed", second.key: "done"}
    assert work(out, Writer()).last == {}
    (failed,) = status_of(out).of("failed")
    assert (failed.hash, failed.error) == (first.plan.hash, "it was made to fail")
    shown = CliRunner().invoke(cli.app, ["status", str(out)]).stdout
    assert "2 runs: 1 done, 1 failed" in shown and f"tintype work {out} --run {first.plan.hash}" in shown
    report = (report_study(out).page.with_name("report.md")).read_text()
    assert f"tintype work DIR --run {first.plan.hash}" in report
    for beginning, words in (("", "beginning of several"), ("zz", "no run of this study")):
        with pytest.raises(UserError, match=words):
            work(out, Writer(), beginning)
    assert work(out, Writer(), first.plan.hash[:8]).done == 1
    assert not status_of(out).of("failed") and not (first.folder / FAILURES["failed"]).exists()


def test_a_folder_without_a_study_is_refused(tmp_path: Path) -> None:
    asks: list[Callable[[Path], object]] = [work_on_study, status_of]
    for ask in asks:
        with pytest.raises(UserError, match=r"is not a study: study.yaml is missing"):
            ask(tmp_path)


@pytest.mark.parametrize("expiry", ["0s", "2d"])
def test_an_expiry_out_of_bounds_is_refused(expiry: str, tmp_path: Path) -> None:
    prepare_study(study_with(tmp_path, "seeds=[0, 1]", "arms=[]"), tmp_path / "out")
    ended = CliRunner().invoke(cli.app, ["work", str(tmp_path / "out"), "--expiry", expiry])
    assert "give more than 0 s and at most 86400 s" in str(ended.exception)


@pytest.fixture
def still(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Lease, "_keep", lambda self: None)


def test_the_status_shows_who_works_on_what(still: None, tmp_path: Path) -> None:
    """One run is done, one runs, one was killed, one is silent, one waits."""
    study, out = study_with(tmp_path, "seeds=[0, 1, 2, 3, 4]", "arms=[]"), tmp_path / "out"
    prepare_study(study, out)
    tasks = tasks_of(study, out)
    with written(Writer()):
        worker.Worker(out / "leases", study.settings.evaluation, Interrupt(), lambda message: None).work(tasks[:1])
    clock = [100.0]
    leases = Leases(out / "leases", "one", clock=lambda: clock[0])
    running, silent = (take(leases, task) for task in tasks[1:3])
    clock[0] += 36
    running.report({"state": "training", "share": 0.4, "step": 3, "loss": 0.25, "images_per_s": 12.0})
    running.beat()
    os.utime(leases.path(silent.name, 1), (0, 0))
    child = os.fork()
    if child == 0:
        take(Leases(out / "leases", "killed"), tasks[3])
        os._exit(9)
    os.waitpid(child, 0)
    found = status_of(out)
    assert [run.state for run in found.runs] == ["done", "running", "silent", "died", "waiting"]
    one = found.runs[1]
    assert (one.worker, one.step, one.steps, one.loss, one.images_per_s) == ("one", 3, 6, 0.25, 12.0)
    assert one.left_s == pytest.approx(54) and one.spent_s == pytest.approx(36) and found.hours == "worker-hours"
    assert [run.deaths for run in found.runs] == [0, 0, 0, 1, 0] and not found.is_over
    shown = CliRunner().invoke(cli.app, ["status", str(out)], env={"COLUMNS": "140"}).stdout
    assert "5 runs: 1 done, 1 running, 1 silent, 1 died and to be resumed, 1 waiting" in shown
    assert "3 of 6" in shown and "54 s" in shown
    told = json.loads(CliRunner().invoke(cli.app, ["status", str(out), "--json"]).stdout)
    assert [run["state"] for run in told["runs"]] == [run.state for run in found.runs]


def take(leases: Leases, task: Task) -> Lease:
    lease = leases.take(task.plan.hash, {"step": 0, "gpu": ""})
    assert lease is not None
    return lease


def test_a_watch_ends_when_nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study, out = study_with(tmp_path, "seeds=[0, 1]", "arms=[]"), tmp_path / "out"
    prepare_study(study, out)
    seen: list[int] = []

    def sleep(seconds: float) -> None:
        seen.append(len(status_of(out).of("done")))
        work(out, Writer())

    monkeypatch.setattr("tintype.library.studies.time", SimpleNamespace(sleep=sleep))  # other threads sleep on
    shown = CliRunner().invoke(cli.app, ["status", str(out), "--watch"])
    assert shown.exit_code == 0 and seen == [0] and "2 done" in shown.stdout


def test_a_signal_ends_a_worker_with_143_whichever_it_is(tmp_path: Path) -> None:
    out = tmp_path / "out"
    prepare_study(study_with(tmp_path, "seeds=[0, 1]", "arms=[]"), out)
    for number in (signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2):

        def stop(task: Task, *_: object, number: int = number) -> Message:
            os.kill(os.getpid(), number)
            return Message(task.key, "interrupted", text="saved at step 2")

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(worker, "run_task", stop)
            ended = CliRunner().invoke(cli.app, ["work", str(out)])
        assert ended.exit_code == 143, (number, ended.output)
        assert len(status_of(out).of("waiting")) == 2


def test_a_study_that_was_passed_on_without_its_runs_is_done(tmp_path: Path) -> None:
    study, out = study_with(tmp_path, "seeds=[0, 1]", "arms=[]"), tmp_path / "out"
    run(study, out, Writer())
    shutil.rmtree(out / "runs")
    shutil.rmtree(out / "leases", ignore_errors=True)
    found = status_of(out)
    assert found.is_over and len(found.of("done")) == 2

    def rename(results: dict[str, Any]) -> None:
        for arm in results["arms"]:
            for one in arm["runs"]:
                one["hash"] = "0" * 16

    edit_json(out / "results.json", rename)
    assert len(status_of(out).of("done")) == 2, "an earlier version may have computed other hashes"
    (out / "results.json").write_text("{}")
    assert len(status_of(out).of("waiting")) == 2, "nothing says that they ended"
    (out / "runs").mkdir()
    run(study, tmp_path / "again", Writer())
    shutil.copy(tmp_path / "again" / "results.json", out / "results.json")
    assert len(status_of(out).of("waiting")) == 2, "runs are looked for where there are some"
