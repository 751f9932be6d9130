from __future__ import annotations

import io
import signal
import subprocess
import sys
import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
import torch
from rich.console import Console

from tests.tiny import tiny_plan
from tintype.errors import UserError
from tintype.evaluation.protocol import Protocol
from tintype.evaluation.results import EvaluationResult, result_file
from tintype.runtime.interrupt import Interrupt
from tintype.runtime.locks import locked
from tintype.study.lab import run_study
from tintype.study.runner import Message, Task, _headline, note_failure, run_task, tasks_of
from tintype.study.runs import read_run
from tintype.study.study import Along, load_study
from tintype.terminal.studies import StudyDisplay
from tintype.train import checkpoint
from tintype.train.loop import Outcome, train
from tintype.train.record import RunRecord

PROTOCOL = Protocol(count=8, also=(), reference_count=8, validation_count=2)


def hold_lock(folder: Path, seconds: float) -> subprocess.Popen[bytes]:
    """Start a process that works in the folder for a while, as one that was killed and is still ending."""
    folder.mkdir()
    script = (
        "import fcntl, os, sys, time\n"
        "lock = open(sys.argv[1], 'a+')\n"
        "fcntl.flock(lock, fcntl.LOCK_EX)\n"
        "lock.write(f'{os.getpid()}\\n'); lock.flush()\n"
        "print('taken', flush=True)\n"
        "time.sleep(float(sys.argv[2]))\n"
    )
    command = [sys.executable, "-S", "-c", script, str(folder / ".lock"), str(seconds)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert process.stdout and process.stdout.readline() == b"taken\n"
    return process


@pytest.mark.parametrize("wait_s", [60.0, 0.0])
def test_a_restart_waits_for_a_run_that_still_ends(
    wait_s: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With no wait, the control, the run is called failed."""
    monkeypatch.setattr("tintype.runtime.locks._WAIT_S", wait_s)
    task = Task("baseline", tiny_plan("train.steps=2"), tmp_path / "run")
    sent: list[Message] = []
    with hold_lock(task.folder, 0.5) as process:
        last = run_task(task, PROTOCOL, Interrupt(), sent.append)
        process.kill()
    assert last.state == ("done" if wait_s else "failed")
    words = f"waiting for another process ({process.pid}) that works in {task.folder}, {wait_s:g} s at most"
    assert [(one.state, one.text) for one in sent if one.state == "waiting"] == [("waiting", words)]


def test_a_wait_for_another_process_is_shown_on_the_terminal_and_in_the_log(capsys: pytest.CaptureFixture[str]) -> None:
    out = io.StringIO()
    with StudyDisplay(Console(file=out), 1, Interrupt()) as display:
        display.on_message(Message(("arm", 0), "waiting", text="waiting for another process (7)"))
        display._heartbeat.write()
    assert out.getvalue() == "arm, seed 0: waiting for another process (7)\n"
    assert "arm, seed 0: waiting for another process" in capsys.readouterr().err


def test_a_signal_ends_the_wait_for_another_process(tmp_path: Path) -> None:
    interrupt = Interrupt()

    def on_wait(text: str) -> None:
        interrupt.signal = signal.SIGTERM

    with hold_lock(tmp_path / "run", 60.0) as process:
        outcome = train(tiny_plan(), tmp_path / "run", interrupt, on_wait=on_wait)
        process.kill()
    assert outcome == Outcome(0, finished=False)


def test_a_run_that_is_done_reports_the_primary_metrics_of_its_study() -> None:
    metrics = {"scene_accuracy": 0.5, "fd_scenes": 3.0, "validation_loss": 0.25}
    result = cast(EvaluationResult, SimpleNamespace(metrics=metrics))
    assert _headline(result, ("validation_loss",)) == "validation_loss 0.25"
    assert _headline(result, ("unknown",)) == "scene_accuracy 0.5, fd_scenes 3"


def test_runs_go_seed_by_seed_through_all_arms_and_resolutions(tmp_path: Path) -> None:
    chosen = ["resolutions=[{name: b, set: [model.patch=2]}, {name: a}]", "seeds=[0, 1]", "control_seeds=[]"]
    keys = [task.key for task in tasks_of(load_study("pocket", chosen), tmp_path)]
    arms = [f"{arm} @ {where}" for where in "ab" for arm in ("baseline", "short-captions", "x-prediction")]
    assert keys == [(arm, seed) for seed in (0, 1) for arm in arms]


def test_two_studies_cannot_work_in_one_folder(tmp_path: Path) -> None:
    with locked(tmp_path / "out"), pytest.raises(UserError, match=r"another process \(\d+\) is writing to "):
        run_study(load_study("pocket"), tmp_path / "out", 1)
    assert not (tmp_path / "out" / "study.yaml").exists()


def test_a_run_that_diverges_is_no_failed_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The files in the run's folder distinguish the states, and the report reads them."""
    settings = ("optimizer.lr=1e30", "train.clip_norm=null", "train.most_weight_rms=null", "train.most_skips=3")
    plan = tiny_plan(*settings, "train.steps=50")
    task = Task("arm", plan, tmp_path / "runs" / plan.hash)

    def attempt() -> str:
        last = run_task(task, PROTOCOL, Interrupt(), lambda message: None)
        note_failure(task, last)
        return last.state

    def state() -> tuple[str, str]:
        run = read_run(plan, PROTOCOL, tmp_path)
        return run.state, run.error or ""

    assert attempt() == "diverged"
    assert state()[0] == "diverged" and "3 steps in a row" in state()[1]
    monkeypatch.setattr("tintype.study.runner.train", lambda *arguments: 1 / 0)
    assert attempt() == "failed"
    assert state() == ("failed", "ZeroDivisionError: division by zero")
    monkeypatch.undo()
    assert attempt() == "diverged" and state()[0] == "diverged"


def test_what_the_frames_of_a_failed_gpu_hold_is_not_freed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Freeing it asks the GPU, and that may never answer."""
    there: list[weakref.ref[object]] = []

    def fail(*arguments: object) -> None:
        model = torch.nn.Linear(1, 1)
        there.append(weakref.ref(model))
        raise RuntimeError("CUDA error: device-side assert triggered")

    monkeypatch.setattr("tintype.study.runner.train", fail)
    monkeypatch.setattr("tintype.study.runner._kept", kept := list[Exception]())
    last = run_task(Task("arm", tiny_plan(), tmp_path / "run"), PROTOCOL, Interrupt(), lambda message: None)
    assert last.state == "died" and there[0]() is not None
    kept.clear()
    assert there[0]() is None


def test_a_score_that_is_not_finite_makes_the_run_a_diverged_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = Task("arm", tiny_plan(), tmp_path / "run")
    nan = torch.full((8, 2), torch.nan, dtype=torch.float64)
    monkeypatch.setattr("tintype.metrics.validation.batch_errors", lambda *arguments: nan)
    last = run_task(task, PROTOCOL, Interrupt(), lambda message: None)
    assert (
        last.state == "diverged" and "the model has diverged; these scores are not finite: validation_loss" in last.text
    )


def test_scores_along_training_resume_after_an_interrupt_and_are_taken_once(tmp_path: Path) -> None:
    """The interrupt comes while the second of them is taken."""
    along = Along((2, 4), PROTOCOL.model_copy(update={"seed": 1}))
    task = Task("arm", tiny_plan(techniques=["ema"]), tmp_path / "runs" / tiny_plan(techniques=["ema"]).hash, along)
    interrupt, sent = Interrupt(), list[Message]()

    def send(message: Message) -> None:
        sent.append(message)
        if message.text and message.step == 4:
            interrupt.signal = signal.SIGTERM

    assert run_task(task, PROTOCOL, interrupt, send).state == "interrupted"
    assert read_run(task.plan, PROTOCOL, tmp_path, along).state == "done"
    assert [one.step for one in read_run(task.plan, PROTOCOL, tmp_path, along).along] == [2, 6]
    first = result_file(task.folder, along.protocol, 2).stat().st_mtime_ns
    assert checkpoint.steps(RunRecord(task.folder).kept) == [4], "the scored one is dropped, the other is not"
    assert run_task(task, PROTOCOL, Interrupt(), sent.append).state == "done"
    scores = read_run(task.plan, PROTOCOL, tmp_path, along).along
    assert [(one.step, one.images) for one in scores] == [(2, 8), (4, 16), (6, 24)]
    assert sorted(one.seconds for one in scores) == [one.seconds for one in scores]
    assert all({"validation_loss"} <= set(one.metrics) and "images_per_s" not in one.metrics for one in scores)
    assert result_file(task.folder, along.protocol, 2).stat().st_mtime_ns == first
    assert not RunRecord(task.folder).kept.exists()
    with_along, without = (read_run(task.plan, PROTOCOL, tmp_path, when) for when in (along, None))
    assert with_along.evaluate_s > without.evaluate_s and with_along.metrics == without.metrics
    assert max(one.share for one in sent) <= 1.0


def test_scoring_along_training_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    with StudyDisplay(Console(file=io.StringIO()), 1, Interrupt()) as display:
        display.on_message(Message(("arm", 0), "scoring", 0.9, "scoring along training", 250))
        display._heartbeat.write()
    assert "arm, seed 0" in (shown := capsys.readouterr().err) and "step 250 · scoring along training" in shown
