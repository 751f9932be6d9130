"""A study whose disk is full: its runs wait for room, resume, and none of them is counted as failed."""

from __future__ import annotations

import errno
import json
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from safetensors import SafetensorError

from tests.fault.promises import Promise
from tests.fault.test_moved import PROTOCOL, loss_in
from tests.fault.test_moved import work as run_alone
from tests.unit.study.test_worker import done, tasks_in
from tintype.errors import UserError
from tintype.runtime.interrupt import Interrupt
from tintype.runtime.leases import Disk, Leases
from tintype.runtime.room import has_room, is_full, size_of
from tintype.study import worker as module
from tintype.study.runner import NO_ROOM, Message, Task
from tintype.study.worker import Worker, deaths_in
from tintype.train.record import FAILURES

ROOT = Path(__file__).parents[2]
FULL = OSError(errno.ENOSPC, "No space left on device", "somewhere")
QUOTA = OSError(errno.EDQUOT, "Disk quota exceeded", "somewhere")


def from_cause(cause: Exception) -> Exception:
    error = UserError("cannot write the checkpoint")
    error.__cause__ = cause
    return error


IN_WORDS = OSError(errno.EIO, "Error while serializing: I/O error: No space left on device (os error 28)")
ERRORS = {
    "a write": FULL,
    "a quota": QUOTA,
    "a checkpoint": from_cause(FULL),
    "tensors": from_cause(IN_WORDS),
    "safetensors": SafetensorError("I/O error: No space left on device (os error 28)"),
}


def test_which_errors_say_that_a_disk_is_full() -> None:
    assert all(map(is_full, ERRORS.values()))
    others = (OSError(errno.EACCES, "x"), OSError(errno.EFBIG, "x"), UserError("No space left"), MemoryError(), None)
    assert not any(map(is_full, others))


def test_room_is_asked_of_the_disk_and_shown_by_a_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "b").write_bytes(b"12345")
    assert size_of(tmp_path / "a") == 5
    assert has_room(tmp_path, 1) and not has_room(tmp_path, 1 << 60) and not has_room(tmp_path / "none", 0)
    monkeypatch.setattr(Path, "write_bytes", lambda self, content: (_ for _ in ()).throw(QUOTA))
    assert not has_room(tmp_path, 1) and [path.name for path in tmp_path.iterdir()] == ["a"]


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_ROOM_LOOK_S", 0.01)
    monkeypatch.setattr(module, "_LOOK_S", 0.01)


def states_with(out: Path, error: Exception, times: int = 2) -> tuple[list[str], bool]:
    """Let training end `times` by an error; return the states of the run until then, and whether it has failed."""
    (task,) = tasks_in(out, 1, retries=0)
    task.folder.mkdir(parents=True)
    sent: list[Message] = []
    left = [error] * times

    def train(*_: object) -> None:
        raise left.pop() if left else KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tintype.study.runner.train", train)
        worker = Worker(out / "leases", PROTOCOL, Interrupt(), sent.append)
        worker._room_s = 0.0
        with pytest.raises(KeyboardInterrupt):
            worker.work([task])
            raise KeyboardInterrupt
    return [message.state for message in sent], (task.folder / FAILURES["failed"]).exists()


@pytest.mark.promise(5)
def test_a_full_disk_makes_a_run_wait_and_fails_none(promise: Promise, quick: None, tmp_path: Path) -> None:
    """Let the disk be full twice while a run of a study trains, by each error that says so: it waits, then trains."""
    for name, error in ERRORS.items():
        found = states_with(tmp_path / name, error)
        promise.count(found == (["waiting", "waiting"], False), f"{name}: {found}")


@pytest.mark.promise(5, control="a full disk is an error like others")
def test_control_without_the_wait_a_full_disk_fails_the_run(
    promise: Promise, quick: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Let the disk be full while a run trains."""
    monkeypatch.setattr("tintype.study.runner.is_full", lambda error: False)
    for name, error in ERRORS.items():
        promise.count(states_with(tmp_path / name, error) == (["waiting", "waiting"], False), name)
    assert promise.tries == len(promise.broken)


def test_a_signal_ends_the_wait(quick: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (task,) = tasks_in(tmp_path, 1)
    interrupt, sent = Interrupt(), list[Message]()

    def send(message: Message) -> None:
        sent.append(message)
        interrupt.signal = 15

    def full(task: Task, *_: object) -> Message:
        return Message(task.key, "full", text=NO_ROOM)

    monkeypatch.setattr(module, "run_task", full)
    Worker(tmp_path / "leases", PROTOCOL, interrupt, send).work([task])
    assert [message.state for message in sent] == ["waiting", "interrupted"]
    assert "waiting until 1 MB are free" in sent[0].text


class FullDisk(Disk):
    full = False

    def create(self, path: Path, content: bytes) -> bool:
        if self.full:
            raise FULL
        return super().create(path, content)

    def replace(self, path: Path, content: bytes) -> None:
        if self.full:
            raise FULL
        super().replace(path, content)


def test_a_lease_outlasts_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its claim expires, and is made anew when there is room, if nobody else was faster."""
    disk, clock = FullDisk(), [100.0]
    leases = Leases(tmp_path, "w", 10.0, disk, lambda: clock[0])
    lease = leases.take("run")
    assert lease is not None
    disk.full, clock[0] = True, 1000.0
    assert not lease.beat() and not lease.is_lost
    with pytest.raises(OSError, match="No space left"):
        Leases(tmp_path, "other", 10.0, disk).take("run", over=1)
    disk.full = False
    assert lease.beat() and lease.number == 2
    lease.end({"state": "done"})
    assert [(one.ended or {})["state"] for one in leases.history("run")] == ["continued", "done"]
    assert deaths_in(leases.history("run")[:1], {}) == []


def test_a_worker_that_cannot_write_a_claim_waits(quick: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (task,) = tasks_in(tmp_path, 1)
    disk, sent = FullDisk(), list[Message]()
    disk.full = True
    monkeypatch.setattr(module, "run_task", done)
    worker = Worker(tmp_path / "leases", PROTOCOL, Interrupt(), sent.append)
    worker._leases.disk = disk

    def look(folder: Path, needed: int) -> bool:
        disk.full = False
        return True

    monkeypatch.setattr(module, "has_room_in", look)
    worker.work([task])
    assert [message.state for message in sent] == ["waiting", "done"]


REAL = """
import json, sys
from pathlib import Path
from tests.fault.test_full_disk import fill_and_work
print(json.dumps([fill_and_work(Path(sys.argv[1]) / state, state) for state in sys.argv[2:]]))
"""


def fill_and_work(out: Path, when: str) -> dict[str, object]:
    """Work on a study, fill its disk in a state of its run, and make room while it waits; return what happened."""
    filler, sent = out.with_name("filler"), list[str]()
    module._ROOM_LOOK_S = 0.1

    def send(message: Message) -> None:
        if message.state == when and when not in sent:
            with filler.open("wb", buffering=0) as file, suppress(OSError):
                while file.write(bytes(4096)):
                    pass
        if message.state == "waiting":
            filler.unlink()
        sent.append(message.state)

    run_alone(out, send)
    (task,) = tasks_in(out, 1)
    failed = (task.folder / FAILURES["failed"]).exists()
    return {"states": sent, "failed": failed, "loss": loss_in(out)}


def small_disk(folder: Path, *command: str) -> list[str]:
    """Return the command that runs another one with a disk of a few megabytes mounted on a folder."""
    mounted = f'mount -t tmpfs -o size=12m none {folder} && exec "$@"'
    return ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", mounted, "sh", *command]


def no_mounts(folder: Path) -> bool:
    try:
        return bool(subprocess.run(small_disk(folder, "true"), capture_output=True, check=False).returncode)
    except FileNotFoundError:
        return True


@pytest.mark.slow
@pytest.mark.promise(5)
def test_a_run_on_a_real_disk_that_is_full_waits_and_ends_the_same(promise: Promise, tmp_path: Path) -> None:
    """Fill a disk of 12 MB while a run trains and while it is scored, and make room when it waits: it ends the same."""
    if no_mounts(tmp_path):
        pytest.skip("this machine lets no user mount a disk")
    run_alone(tmp_path / "whole")
    (tmp_path / "disk").mkdir()
    states = ("training", "scoring")
    command = small_disk(tmp_path / "disk", sys.executable, "-c", REAL, str(tmp_path / "disk"), *states)
    ran = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert ran.returncode == 0, ran.stderr
    for found in json.loads(ran.stdout.splitlines()[-1]):
        held = "waiting" in found["states"] and found["states"][-1] == "done" and not found["failed"]
        promise.count(held and found["loss"] == loss_in(tmp_path / "whole"), found)
