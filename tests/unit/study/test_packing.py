"""Workers that share a GPU: how many fit by what was measured, and what becomes of them when that changes."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable
from multiprocessing import Pipe
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from typer.testing import CliRunner

from tests.unit.study.test_adaptive import study_with
from tests.unit.study.test_jobs import PROTOCOL, tasks_in
from tests.unit.study.test_work import work
from tests.written_runs import Writer
from tintype import cli
from tintype.errors import UserError
from tintype.runtime.host import Process
from tintype.runtime.interrupt import Interrupt
from tintype.runtime.leases import Claim, Leases
from tintype.study import jobs, pack, worker
from tintype.study.lab import prepare_study
from tintype.study.launch.launcher import Crew
from tintype.study.pack import Pack
from tintype.study.packing import CONTEXT_BYTES, MOST_PER_GPU, AsFits, choose_jobs, jobs_of, room_of
from tintype.study.runner import Message, tasks_of
from tintype.study.worker import lease_folder
from tintype.train import checkpoint

GIB = 1 << 30


def claim(
    leases: Leases, run: str, state: str = "done", peak: int = 0, text: str = "", elsewhere: bool = False
) -> None:
    """Write the next claim of a run, with how it ended."""
    number = len(leases.history(run)) + 1
    process = Process("elsewhere", 1) if elsewhere else Process.this()
    ended: dict[str, Any] = {"state": state, "text": text, "peak_bytes": peak, "gpu_bytes": 80 * GIB}
    assert leases.disk.create(leases.path(run, number), Claim(number, process, ended=ended).dump(0))


def test_what_fits_follows_from_the_largest_measured_peak(tmp_path: Path) -> None:
    leases = Leases(tmp_path / "leases")
    assert room_of(leases) == 1
    claim(leases, "a", peak=20 * GIB, elsewhere=True)
    assert room_of(leases) == 1, "the GPU of another machine may be larger"
    claim(leases, "b", peak=11 * GIB)
    assert room_of(leases) == int(0.9 * 80 * GIB / (20 * GIB + CONTEXT_BYTES)) == 3
    claim(leases, "c", peak=79 * GIB)
    assert room_of(leases) == 1 and AsFits(4).now(leases) == 4


def test_small_runs_do_not_fill_a_gpu_with_workers(tmp_path: Path) -> None:
    leases = Leases(tmp_path / "leases")
    claim(leases, "a", peak=GIB // 4)
    assert room_of(leases) == MOST_PER_GPU and AsFits(2).most == 2 * MOST_PER_GPU


def test_where_memory_ran_out_a_run_is_measured_alone(tmp_path: Path) -> None:
    leases = Leases(tmp_path / "leases")
    claim(leases, "small", peak=9 * GIB)
    assert room_of(leases) == 7
    claim(leases, "large", state="died", text="out of memory: tried to allocate", peak=12 * GIB)
    assert room_of(leases) == 1
    claim(leases, "large", peak=23 * GIB)
    assert room_of(leases) == 3


def test_the_option_is_a_number_or_auto(monkeypatch: pytest.MonkeyPatch) -> None:
    assert choose_jobs(None, None) == 1 and choose_jobs(3, None) == 3
    with pytest.raises(UserError, match="there is no GPU here"):
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
        jobs_of("2")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert choose_jobs(None, "3") == 6 and choose_jobs(None, "auto") == AsFits(2)
    with pytest.raises(UserError, match=r"--jobs 2 and --per-gpu 3: .* give one"):
        choose_jobs(2, "3")
    for wrong in ("0", "many", "-1", "1.5"):
        with pytest.raises(UserError, match="a number of at least 1, or auto"):
            jobs_of(wrong)


def test_a_launcher_passes_it_on(tmp_path: Path) -> None:
    assert Crew(tmp_path, 1, per_gpu="auto").command.endswith(f"work {tmp_path} --per-gpu auto")
    (tmp_path / "study.yaml").touch()
    refused = CliRunner().invoke(cli.app, ["launch", str(tmp_path), "--on", "slurm", "--per-gpu", "x"])
    assert isinstance(refused.exception, UserError) and not (tmp_path / "launch").exists()


def test_a_worker_writes_the_peak_of_runs_that_it_trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study, out = study_with(tmp_path, "seeds=[0]", "arms=[]"), tmp_path / "out"
    prepare_study(study, out)
    (task,) = tasks_of(study, out)
    monkeypatch.setattr(worker, "read_peak", lambda: (5 * GIB, 80 * GIB))
    work(out, Writer())
    monkeypatch.setattr(checkpoint, "steps", lambda folder: [task.plan.train.steps])
    work(out, Writer(), task.plan.hash)  # it is trained already, and a score needs less
    ends = [one.ended or {} for one in Leases(out / "leases").history(task.plan.hash)]
    assert [end["peak_bytes"] for end in ends] == [5 * GIB, 0]
    assert room_of(Leases(out / "leases")) == MOST_PER_GPU


class Idle:
    """A worker process that runs until it is told to stop."""

    sentinel, exitcode = -1, 0

    def __init__(self, slot: int) -> None:
        self.pid, self.told = slot, False

    def is_alive(self) -> bool:
        return not self.told

    def join(self, seconds: float = 0.0) -> None:
        pass

    kill = join


def test_workers_are_added_after_a_measurement_and_stopped_when_memory_runs_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks = tasks_in(tmp_path, 6)
    leases, interrupt = Leases(lease_folder(tasks)), Interrupt()
    slots: list[list[int]] = []

    def start(crew: jobs.Crew, slot: int) -> jobs._Job:
        here, there = Pipe(duplex=False)
        there.close()
        return jobs._Job(slot, cast(BaseProcess, Idle(slot)), here, open=False)

    def stop(process: Any) -> None:
        process.told = True

    steps: list[Callable[[], None]] = [
        lambda: end(0, "done", peak=20),
        lambda: end(1, "died", text="out of memory"),
        lambda: end(1, "done", peak=30),
        lambda: setattr(interrupt, "signal", signal.SIGTERM),
    ]

    def end(number: int, state: Any, peak: int = 0, text: str = "") -> None:
        claim(leases, tasks[number].plan.hash, state, peak * GIB, text)
        shift._note(Message(tasks[number].key, state, text=text))

    def wait(things: object, seconds: float) -> None:
        if steps:
            slots.append(sorted(job.slot for job in shift.jobs if job.process.is_alive()))
            steps.pop(0)()

    for name, function in (("_start", start), ("_stop", stop), ("wait", wait)):
        monkeypatch.setattr(jobs, name, function)
    crew = jobs.Crew(tuple(tasks), PROTOCOL, 6, 1, None, "round", AsFits(1))
    shift = jobs._Shift(crew, interrupt, lambda message: None)
    shift.run()
    assert slots == [[0], [0, 1, 2], [0], [0, 1]]


def packed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scripts: dict[int, list[str]], workers: int = 2
) -> tuple[Pack, list[str]]:
    """Let shell scripts be the workers of each slot, one after the other."""
    said: list[str] = []
    made = Pack(tmp_path, workers, [], said.append)

    def start(slot: int) -> subprocess.Popen[bytes]:
        return subprocess.Popen(["bash", "-c", scripts[slot].pop(0)], cwd=tmp_path, start_new_session=True)

    monkeypatch.setattr(made, "_start", start)
    monkeypatch.setattr(pack, "_POLL_S", 0.02)
    return made, said


def test_a_killed_worker_is_started_again_and_a_failed_one_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scripts = {0: ["kill -9 $$", "exit 143", "sleep 0.3; exit 0"], 1: ["exit 2"]}
    made, said = packed(tmp_path, monkeypatch, scripts)
    assert made.run() is None and scripts == {0: [], 1: []}
    assert any(line.startswith("worker 1 ended with exit code 2") for line in said)
    made, _ = packed(tmp_path, monkeypatch, {0: ["kill -9 $$"] * 3, 1: ["exit 2"]})
    with pytest.raises(UserError, match="all workers failed"):
        made.run()


def test_a_signal_lets_all_workers_save(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = "trap 'echo saved >> log; exit 143' TERM; touch began-$$; while true; do sleep 0.02; done"
    made, _ = packed(tmp_path, monkeypatch, {0: [script], 1: [script]})

    def room() -> int:
        if len(list(tmp_path.glob("began-*"))) == 2:
            os.kill(os.getpid(), signal.SIGUSR1)
        return 2

    monkeypatch.setattr(made, "_room", room)
    monkeypatch.setattr(pack, "_LOOK_S", 0.0)
    assert made.run() == signal.SIGUSR1 and (tmp_path / "log").read_text() == "saved\n" * 2


def test_the_workers_of_a_pack_are_those_of_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has its GPU in its environment and its log in the study's folder."""
    program = tmp_path / "python"
    program.write_text('#!/bin/bash\necho "$CUDA_VISIBLE_DEVICES: $@"\n')
    program.chmod(0o755)
    monkeypatch.setattr("tintype.study.pack.sys.executable", str(program))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,7")
    monkeypatch.setattr("tintype.study.pack.command_with_parent", list)
    made = Pack(tmp_path, 3, ["--no-wait"], lambda line: None)
    assert made.run() is None
    for slot, gpu in enumerate(("4", "7", "4")):
        assert made.log(slot).read_text().startswith(f"{gpu}: -m tintype work {tmp_path} --no-wait\n")
