"""The cache of a teacher's tokens: what is kept, for how long, and what is refused."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal, cast

import pytest
import torch
from torch import Tensor

from tests.bounds import network_bound
from tests.tiny_clip import write
from tests.tiny_dino import dino_model
from tintype.data.scenes.source import SceneSource, ScenesSettings
from tintype.errors import UserError
from tintype.runtime import fault, notes, shared
from tintype.runtime.rows import Rows
from tintype.seams import ImageSource
from tintype.vision import teacher_cache
from tintype.vision.dino import Dinov2TeacherSettings
from tintype.vision.part import Teacher
from tintype.vision.scene_encoder import SceneTeacherSettings
from tintype.vision.teacher_cache import (
    Blocks,
    TeacherCache,
    forget_teacher_cache,
    forget_teacher_caches,
    open_teacher_cache,
)

CPU = torch.device("cpu")
HEAD_BYTES = 32
"""The format, and what the rows are of."""
GRID = (3, 2)
Kind = Literal["memory", "disk"]
KINDS: tuple[Kind, ...] = ("memory", "disk")


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TINTYPE_CACHE", str(tmp_path / "cache"))
    teacher_cache._in_memory.clear()
    yield
    teacher_cache._in_memory.clear()


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Teacher:
    folder = tmp_path_factory.mktemp("dino")
    return Dinov2TeacherSettings(source=str(write(folder, dino_model()))).build(GRID, CPU)


def source(count: int = 24, seed: int = 0) -> SceneSource:
    return SceneSource(ScenesSettings(size_px=16, count=count, max_objects=2, seed=seed), "train", CPU)


def kept(kind: Kind, teacher: Teacher, images: ImageSource | None = None, data_key: str = "data") -> TeacherCache:
    return open_teacher_cache(kind, teacher, images or source(), data_key, CPU)


def asked(tokens: TeacherCache, *ids: int) -> Tensor:
    """Return tokens that a run has computed before its first step."""
    tokens.fill(ids, source().images)
    return tokens(source().images(ids), ids)


def files(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "cache" / "teacher").iterdir())


@pytest.mark.parametrize("kind", KINDS)
def test_kept_tokens_are_the_teachers_in_fp16(kind: Kind, teacher: Teacher) -> None:
    tokens = kept(kind, teacher)
    found = asked(tokens, 3, 5, 3, 23)
    plain = teacher.tokens(source().images([3, 5, 3, 23]))
    assert found.dtype == torch.float32 and not found.requires_grad
    assert torch.equal(found, found.half().float())
    torch.testing.assert_close(found, plain, rtol=2**-10, atol=network_bound(dino_model(), plain))


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_there_is_not_computed_again(kind: Kind, teacher: Teacher) -> None:
    first = asked(kept(kind, teacher), 3, 5)
    others = source().images([8, 9, 10])
    again = kept(kind, teacher)(others, [5, 3, 17])
    assert torch.equal(again[:2], first.flip(0))
    assert torch.equal(again[2:], asked(kept(kind, teacher), 10)), "computed of the image that was given"
    assert not torch.equal(again[2], again[0])


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_is_the_same_whenever_and_with_whatever_it_was_computed(
    kind: Kind, teacher: Teacher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the last bit, on a CPU: a run with a cold cache is that with a warm one."""
    scenes = SceneTeacherSettings().build((4, 4), CPU)
    for one in (teacher, scenes):
        ids = list(range(24))
        whole = asked(kept(kind, one), *ids)
        teacher_cache._in_memory.clear()
        monkeypatch.setenv("TINTYPE_CACHE", str(tmp_path / one.name))
        pieces = kept(kind, one)
        found = torch.cat([asked(pieces, 3, 1, 2), *(asked(pieces, id_) for id_ in ids)])
        assert torch.equal(found[3:], whole)
        assert torch.equal(found[:3], whole[[3, 1, 2]])


def test_the_runs_of_a_process_share_what_is_in_memory_until_it_is_let_go(teacher: Teacher) -> None:
    first, second = kept("memory", teacher), kept("memory", teacher)
    assert first.rows is second.rows
    rows = weakref.ref(first.rows)
    forget_teacher_cache(first)
    del first, second
    assert rows() is None
    assert not bool(kept("memory", teacher).rows.has(torch.tensor([0])))


def test_what_is_on_the_disk_survives_and_is_shared_while_it_is_filled(teacher: Teacher, tmp_path: Path) -> None:
    first, second = kept("disk", teacher), kept("disk", teacher)
    assert first.rows is not second.rows
    wanted = asked(first, 4)
    assert torch.equal(second(source().images([9]), [4]), wanted)
    forget_teacher_cache(first)
    del first, second
    assert torch.equal(kept("disk", teacher)(source().images([9]), [4]), wanted)
    (file,) = files(tmp_path)
    assert file.stat().st_size == HEAD_BYTES + 24 * (8 + 2 * 6 * 16)


def test_another_teacher_or_other_data_are_another_cache(teacher: Teacher, tmp_path: Path) -> None:
    model = dino_model()
    with torch.no_grad():
        model.layernorm.bias[0] += 1e-3
    part = Dinov2TeacherSettings(source=str(write(tmp_path / "other", model)))
    kept("disk", teacher)
    kept("disk", teacher)
    assert len(files(tmp_path)) == 1
    kept("disk", part.build(GRID, CPU))
    kept("disk", teacher, data_key="other data")
    kept("disk", teacher, source(seed=1))  # as if drawn otherwise under the same key
    kept("disk", teacher, source(25))
    kept("disk", Dinov2TeacherSettings(source=str(tmp_path / "other")).build((2, 3), CPU))
    assert len(files(tmp_path)) == 6


@pytest.mark.parametrize("damage", ["row", "sum"])
def test_a_row_that_was_not_wholly_written_is_computed_again(damage: str, teacher: Teacher, tmp_path: Path) -> None:
    wanted = asked(kept("disk", teacher), 4, 5)
    (file,) = files(tmp_path)
    content = bytearray(file.read_bytes())
    first = HEAD_BYTES + (8 * 5 if damage == "sum" else 8 * 24 + 2 * 6 * 16 * 5)
    content[first : first + 8] = bytes(8)
    file.write_bytes(content)
    tokens = kept("disk", teacher)
    assert tokens.rows.has(torch.tensor([4, 5, 16])).tolist() == [True, False, False]
    assert torch.equal(asked(tokens, 4, 5), wanted)


def test_a_row_is_written_before_what_says_that_it_is_there(teacher: Teacher, tmp_path: Path) -> None:
    """A process that ends in between leaves no mark: here the row is refused, since it does not fit."""
    rows = kept("disk", teacher).rows
    with pytest.raises(RuntimeError, match="shape"):
        rows.write(torch.tensor([2]), torch.ones(1, 5, 16, dtype=torch.float16))
    (file,) = files(tmp_path)
    assert not any(file.read_bytes()[HEAD_BYTES:])


def test_a_file_of_another_size_is_refused_by_name(teacher: Teacher, tmp_path: Path) -> None:
    kept("disk", teacher)
    (file,) = files(tmp_path)
    file.write_bytes(file.read_bytes()[:-1])
    size = HEAD_BYTES + 24 * 200
    with pytest.raises(UserError, match=rf"{file} .*{size - 1} bytes.*{size}.*delete"):
        kept("disk", teacher)


def test_a_disk_without_room_is_said_with_the_bytes_before_anything_is_written(
    teacher: Teacher, tmp_path: Path
) -> None:
    count = 10**12
    size = HEAD_BYTES + count * 200
    with pytest.raises(UserError, match=rf"need .*\({size} bytes\) in .*/cache/teacher, where .* are free"):
        kept("disk", teacher, source(count))
    assert files(tmp_path) == []


def test_room_is_taken_at_once(teacher: Teacher, tmp_path: Path) -> None:
    """To write into a hole of a mapped file when the disk is full would kill the process."""
    kept("disk", teacher, source(4096))
    (file,) = files(tmp_path)
    assert file.stat().st_blocks * 512 >= file.stat().st_size


def test_a_folder_that_cannot_be_written_is_named(
    teacher: Teacher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TINTYPE_CACHE", str(tmp_path / "file"))
    with pytest.raises(UserError, match=r"cannot create .*/file/teacher/.*Not a directory"):
        kept("disk", teacher)


def test_memory_that_would_not_hold_it_is_said(teacher: Teacher) -> None:
    with pytest.raises(
        UserError,
        match=r"tokens of 1000000000000 images need 2e\+05 GB of memory, but only .* free.* cache to disk or none",
    ):
        kept("memory", teacher, source(10**12))


def test_what_earlier_runs_left_in_memory_is_given_up_when_it_is_needed(
    teacher: Teacher, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept("memory", teacher)
    kept("memory", teacher, data_key="more")
    assert len(teacher_cache._in_memory) == 2
    one = 24 * (6 * 16 * 2 + 8) + HEAD_BYTES
    monkeypatch.setattr(shared, "SMALLEST_BYTES", 0)
    monkeypatch.setattr(shared, "_RESERVE_BYTES", 0)
    monkeypatch.setattr(shared, "free_bytes", lambda: (2 - len(teacher_cache._in_memory)) * one)
    kept("memory", teacher, data_key="still more")
    assert len(teacher_cache._in_memory) == 1


def test_tokens_of_other_images_are_released(teacher: Teacher) -> None:
    first = weakref.ref(kept("memory", teacher).rows)
    kept("memory", teacher, data_key="a stage of the same images")
    assert first() is not None
    kept("memory", teacher, source(seed=1))
    assert first() is None and len(teacher_cache._in_memory) == 1
    forget_teacher_caches()
    assert not teacher_cache._in_memory


def test_another_number_of_threads_has_tokens_of_its_own_in_memory(teacher: Teacher) -> None:
    """Kernels of a CPU round by their number, and processes with other numbers share a machine."""
    first, before = kept("memory", teacher), torch.get_num_threads()
    torch.set_num_threads(before + 1)
    try:
        assert kept("memory", teacher).rows is not first.rows
    finally:
        torch.set_num_threads(before)
    assert kept("memory", teacher).rows is first.rows


@pytest.mark.parametrize("kind", KINDS)
def test_tokens_of_a_gpu_are_named_by_what_its_kernels_round_by(
    kind: Kind, teacher: Teacher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No GPU computes here: only the names of rows are compared, which lie on the host."""
    names = ["one", "one", "one", "one", "another"]
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: names.pop(0))
    monkeypatch.setattr(teacher_cache, "_AHEAD_ON", frozenset[str]())
    gpu = torch.device("cuda")
    found = [open_teacher_cache(kind, teacher, source(), "data", gpu, batch=size) for size in (8, 16, 64, 256, 256)]
    assert [one.blocks.size for one in found] == [8, 16, 64, 64, 64]
    stamps = [one.rows._stamp for one in found]
    assert stamps[2] == stamps[3] and len(set(stamps)) == 4


@pytest.mark.parametrize("kind", KINDS)
def test_rows_that_are_shared_are_those_of_a_process_alone(
    kind: Kind, teacher: Teacher, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = asked(kept("memory", teacher), *range(24))
    teacher_cache._in_memory.clear()
    monkeypatch.setattr(shared, "SMALLEST_BYTES", 0)
    tokens = kept(kind, teacher)
    assert tokens.fill(range(24), source().images) == 24
    assert kept(kind, teacher).fill(range(24), lambda some: torch.empty(0)) == 0, "nothing is left to compute"
    assert torch.equal(asked(tokens, *range(24)), alone)


class PlacedTeacher:
    """A teacher whose tokens depend on the place in a batch and on the other images there, as a GPU's may."""

    grid, width, words, identity = GRID, 4, "placed", "placed"

    def tokens(self, image_BCHW: Tensor, batch: int) -> Tensor:
        value_B = image_BCHW.float().mean(dim=(1, 2, 3))
        found = [some + torch.arange(len(some)) + some.sum() for some in value_B.split(batch)]
        return torch.cat(found)[:, None, None].expand(-1, GRID[0] * GRID[1], self.width)


@pytest.fixture
def placed(monkeypatch: pytest.MonkeyPatch) -> Teacher:
    monkeypatch.setattr(teacher_cache, "_CPU_BATCH", 4)
    monkeypatch.setattr(shared, "SMALLEST_BYTES", 0)
    return cast(Teacher, PlacedTeacher())


def in_order(placed: Teacher) -> Tensor:
    """Return the tokens of 22 images that one process has computed in order: five blocks and a half."""
    tokens = kept("memory", placed, source(22))
    assert tokens.fill(range(22), source().images) == 22
    found = tokens.rows.read(torch.arange(22))
    teacher_cache._in_memory.clear()
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_tokens_do_not_depend_on_the_order_in_which_they_are_computed(kind: Kind, placed: Teacher) -> None:
    wanted, tokens = in_order(placed), kept(kind, placed, source(22))
    assert [tokens.fill(ids, source().images) for ids in ([21, 9, 3], [10], [13, 2, 5], range(22))] == [10, 0, 8, 4]
    assert torch.equal(tokens.rows.read(torch.arange(22)), wanted)


@pytest.mark.parametrize("kind", KINDS)
def test_processes_that_compute_tokens_side_by_side_cut_no_block(kind: Kind, placed: Teacher, tmp_path: Path) -> None:
    """One asks for the images in another order, and one is killed when it has stored a part of them."""
    wanted, tokens = in_order(placed), kept(kind, placed, source(22))
    fork, images = multiprocessing.get_context("fork"), source().images
    together = fork.Barrier(3)
    (tmp_path / "made").mkdir()

    def fill(ids: Sequence[int], dies: bool) -> None:
        teacher_cache._in_memory.clear()
        own = kept(kind, placed, source(22))
        if dies:
            fault.arm("rows.sum", lambda: os.kill(os.getpid(), signal.SIGKILL))
        together.wait(30)

        def noted(block: Sequence[int]) -> Tensor:
            (tmp_path / "made" / f"{block[0]}-{len(block)}-{os.getpid()}").touch()
            time.sleep(0.01)
            return images(block)

        own.fill(ids, noted)

    asked_for = [(range(22), False), ([17, 21, 2, 9, 4, 13, 20], False), (range(22), True)]
    processes = [fork.Process(target=fill, args=one, daemon=True) for one in asked_for]
    for process in processes:
        process.start()
    for process in processes:
        process.join(30)
    assert [process.exitcode for process in processes] == [0, 0, -signal.SIGKILL]
    assert tokens.rows.missing(range(22)) == [] and torch.equal(tokens.rows.read(torch.arange(22)), wanted)
    made = [tuple(map(int, one.name.split("-"))) for one in (tmp_path / "made").iterdir()]
    alive = sorted(one[:2] for one in made if one[2] != processes[2].pid)
    assert alive == [(0, 4), (4, 4), (8, 4), (12, 4), (16, 4), (20, 2)], "each block whole, and once"


@pytest.mark.parametrize("kind", KINDS)
def test_tokens_that_a_step_finds_missing_are_not_stored(
    kind: Kind, placed: Teacher, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(notes, "_noted", set[str]())
    wanted, tokens = in_order(placed), kept(kind, placed, source(22))
    tokens.fill([4], source().images)
    found = tokens(source().images([9, 5, 1, 9]), [9, 5, 1, 9])
    assert torch.equal(found[1], wanted[5].float()) and torch.equal(found[0], found[3])
    assert not torch.equal(found[0], wanted[9].float())
    assert tokens.rows.missing(range(12)) == [0, 1, 2, 3, 8, 9, 10, 11]
    assert "are missing in a step" in caplog.text
    tokens.fill([9, 1], source().images)
    assert torch.equal(tokens.rows.read(torch.arange(12)), wanted[:12])


def test_a_damaged_row_is_computed_with_its_block_and_the_others_are_left(
    placed: Teacher, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted, tokens = in_order(placed), kept("memory", placed, source(22))
    tokens.fill(range(22), source().images)
    tokens.rows._byte_NK[6, 3] ^= 1
    held = tokens.rows
    teacher_cache._in_memory.clear()
    again = kept("memory", placed, source(22))
    assert again.rows is not held and again.rows.missing(range(22)) == [6]
    written, write = list[list[int]](), Rows.write

    def noted(rows: Rows, id_M: Tensor, row_M: Tensor) -> None:
        written.append(id_M.tolist())
        write(rows, id_M, row_M)

    monkeypatch.setattr(Rows, "write", noted)
    assert again.fill([4], source().images) == 1
    assert written == [[6]] and torch.equal(again.rows.read(torch.arange(22)), wanted)


def test_a_block_has_images_of_one_shape_in_the_order_of_their_ids() -> None:
    blocks = Blocks(3, torch.tensor([1, 0, 1, 1, 0, 2, 1, 1, 0, 0], dtype=torch.uint8))
    whole = [[1, 4, 8], [9], [0, 2, 3], [6, 7], [5]]
    assert blocks.holding(range(10)) == whole
    for ids in ([9, 5], [6, 0, 7], [3, 3]):
        assert blocks.holding(ids) == [block for block in whole if set(block) & set(ids)]


def test_tokens_that_are_read_ahead_are_those_that_were_asked_for(
    teacher: Teacher, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = kept("memory", teacher)
    assert plain.ahead is None
    wanted = asked(plain, *range(24))
    monkeypatch.setattr(teacher_cache, "_AHEAD_ON", frozenset({"cpu"}))
    tokens = kept("memory", teacher)
    other = source().images([0, 0, 0])  # with other pixels: what is there is not computed again
    for batch in ([3, 4, 5], [9, 3, 9], [1, 2, 0]):
        tokens.expect(batch)
    assert torch.equal(tokens(other, [9, 3, 9]), wanted[[9, 3, 9]])
    assert torch.equal(tokens(other, [3, 4, 5]), wanted[3:6]), "dropped, and read when it is asked for"
    assert torch.equal(tokens(other, [1, 2, 0]), wanted[[1, 2, 0]])


def test_tokens_that_are_missing_when_they_are_read_ahead_are_computed(
    teacher: Teacher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(teacher_cache, "_AHEAD_ON", frozenset({"cpu"}))
    tokens = kept("memory", teacher)
    asked(tokens, 3, 4)
    tokens.expect([3, 17])
    found = tokens(source().images([3, 17]), [3, 17])
    teacher_cache._in_memory.clear()
    assert torch.equal(found, asked(kept("memory", teacher), 3, 17))


@pytest.mark.parametrize("kind", KINDS)
def test_tokens_that_fp16_cannot_hold_are_refused(kind: Kind, tmp_path: Path) -> None:
    model = dino_model()
    with torch.no_grad():
        model.layernorm.weight *= 1e6
    teacher = Dinov2TeacherSettings(source=str(write(tmp_path / "large", model))).build(GRID, CPU)
    tokens = kept(kind, teacher)
    with pytest.raises(
        UserError, match=r"/large gave tokens with values up to .*, which fp16 cannot represent.* cache=none"
    ):
        asked(tokens, 1)
    assert not bool(tokens.rows.has(torch.tensor([1])))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("kind", KINDS)
def test_a_gpu_keeps_what_a_cpu_would(kind: Kind, tmp_path: Path) -> None:
    """Up to fp16; and what was kept is what was given, in any batch."""
    gpu = torch.device("cuda")
    part = Dinov2TeacherSettings(source=str(write(tmp_path / "dino", dino_model())))
    here, there = part.build(GRID, CPU), part.build(GRID, gpu)
    images = source().images(range(8))
    tokens = open_teacher_cache(kind, there, source(), "data", gpu)
    tokens.fill(range(8), lambda ids: source().images(ids).to(gpu))
    found = tokens(images.to(gpu), list(range(8)))
    assert found.device.type == "cuda"
    torch.testing.assert_close(found.cpu(), here.tokens(images), atol=2e-3, rtol=2e-3)
    assert torch.equal(tokens(images[:3].flip(0).to(gpu), [2, 1, 0]), found[:3].flip(0))
    for batch in ([5, 5, 1], [7, 0]):
        tokens.expect(batch)
    for batch in ([5, 5, 1], [7, 0]):
        assert torch.equal(tokens(images[batch].to(gpu), batch), found[batch]), "read ahead"
    assert open_teacher_cache("disk", here, source(), "data", CPU).rows.has(torch.arange(8)).sum() == 0


def test_what_a_killed_process_left_is_removed_and_what_is_being_made_is_not(teacher: Teacher, tmp_path: Path) -> None:
    folder = tmp_path / "cache" / "teacher"
    folder.mkdir(parents=True)
    old, new = folder / "old.making", folder / "new.making"
    for file in (old, new):
        file.write_bytes(b"half")
    os.utime(old, (0, 0))
    kept("disk", teacher)
    assert not old.exists() and new.exists()
    (made,) = folder.glob("*.tokens")
    plain = folder / "plain"
    plain.touch()
    assert made.stat().st_mode == plain.stat().st_mode
