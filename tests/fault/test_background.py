"""Saves in the background: each is the state of one step, whatever the steps after it do meanwhile."""

from __future__ import annotations

import shutil
import signal
import threading
import time
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.fault.promises import Promise
from tests.ranks import run_ranks
from tests.tiny import tiny_plan
from tintype.errors import UserError
from tintype.plan import Plan
from tintype.runtime import fault
from tintype.runtime.dist import ALONE, World, current
from tintype.runtime.fence import Fence
from tintype.runtime.interrupt import Interrupt
from tintype.train import checkpoint, saving
from tintype.train.loop import train
from tintype.train.record import RunRecord
from tintype.train.saving import Saver
from tintype.train.start import identity
from tintype.train.steps import Progress

TECHNIQUES = ["ema", "power-ema:snapshots=3", "muon", "bf16-storage"]
ALL_KEPT = ("run.keep_checkpoints=9", "run.log_every_steps=1")
WAIT_S = 30.0


def plan(save: str, *techniques: str) -> Plan:
    return tiny_plan(f"run.save={save}", *ALL_KEPT, techniques=techniques)


def saves(folder: Path) -> dict[str, str]:
    """Return a digest of the tensors, and the scalars, of each checkpoint and snapshot of a run."""
    found = {}
    for path in [*folder.glob("checkpoints/step-*"), *folder.glob("snapshots/step-*")]:
        tensors, scalars = checkpoint.read(path)
        found[f"{path.parent.name} {path.name}"] = f"{identity(tensors)} {scalars}"
    return found


class SlowWriter:
    """Holds each save in the background until the step after it has changed the weights."""

    def __init__(self, point: str, every: int = 2) -> None:
        self.held, self._steps, self._saves, self._every = 0, 0, 0, every
        self._changed = threading.Condition()
        fault.arm(point, self._hold)
        fault.arm("step.optimizer", self._step)

    def _step(self) -> None:
        with self._changed:
            self._steps += 1
            self._changed.notify_all()

    def _hold(self) -> None:
        self._saves += 1
        if threading.current_thread() is threading.main_thread():
            return
        with self._changed:
            self.held += self._changed.wait_for(lambda: self._steps > self._saves * self._every, WAIT_S)


def count_torn(promise: Promise, tmp_path: Path, techniques: list[str]) -> None:
    for technique in techniques:
        train(plan("wait", technique), tmp_path / "wait", Interrupt())
        slow = SlowWriter("save.begin")
        train(plan("background", technique), tmp_path / "background", Interrupt())
        fault.disarm()
        assert slow.held == 2, "the last save waits, the two before it do not"
        expected, found = saves(tmp_path / "wait"), saves(tmp_path / "background")
        assert found.keys() == expected.keys() and len(found) >= 3
        for name in sorted(set(expected) - {"checkpoints step-000000006"}):
            promise.count(found[name] == expected[name], f"{technique}: {name}")
        for folder in ("wait", "background"):
            shutil.rmtree(tmp_path / folder)


@pytest.mark.promise(14)
def test_a_save_in_the_background_is_that_of_its_step(promise: Promise, tmp_path: Path) -> None:
    """Hold the writer until the next step has changed the weights, and compare each file with a save that waits."""
    count_torn(promise, tmp_path, promise.choose(TECHNIQUES, short=2))


@pytest.mark.promise(14, control="no copy: the tensors in use are written")
def test_without_a_copy_saves_are_torn(promise: Promise, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same, with the tensors in use instead of a copy."""
    monkeypatch.setattr(Saver, "copy", lambda self, tensors: (dict(tensors), lambda: None))
    count_torn(promise, tmp_path, ["ema"])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu_the_copy_is_made_before_the_next_step_changes_it() -> None:
    """The GPU has work in its queue before the copy, and changes the tensor right after it."""
    saver, written = Saver("background"), []
    value = torch.zeros(64_000_000, device="cuda")
    busy = torch.randn(4096, 4096, device="cuda")
    for step in range(1, 9):
        for _ in range(20):
            busy = torch.nn.functional.normalize(busy @ busy)
        value.fill_(step)
        saver.write(step, {"value": value}, lambda tensors, world, fence: written.append(tensors["value"].aminmax()))
        value.fill_(-step)
    saver.wait()
    assert [(int(low), int(high)) for low, high in written] == [(step, step) for step in range(1, 9)]


@pytest.mark.promise(6)
def test_a_good_checkpoint_is_there_while_another_is_written(promise: Promise, tmp_path: Path) -> None:
    """Look for two whole checkpoints at each point of each save in the background after the second."""
    checkpoints = tmp_path / "run" / "checkpoints"

    def look() -> None:
        kept = checkpoint.steps(checkpoints)
        if threading.current_thread() is not threading.main_thread() and len(kept) + len(looked) > 1:
            looked.append(len(kept))
            promise.count(len(kept) >= 2 and checkpoint.newest_whole_step(checkpoints) == kept[-1], kept)

    looked: list[int] = []
    for point in ("begin", "state", "manifest", "rename", "prune"):
        fault.arm(f"save.{point}", look)
    train(tiny_plan("run.save=background", "run.save_every_steps=1"), tmp_path / "run", Interrupt())
    assert len(looked) >= 10 and checkpoint.steps(checkpoints) == [5, 6]


def test_an_error_of_the_writer_ends_the_run_and_names_the_folder(tmp_path: Path) -> None:
    saved = 0

    def fail() -> None:
        nonlocal saved
        saved += 1
        if saved == 2:
            assert threading.current_thread() is not threading.main_thread()
            raise OSError(28, "No space left on device")

    fault.arm("save.state", fail)
    wanted = rf"cannot write the checkpoint of step 4 to {tmp_path}.*No space left on device; .*step 2 is intact"
    with pytest.raises(UserError, match=wanted):
        train(plan("background"), tmp_path / "run", Interrupt())
    fault.disarm()
    assert [path.name for path in (tmp_path / "run" / "checkpoints").iterdir()] == ["step-000000002"]
    train(plan("background"), tmp_path / "run", Interrupt())
    assert [line["step"] for line in RunRecord(tmp_path / "run").lines] == [1, 2, 3, 4, 5, 6]


def test_a_failed_snapshot_leaves_no_checkpoint_that_vouches_for_it(tmp_path: Path) -> None:
    def fail() -> None:
        raise OSError(28, "No space left on device")

    fault.arm("snapshot.manifest", fail)
    with pytest.raises(UserError, match="cannot write the snapshot of step 2"):
        train(plan("background", "power-ema:snapshots=3"), tmp_path / "run", Interrupt())
    assert not any((tmp_path / "run" / "checkpoints").iterdir())


@pytest.mark.promise(3)
def test_a_signal_waits_for_the_save_under_way(tmp_path: Path) -> None:
    """Send SIGTERM while the writer of the last step's save is held: the run ends after it."""
    interrupt, stopped = Interrupt(), threading.Event()
    saved: list[bool] = []

    def hold() -> None:
        saved.append(bool(saved) and stopped.wait(WAIT_S))
        time.sleep(0.05)

    def stop(progress: Progress) -> None:
        if progress.step == 4:
            interrupt.signal = signal.SIGTERM
            stopped.set()

    fault.arm("save.rename", hold)
    outcome = train(plan("background"), tmp_path / "run", interrupt, stop)
    assert (outcome.step, outcome.finished, saved) == (4, False, [False, True])
    assert checkpoint.newest_whole_step(tmp_path / "run" / "checkpoints") == 4


def slow_commit(tensors: Mapping[str, Tensor], world: World, fence: Fence) -> None:
    time.sleep(0.02)


def test_auto_saves_in_the_background_where_saves_take_more_than_a_hundredth_of_the_time() -> None:
    with Saver("auto", ALONE) as saver:
        modes = []
        for step in (1, 2, 3):
            saver.write(step, {}, slow_commit)
            modes.append(saver.in_background)
    assert modes == [False, True, True], "before the first save nothing was measured"
    assert set(saver.read()) == {"saving_s"} and saver.read() == {}


def test_auto_waits_where_saves_take_little_time_or_a_copy_does_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    with Saver("auto", ALONE) as saver:
        saver._start_s -= 100.0
        for step in (1, 2):
            saver.write(step, {}, slow_commit)
        assert not saver.in_background
    monkeypatch.setattr(saving, "_fits", lambda tensors: False)
    with Saver("auto", ALONE) as saver:
        for step in (1, 2):
            saver.write(step, {}, slow_commit)
        assert not saver.in_background


def test_how_to_save_is_no_part_of_what_a_run_is() -> None:
    assert plan("wait").hash == plan("background").hash == plan("auto").hash


def train_both_ways(folder: str) -> str:
    """Train in each layout with both ways of saving, then with a writer that fails on one rank: the error."""
    for kind in ("ddp", "fsdp"):
        for save in ("wait", "background"):
            settings = (f"run.save={save}", *ALL_KEPT, f"run.distribution.kind={kind}")
            slow = SlowWriter("save.begin")
            train(tiny_plan(*settings, techniques=["ema"]), Path(folder) / kind / save, Interrupt())
            assert slow.held == (0 if save == "wait" else 2)
            fault.disarm()

    def fail() -> None:
        if current().rank == 1:
            raise OSError(28, "No space left on device")

    fault.arm("save.state", fail)
    try:
        train(plan("background"), Path(folder) / "failing", Interrupt())
    except UserError as error:
        return str(error)
    return ""


@pytest.mark.slow
@pytest.mark.promise(14)
def test_ranks_save_in_the_background_what_they_save_when_they_wait(promise: Promise, tmp_path: Path) -> None:
    """Hold the writers of two ranks, weights replicated and sharded, and compare each file with a save that waits."""
    errors = run_ranks(2, train_both_ways, str(tmp_path))
    assert all("cannot write the checkpoint of step 2" in error for error in errors), errors
    for kind in ("ddp", "fsdp"):
        expected, found = (saves(tmp_path / kind / save) for save in ("wait", "background"))
        assert expected.keys() == found.keys() and len(found) == 3
        for name in expected:
            promise.count(found[name] == expected[name], f"{kind}: {name}")
