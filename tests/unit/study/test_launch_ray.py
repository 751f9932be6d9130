"""The launcher on Ray without Ray: what it asks for, and what its task does. `make test-ray` runs it on a real one."""

from __future__ import annotations

import os
import shlex
import signal
import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tintype.errors import UserError
from tintype.study.launch import ray as launch_ray
from tintype.study.launch.choose import choose_launcher
from tintype.study.launch.launcher import Crew
from tintype.study.launch.ray import FailedWorkerError, KilledWorkerError, Ray, run_worker


class RayError(Exception):
    """The class of all errors of Ray."""


@dataclass
class FakeRay:
    """Runs each task at once, in this process; `told` cancels the rest."""

    failing: tuple[int, ...] = ()
    asked: dict[str, Any] = field(default_factory=dict)
    tasks: list[tuple[str, ...]] = field(default_factory=list)
    cancelled: list[int] = field(default_factory=list)
    waits: bool = False
    exceptions: Any = field(default_factory=lambda: SimpleNamespace(RayError=RayError))

    def init(self, **options: Any) -> None:
        self.asked["init"] = options
        if options["address"] == "nowhere:1":
            raise ConnectionError("could not connect")

    def shutdown(self) -> None:
        self.asked["shutdown"] = True

    def cluster_resources(self) -> dict[str, float]:
        return {"CPU": 8.0, "GPU": 3.0}

    def remote(self, **options: Any) -> Any:
        self.asked["task"] = options

        def submit(*arguments: str) -> int:
            self.tasks.append(arguments)
            return len(self.tasks) - 1

        return lambda function: SimpleNamespace(remote=submit)

    def wait(self, left: list[int], num_returns: int, timeout: float) -> tuple[list[int], list[int]]:
        if self.waits and not self.cancelled:
            os.kill(os.getpid(), signal.SIGTERM)
            return [], left
        return left[:1], left[1:]

    def get(self, task: int) -> None:
        if task in self.failing or task in self.cancelled:
            raise RayError("of ray\nthe worker ended with exit code 2")

    def cancel(self, task: int) -> None:
        self.cancelled.append(task)


@pytest.fixture
def study(tmp_path: Path) -> Path:
    made = tmp_path / "my study"
    made.mkdir()
    return made


def launch(fake: FakeRay, crew: Crew, monkeypatch: pytest.MonkeyPatch, address: str = "") -> list[str]:
    monkeypatch.setattr(launch_ray, "_import_ray", lambda: fake)
    return list(Ray(address).launch(crew))


def test_without_ray_the_error_names_the_extra(study: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UserError, match=r"--on ray needs ray .*pip install 'tintype\[ray\]'"):
        list(choose_launcher("ray").launch(Crew(study, 1)))


def test_the_address_is_for_ray_alone(study: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="leave it out with --on slurm"):
        choose_launcher("slurm", "head:6379")
    with pytest.raises(UserError, match="no Ray cluster answers at nowhere:1: could not connect"):
        launch(FakeRay(), Crew(study, 1), monkeypatch, "nowhere:1")


def test_each_worker_is_a_task_that_asks_for_its_gpus(study: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake, crew = FakeRay(), Crew(study, 2, 2)
    lines = launch(fake, crew, monkeypatch)
    assert lines[0] == "Ray has 8 CPUs and 3 GPUs: room for 1 of 2 workers, the others wait for more"
    assert fake.asked["init"]["address"] is None and fake.asked["shutdown"]
    task = fake.asked["task"]
    assert (task["num_gpus"], task["max_calls"], task["max_retries"]) == (2, 1, launch_ray.STARTS_AGAIN)
    assert task["retry_exceptions"] == [KilledWorkerError]
    assert [Path(log).name for _, log, _ in fake.tasks] == ["worker-ray-0.log", "worker-ray-1.log"]
    assert all(command == crew.command for command, _, _ in fake.tasks) and (study / "launch").is_dir()


def test_workers_that_fail_are_named_and_the_others_are_waited_for(
    study: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UserError, match="1 of 3 workers failed"):
        launch(FakeRay(failing=(1,)), Crew(study, 3), monkeypatch)


def test_a_signal_cancels_all_tasks_and_waits_until_they_have_saved(
    study: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake, before = FakeRay(waits=True), signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit) as ended:
        launch(fake, Crew(study, 2), monkeypatch)
    assert ended.value.code == 143 and fake.cancelled == [0, 1] and fake.asked["shutdown"]
    assert signal.getsignal(signal.SIGTERM) == before


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("exit 0", None),
        ("exit 143", KilledWorkerError),
        ("kill -9 $$", KilledWorkerError),
        ("exit 2", FailedWorkerError),
    ],
)
def test_the_task_tells_a_killed_worker_from_a_failed_one(
    script: str, expected: type[Exception] | None, tmp_path: Path
) -> None:
    command, log = shlex.join(["bash", "-c", f'echo "in $PWD"; {script}']), tmp_path / 'a "log".txt'
    if expected is None:
        run_worker(command, str(log), str(tmp_path))
    else:
        with pytest.raises(expected, match="exit code"):
            run_worker(command, str(log), str(tmp_path))
    assert log.read_text() == f"in {tmp_path}\n"


def test_a_task_that_is_cancelled_lets_its_worker_save(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "log"

    def cancel(seconds: float) -> None:
        if log.exists() and log.read_text():
            raise KeyboardInterrupt

    monkeypatch.setattr("tintype.study.launch.ray.time.sleep", cancel)
    script = "trap 'echo saved; exit 143' TERM; echo began; while true; do sleep 0.02; done"
    with pytest.raises(KeyboardInterrupt):
        run_worker(shlex.join(["bash", "-c", script]), str(log), str(tmp_path))
    assert log.read_text() == "began\nsaved\n"
