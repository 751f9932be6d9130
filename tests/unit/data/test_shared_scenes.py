"""Scenes that workers share: the same bytes, each rendered once, whoever is killed, and no more room than allowed."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Iterator, Sequence
from multiprocessing.synchronize import Barrier
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tintype.data.scenes import shared
from tintype.data.scenes.source import SceneSource, ScenesSettings
from tintype.errors import UserError
from tintype.runtime import fault, notes

CPU = torch.device("cpu")
SETTINGS = ScenesSettings(size_px=16, count=96, max_objects=2)
IDS = list(range(SETTINGS.count))


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    with shared.shared_folder(tmp_path / "scenes"):
        shared.share_scenes(tmp_path / "scenes")
        yield tmp_path / "scenes"
        shared.share_scenes(None)


def render_noted(
    folder: Path, ids: Sequence[int], notes: Path, together: Barrier, kill_after: int = 0, pause_s: float = 0.0
) -> None:
    """Read all images as a worker does; note those that this process rendered, one file each."""
    together.wait(60)
    shared.share_scenes(folder)
    source = SceneSource(SETTINGS, "train", CPU)
    render = source._render

    def noted(ids: Sequence[int]) -> Tensor:
        for id_ in ids:
            (notes / f"{id_}-{os.getpid()}").touch()
        time.sleep(pause_s)
        return render(ids)

    source._render = noted  # type: ignore[method-assign]
    if kill_after:
        fault.arm("rows.sum", lambda: os.kill(os.getpid(), signal.SIGKILL))
    source.images(ids)


def workers(count: int, folder: Path, notes: Path, **how: float) -> None:
    context = multiprocessing.get_context("fork")
    orders = [IDS[::-1] if index % 2 else IDS for index in range(count)]
    together = context.Barrier(count)
    running = [context.Process(target=render_noted, args=(folder, ids, notes, together), kwargs=how) for ids in orders]
    for process in running:
        process.start()
    for process in running:
        process.join(60)


def test_workers_render_each_image_once_and_read_the_same_bytes(folder: Path, tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    notes.mkdir()
    workers(3, folder, notes, pause_s=0.02)
    rendered = [name.name.partition("-")[0] for name in notes.iterdir()]
    assert sorted(rendered) == sorted(map(str, IDS)), "each of them, by one process"
    assert len({name.name.partition("-")[2] for name in notes.iterdir()}) > 1, "not all by the first"
    images = SceneSource(SETTINGS, "train", CPU).images(IDS)
    shared.share_scenes(None)
    assert torch.equal(images, SceneSource(SETTINGS, "train", CPU).images(IDS))


def test_what_a_killed_worker_left_is_rendered_by_another(folder: Path, tmp_path: Path) -> None:
    """It dies after it wrote the images and before their checksums; its locks fall with it."""
    notes = tmp_path / "notes"
    notes.mkdir()
    workers(1, folder, notes, kill_after=1)
    begun = len(list(notes.iterdir()))
    assert 0 < begun < len(IDS)
    images = SceneSource(SETTINGS, "train", CPU).images(IDS)
    shared.share_scenes(None)
    assert torch.equal(images, SceneSource(SETTINGS, "train", CPU).images(IDS))


def test_other_scenes_have_a_file_of_their_own_and_a_full_folder_takes_no_more(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = SceneSource(SETTINGS, "train", CPU)
    other = SceneSource(SETTINGS.model_copy(update={"seed": 1}), "train", CPU)
    held_out = SceneSource(SETTINGS, "eval", CPU)
    assert len(list(folder.glob("*.rows"))) == 3
    assert len({source.images([0]).numpy().tobytes() for source in (first, other, held_out)}) == 3
    monkeypatch.setattr(shared, "MOST_BYTES", sum(file.stat().st_size for file in folder.glob("*.rows")))
    assert SceneSource(SETTINGS.model_copy(update={"seed": 2}), "train", CPU)._shared is None
    assert SceneSource(SETTINGS, "train", CPU)._shared is not None, "it has its room already"


def test_a_folder_that_was_left_is_emptied_and_at_the_end_there_is_none(tmp_path: Path) -> None:
    left = tmp_path / "scenes" / "left.rows"
    left.parent.mkdir()
    left.touch()
    with shared.shared_folder(left.parent):
        assert left.parent.is_dir() and not left.exists()
    assert not left.parent.exists()


def test_without_room_each_worker_renders_for_itself_and_says_so(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(file: Path, content: object) -> None:
        raise UserError("the disk is full")

    monkeypatch.setattr(shared, "DiskRows", full)
    monkeypatch.setattr(notes, "_noted", set[str]())
    for _ in range(2):
        source = SceneSource(SETTINGS, "train", CPU)
        assert source._shared is None and len(source.images([3])) == 1
    assert [record.message for record in caplog.records] == [
        "each worker renders its scenes for itself: the disk is full"
    ]
