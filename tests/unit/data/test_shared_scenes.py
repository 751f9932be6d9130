"""Scenes that processes share: the same bytes, each rendered once, also by two trainings side by side."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.tiny import tiny_plan
from tintype.data.scenes import source as source_module
from tintype.data.scenes.source import SceneSource, ScenesSettings
from tintype.data.sources import forget_sources
from tintype.errors import UserError
from tintype.runtime import notes, shared
from tintype.runtime.interrupt import Interrupt
from tintype.train.loop import train

CPU = torch.device("cpu")
SETTINGS = ScenesSettings(size_px=16, count=96, max_objects=2)
IDS = list(range(SETTINGS.count))
FORK = multiprocessing.get_context("fork")


@pytest.fixture(autouse=True)
def records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Share sets of any size."""
    monkeypatch.setenv("TINTYPE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(source_module, "SMALLEST_BYTES", 0)
    return tmp_path / "cache" / f"shared-{os.getuid()}"


def alone() -> Tensor:
    scenes = SceneSource(SETTINGS, "train", CPU)
    scenes._shared = None
    return scenes.images(IDS)


def count_of(folder: Path) -> int:
    return len(list(folder.glob("*.*.*.*.*")))


def test_a_shared_set_has_the_bytes_of_one_that_is_not() -> None:
    first, second = (SceneSource(SETTINGS, "train", CPU) for _ in range(2))
    first.prepare(IDS[:50])
    assert torch.equal(second.images(IDS), alone())
    assert second._shared is not None and second._shared.count == SETTINGS.count - 3, "all but those of its name"


def test_other_scenes_are_other_memory(records: Path) -> None:
    first = SceneSource(SETTINGS, "train", CPU)
    other = SceneSource(SETTINGS.model_copy(update={"seed": 1}), "train", CPU)
    held_out = SceneSource(SETTINGS, "eval", CPU)
    assert len({name.name.split(".")[1] for name in records.glob("*.*.*.*.*")}) == 3
    assert len({scenes.images([0]).numpy().tobytes() for scenes in (first, other, held_out)}) == 3


def test_scenes_that_nobody_uses_leave_memory(records: Path) -> None:
    scenes = SceneSource(SETTINGS, "train", CPU)
    scenes.images(IDS)
    assert count_of(records) == 1
    del scenes
    assert count_of(records) == 0


def test_a_small_set_and_a_sample_write_nothing(records: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_module, "SMALLEST_BYTES", shared.SMALLEST_BYTES)
    assert SceneSource(SETTINGS, "train", CPU)._shared is None
    assert not records.exists()


def test_without_room_each_process_renders_for_itself_and_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(content: object) -> None:
        raise UserError("no memory")

    monkeypatch.setattr(source_module, "open_shared", full)
    monkeypatch.setattr(notes, "_noted", set[str]())
    for _ in range(2):
        scenes = SceneSource(SETTINGS, "train", CPU)
        assert scenes._shared is None and len(scenes.images([3])) == 1
    assert caplog.messages == ["each process renders its scenes for itself: no memory"]


def test_two_trainings_side_by_side_render_nothing_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    noted, together = tmp_path / "noted", FORK.Barrier(2)
    noted.mkdir()
    monkeypatch.setattr(source_module, "fingerprint", lambda source: "")  # renders three for itself
    render = SceneSource._render

    def note(scenes: SceneSource, ids: Sequence[int]) -> Tensor:
        for id_ in ids:
            (noted / f"{id_}-{os.getpid()}").touch()
        time.sleep(0.02)
        return render(scenes, ids)

    monkeypatch.setattr(SceneSource, "_render", note)

    def work(seed: int) -> None:
        forget_sources()
        plan = tiny_plan("data.count=200", "train.steps=4", "train.batch=50", f"seed={seed}")
        together.wait(60)
        train(plan, tmp_path / str(seed), Interrupt())
        together.wait(60)

    running = [FORK.Process(target=work, args=(seed,), daemon=True) for seed in range(2)]
    for process in running:
        process.start()
    for process in running:
        process.join(60)
    assert [process.exitcode for process in running] == [0, 0]
    rendered = [name.name.partition("-")[0] for name in noted.iterdir()]
    assert sorted(map(int, rendered)) == list(range(200))
    assert len({name.name.partition("-")[2] for name in noted.iterdir()}) == 2
