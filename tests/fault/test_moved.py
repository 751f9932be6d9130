"""A study's folder that is renamed while a worker writes to it: the worker stops, and no second folder begins."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.fault.promises import Promise
from tests.unit.study.test_worker import tasks_in
from tintype.evaluation.protocol import Protocol
from tintype.evaluation.results import read_result, result_file
from tintype.runtime import fault
from tintype.runtime.interrupt import Interrupt
from tintype.runtime.leases import Leases, MovedError
from tintype.sampling.generate import SamplerSettings
from tintype.study.runner import Message
from tintype.study.worker import Worker

PROTOCOL = Protocol(
    count=8, also=(), reference_count=8, validation_count=2, metrics=(), sampler=SamplerSettings(steps=1)
)
PLACES = ["log.write", "save.begin", "save.state", "save.manifest", "save.rename", "save.prune", "scoring", "done"]


@pytest.fixture(autouse=True)
def disarmed() -> Iterator[None]:
    yield
    fault.disarm()


def work(out: Path, send: Callable[[Message], None] = lambda message: None) -> None:
    out.mkdir(exist_ok=True)
    (out / "study.yaml").touch()
    Worker(out / "leases", PROTOCOL, Interrupt(), send).work(tasks_in(out, 1))


def loss_in(out: Path) -> float:
    (task,) = tasks_in(out, 1)
    return read_result(result_file(task.folder, PROTOCOL, task.plan.train.steps)).metrics["validation_loss"]


def move_at(place: str, out: Path) -> str:
    """Rename a study's folder at a place of a run; return what is wrong then."""
    moved = out.with_name(f"{out.name}-moved")

    def rename() -> None:
        if out.exists() and not moved.exists():
            out.rename(moved)

    def send(message: Message) -> None:
        rename() if message.state == place else None

    if place in fault.POINTS:
        fault.arm(place, rename)
    try:
        work(out, send)
        return "the worker goes on"
    except MovedError as error:
        if "was moved, renamed or removed" not in str(error):
            return str(error)
    except Exception as error:  # as a user would see it
        return repr(error)
    finally:
        fault.disarm()
    if out.exists():
        return f"a second half: {sorted(str(path.relative_to(out)) for path in out.rglob('*'))}"
    shutil.rmtree(moved / "leases")  # the worker before has ended, which this process has not
    work(moved)
    return "" if loss_in(moved) == loss_in(out.with_name("whole")) else "another result"


@pytest.mark.promise(29)
def test_a_folder_that_is_renamed_stops_its_worker_and_gets_no_second_half(promise: Promise, tmp_path: Path) -> None:
    """Rename a study's folder in each stage of a save, a line of a log and a score; resume it under its new name."""
    work(tmp_path / "whole")
    for place in promise.choose(PLACES, 2):
        problem = move_at(place, tmp_path / place)
        promise.count(not problem, f"{place}: {problem}")


@pytest.mark.promise(29, control="the folder is not looked for")
def test_control_without_the_look_a_second_folder_begins(
    promise: Promise, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rename the folder in a save and in a score."""
    monkeypatch.setattr(Leases, "is_moved", lambda self: False)
    for place in ("save.begin", "scoring"):
        promise.count(not move_at(place, tmp_path / place), place)


def test_a_folder_that_cannot_be_reached_is_not_taken_for_moved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over a network it may come back."""
    (tmp_path / "study.yaml").touch()
    leases = Leases(tmp_path / "leases", anchor=tmp_path / "study.yaml")

    def fails(self: Path) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "stat", fails)
        assert not leases.is_moved()
    (tmp_path / "study.yaml").unlink()
    assert leases.is_moved()
