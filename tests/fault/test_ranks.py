"""Ranks that differ, die or are stuck: all end, the rank is named, and the run resumes exactly."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from tests.edit_checked import write_plan
from tests.fault.promises import Promise
from tests.ranks import RankError, run_ranks
from tests.tiny import tiny_plan
from tintype.errors import UserError
from tintype.runtime import dist as world
from tintype.runtime import fault
from tintype.runtime.activity import WAITING
from tintype.runtime.dist import World, current
from tintype.runtime.interrupt import Interrupt
from tintype.runtime.watchdog import Place, Watchdog, blame
from tintype.sampling import sample
from tintype.sampling.generate import SamplerSettings
from tintype.settings import WatchdogSettings
from tintype.train import agreement, checkpoint, exact, session
from tintype.train.loop import train
from tintype.train.record import RunRecord
from tintype.train.update import update

FLOOR_S = 2.0
STUCK_S = 60.0
SETTINGS = ["train.steps=6", "run.log_every_steps=2"]
WATCHED = [*SETTINGS, f"run.watchdog.floor_minutes={FLOOR_S / 60}", "run.watchdog.multiple=2"]
FAULT_STEP = 4
"""After the checkpoint of step 2."""


class LeftError(Exception):
    """A rank has no more data and leaves."""


def stop_here() -> None:
    time.sleep(FLOOR_S / 3)  # some beats: what a stopped process wrote last is what is known of it
    os.kill(os.getpid(), signal.SIGSTOP)


def die_here() -> None:
    time.sleep(FLOOR_S / 3)
    os.kill(os.getpid(), signal.SIGKILL)


def hang_here() -> None:
    time.sleep(STUCK_S)


def leave_here() -> None:
    raise LeftError


def skip_a_batch(number: int) -> None:
    """Leave out one update, as a rank with fewer batches would: it waits for the others at the next step."""
    results: list[Any] = []

    def update_others(parts: Any, state: Any, clock: Any) -> Any:
        if len(results) == number - 1:
            state.step += 1
            state.images_seen += parts.plan.train.batch
            results.append(results[-1])
        else:
            results.append(update(parts, state, clock))
        return results[-1]

    vars(exact)["update"] = update_others


FAULTS: dict[str, tuple[str, Callable[[], None], str, str]] = {
    "stopped in backward": ("step.backward", stop_here, "no answer", "all-reduce"),
    "stopped in data": ("step.data", stop_here, "no answer", "data"),
    "stopped in a save": ("save.state", stop_here, "no answer", "save"),
    "stuck in data": ("step.data", hang_here, "behind", "data"),
    "stuck in the optimizer": ("step.optimizer", hang_here, "behind", "optimizer"),
    "killed in data": ("step.data", die_here, "no answer", "data"),
    "stuck in a save": ("save.begin", hang_here, "behind", "save"),
    "killed in a save": ("save.begin", die_here, "no answer", "save"),
    "left early": ("step.data", leave_here, "left", "data"),
    "one batch less": ("", hang_here, "behind", f"log, {WAITING}"),
}
"""The point, what happens there to one rank, how it is found, and the phase that is named."""
CASES = [(name, 1) for name in FAULTS] + [(name, 0) for name in (*list(FAULTS)[5:], *list(FAULTS)[:5])]


def use_two_groups() -> None:
    """Give gradients a group of their own, as a real launch does."""
    world._talk = dist.new_group(backend="gloo")


def train_with_fault(folder: str, settings: list[str], rank: int, name: str) -> None:
    use_two_groups()
    point, action, _, _ = FAULTS[name]
    seen = 0

    def count_to_fault() -> None:
        nonlocal seen
        seen += 1
        if seen == (2 if point.startswith("save") else FAULT_STEP):
            action()

    if current().rank == rank:
        fault.arm(point, count_to_fault) if point else skip_a_batch(FAULT_STEP)
    try:
        train(tiny_plan(*settings), Path(folder), Interrupt())
    except LeftError:
        hang_here()


def train_all(folder: str, settings: list[str]) -> int:
    use_two_groups()
    return train(tiny_plan(*settings), Path(folder), Interrupt()).step


def manifest(folder: Path) -> Any:
    return json.loads((checkpoint.folder_of(folder / "checkpoints", 6) / "manifest.json").read_text())


def stuck_events(folder: Path) -> list[dict[str, Any]]:
    return [event for event in RunRecord(folder).events if event["event"] == "stuck-rank"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run of two ranks that nothing happens to."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    assert run_ranks(2, train_all, str(folder), SETTINGS) == [6, 6]
    assert not stuck_events(folder)
    return folder


@pytest.mark.slow
@pytest.mark.promise(15)
def test_a_dead_or_stuck_rank_ends_all_is_named_and_the_run_resumes_exactly(
    promise: Promise, whole: Path, tmp_path: Path
) -> None:
    """Stop, kill or hold up one of two ranks in data, backward, optimizer and save, or give it one batch less."""
    for name, rank in promise.choose(CASES, short=2):
        folder = tmp_path / f"{name}-{rank}"
        _, action, why, phase = FAULTS[name]
        with pytest.raises(RankError):
            run_ranks(
                2, train_with_fault, str(folder), WATCHED, rank, name, grace_s=30.0 if action is die_here else 0.0
            )
        events = stuck_events(folder)
        found = [(event["ranks"], event["why"], event["step"]) for event in events] == [([rank], why, 2)]
        named = found and phase in events[0]["stands"][str(rank)]
        named = named and bool(events[0]["stacks"][str(rank)]) == (why != "left")
        assert run_ranks(2, train_all, str(folder), SETTINGS) == [6, 6]
        exact = manifest(folder) == manifest(whole) and len(stuck_events(folder)) == 1
        promise.count(held=named and exact, what=f"{name}, rank {rank}: {events}, exact: {exact}")


def sample_with_fault(run: str, out: str) -> None:
    use_two_groups()
    if current().rank == 1:
        vars(sample)["generate"] = lambda *args, **more: stop_here()
    settings = SamplerSettings(steps=1, batch=1)
    with Path(out).with_name("said").open("w") as sys.stderr:
        sample.sample_run(Path(run), ["a red ball"], None, Path(out), settings, count=2, seed=0, size_px=None)


@pytest.mark.slow
@pytest.mark.promise(15)
def test_a_stopped_rank_ends_the_others_of_another_command(whole: Path, tmp_path: Path) -> None:
    """Stop one of two ranks that sample: there is no step whose time is known, but it does not answer."""
    run = Path(shutil.copytree(whole, tmp_path / "run"))
    write_plan(run, tiny_plan(*WATCHED))
    with pytest.raises(RankError, match="rank 0 of 2:\nthe process ended without a word"):
        run_ranks(2, sample_with_fault, str(run), str(tmp_path / "out"))
    said = (tmp_path / "said").read_text()
    assert said.startswith("error: rank 1 does not answer (ended or stopped): ")
    assert said.count("\n") == 1 and said.endswith("All ranks are ended; run the same command again\n")


def outlive_limit(folder: str, settings: list[str]) -> None:
    """Rank 1 is stopped; rank 0 writes a file when twice the watchdog's limit is over, and ends."""

    def end() -> None:
        (Path(folder) / "outlived").touch()
        os._exit(1)

    if current().rank == 0:
        fault.arm("save.prune", threading.Timer(2 * FLOOR_S, end).start)  # in step 2, and never again
    train_with_fault(folder, settings, 1, "stopped in data")


@pytest.mark.slow
@pytest.mark.promise(15, control="the watchdog off")
def test_without_the_watchdog_ranks_wait_for_a_stopped_one(promise: Promise, tmp_path: Path) -> None:
    """Stop one of two ranks: the other still waits when twice the watchdog's limit is over."""
    with pytest.raises(RankError, match="rank 0 of 2:\nthe process ended without a word"):
        run_ranks(2, outlive_limit, str(tmp_path), [*WATCHED, "run.watchdog.floor_minutes=null"])
    promise.count(held=not (tmp_path / "outlived").exists() or bool(stuck_events(tmp_path)), what="stopped in data")


OTHERS: dict[str, tuple[str, str]] = {
    "plan": ("optimizer.lr=0.01", "rank 1 has optimizer.lr 0.01 and not 0.001"),
    "steps": ("train.steps=5", "rank 1 has train.steps 5 and not 6"),
    "seed": ("seed=3", "rank 1 has seed 3 and not 0"),
    "saving": ("run.save_every_steps=3", "rank 1 has run.save_every_steps 3 and not 2"),
    "layout": ("run.distribution.kind=fsdp", 'rank 1 has run.distribution.kind "fsdp" and not "ddp"'),
    "code": ("", 'rank 1 has the code of tintype "other" and not "'),
    "data": ("", 'rank 1 has data "other" and not '),
}
"""Difference on rank 1, and the message about it."""


def train_with_another(folder: str, names: list[str], agreed: bool) -> list[str]:
    """Return the message on this rank for each difference; 'trained' where there is none."""
    use_two_groups()
    heard = []
    for name in names:
        other = current().rank == 1
        settings = [*SETTINGS, *([OTHERS[name][0]] if other and OTHERS[name][0] else [])]
        with pytest.MonkeyPatch.context() as patch:
            if not agreed:
                patch.setattr(world.World, "agree", lambda self, values: None)
            if other and name == "code":
                patch.setattr(agreement, "code_digest", lambda: "other")
            if other and name == "data":
                patch.setattr(session, "of_data", lambda source: {"data": "other"})
            try:
                train(tiny_plan(*settings), Path(folder) / name, Interrupt())
                heard.append("trained")
            except UserError as error:
                heard.append(str(error))
    return heard


@pytest.mark.promise(25)
def test_ranks_that_were_not_started_alike_all_end_with_what_differs(promise: Promise, tmp_path: Path) -> None:
    """Give one of two ranks another setting, housekeeping, code or data."""
    first, second = run_ranks(2, train_with_another, str(tmp_path), list(OTHERS), True)
    for (name, (_, words)), *heard in zip(OTHERS.items(), first, second, strict=True):
        alike = heard[0] == heard[1] and words in heard[0] and "same command, version and files" in heard[0]
        promise.count(held=alike and not (tmp_path / name / "metrics.jsonl").exists(), what=f"{name}: {heard}")


@pytest.mark.promise(25, control="no comparison")
def test_without_a_comparison_two_plans_are_trained_in_one_run(promise: Promise, tmp_path: Path) -> None:
    """Give one of two ranks another learning rate, and let none ask: both train to the end."""
    heard = run_ranks(2, train_with_another, str(tmp_path), ["plan"], False)
    promise.count(held=heard != [["trained"], ["trained"]], what="plan")


def test_the_error_names_each_rank_that_differs_from_most() -> None:
    common = {"a": 1, "b": [1, 2], "c": None}
    text = world._differences([common | {"a": 5}, common, common, common | {"a": 7, "c": "x" * 99}])
    assert text.startswith('the ranks do not agree: rank 0 has a 5 and not 1; rank 3 has a 7 and not 1, c "xxx')
    assert len(text) < 300


def place(beat: int, passed: int, left: bool = False) -> Place:
    return Place(beat, "data", 3, passed, ["a.py:1 f"], left)


def test_the_rank_that_is_silent_has_left_or_is_behind_is_named() -> None:
    before = {0: place(1, 10), 1: place(1, 9), 2: place(1, 9)}
    moved = {0: place(2, 10), 1: place(2, 9), 2: place(2, 10)}
    assert blame(before, moved, 0).ranks == [1] and blame(before, moved, 0).why == "behind"
    assert blame(before, {**moved, 2: place(1, 9)}, 0).ranks == [2], "one that stands still says nothing more"
    assert blame(before, {**moved, 0: place(1, 10)}, 0).ranks == [1], "this rank writes when it can"
    assert blame(before, {**moved, 2: place(2, 30, left=True)}, 0).why == "left"
    assert blame(before, {**moved, 1: None}, 0).words == "rank 1 has not begun"
    assert blame(before, moved, 0).words == "rank 1 is stuck: step 3, data, at a.py:1 f"


def test_the_limit_is_a_multiple_of_the_usual_step_with_a_floor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tintype.runtime.watchdog.ranks_store", dist.HashStore)  # type: ignore[attr-defined]
    now = 0.0
    monkeypatch.setattr("tintype.runtime.watchdog.time.monotonic", lambda: now)
    watchdog = Watchdog(World(0, 2), WatchdogSettings(multiple=10, floor_minutes=0.5), lambda finding, text: text)
    assert watchdog.limit_s == 30.0
    for took_s in (0.0, 100.0, 2.0, 2.0, 2.0):
        now += took_s
        watchdog.begin_step()
    assert watchdog.limit_s == 30.0, "one slow step, as the first is, is not the usual"
    for _ in range(60):
        now += 7.0
        watchdog.begin_step()
    assert watchdog.limit_s == 70.0


def test_a_plan_is_the_same_with_another_watchdog() -> None:
    assert tiny_plan("run.watchdog.floor_minutes=3", "run.watchdog.multiple=5").hash == tiny_plan().hash


def pause_all(folder: str, settings: list[str]) -> int:
    """Both ranks are stopped for longer than the limit and continued, as with a machine that is suspended."""
    use_two_groups()
    seen = 0

    def pause() -> None:
        nonlocal seen
        seen += 1
        if seen == FAULT_STEP:
            subprocess.Popen(["sh", "-c", f"sleep {2 * FLOOR_S}; kill -CONT {os.getpid()}"])
            os.kill(os.getpid(), signal.SIGSTOP)

    fault.arm("step.data", pause)
    return train(tiny_plan(*settings), Path(folder), Interrupt()).step


@pytest.mark.slow
def test_ranks_that_are_all_stopped_and_continued_train_on(tmp_path: Path) -> None:
    assert run_ranks(2, pause_all, str(tmp_path), WATCHED) == [6, 6]
    assert not stuck_events(tmp_path)
