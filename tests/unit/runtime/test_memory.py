"""GPU memory that runs out inside an operation which hides it: nothing of that step, row or score is stored."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from tests.tiny import tiny_plan
from tests.unit.study.test_worker import PROTOCOL, done, tasks_in, work
from tintype.evaluation import run as evaluation
from tintype.runtime.determinism import why_inexact
from tintype.runtime.interrupt import Interrupt
from tintype.runtime.memory import checked_memory, count_failures
from tintype.runtime.rows import Content
from tintype.runtime.shared import open_rows
from tintype.study.runner import Message, Task
from tintype.train import exact
from tintype.train.loop import train
from tintype.train.record import RunRecord
from tintype.train.update import update
from tintype.vision.teacher_cache import Blocks, TeacherCache


@dataclass
class Allocator:
    """Stands for the count that torch keeps of a GPU's failed allocations."""

    failures: int = 0

    def stats(self) -> dict[str, int]:
        return {"num_ooms": self.failures}


@pytest.fixture
def allocator(monkeypatch: pytest.MonkeyPatch) -> Allocator:
    found = Allocator()
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "memory_stats_as_nested_dict", found.stats)
    return found


def test_memory_that_ran_out_without_an_error_is_an_error(allocator: Allocator) -> None:
    with checked_memory():
        pass
    with pytest.raises(torch.OutOfMemoryError, match="an algorithm with slightly different results"), checked_memory():
        allocator.failures += 1
    with checked_memory():  # what ran out before it is not charged to it
        pass


def test_an_error_that_does_not_name_memory_is_told_from_others_by_the_count(allocator: Allocator) -> None:
    with pytest.raises(torch.OutOfMemoryError), checked_memory():
        allocator.failures += 1
        raise RuntimeError("GET was unable to find an engine to execute this computation")
    with pytest.raises(RuntimeError, match="shapes") as found, checked_memory():
        raise RuntimeError("shapes do not fit")
    assert not isinstance(found.value, torch.OutOfMemoryError)
    with pytest.raises(torch.OutOfMemoryError, match="tried to allocate"), checked_memory():
        allocator.failures += 1
        raise torch.OutOfMemoryError("tried to allocate 2 GiB")


def test_without_a_gpu_there_is_nothing_to_count() -> None:
    assert torch.cuda.is_initialized() or count_failures() == 0


def test_a_step_in_which_memory_ran_out_is_neither_logged_nor_saved(
    tmp_path: Path, allocator: Allocator, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = tiny_plan("run.save_every_steps=1")

    def hides_a_failure(parts: object, state: object, clock: object) -> object:
        result = update(parts, state, clock)  # type: ignore[arg-type]
        allocator.failures += state.step == 3  # type: ignore[attr-defined]
        return result

    with monkeypatch.context() as patch, pytest.raises(torch.OutOfMemoryError):
        patch.setattr(exact, "update", hides_a_failure)
        train(plan, tmp_path / "run", Interrupt())
    record = RunRecord(tmp_path / "run")
    assert record.saved_step == 2
    assert max(line["step"] for line in record.lines) == 2
    allocator.failures = 0  # a new process
    for name in ("run", "whole"):
        train(plan, tmp_path / name, Interrupt())
    found, whole = (
        load_file(next((tmp_path / name).glob("checkpoints/step-*6/*.safetensors"))) for name in ("run", "whole")
    )
    assert all(torch.equal(found[name], tensor) for name, tensor in whole.items())


def test_scores_of_a_model_whose_sampling_ran_out_of_memory_are_not_stored(
    tmp_path: Path, allocator: Allocator, monkeypatch: pytest.MonkeyPatch
) -> None:
    def score(*arguments: object) -> None:
        allocator.failures += 1

    train(tiny_plan("train.steps=1"), tmp_path, Interrupt())
    monkeypatch.setattr(evaluation, "_sample_and_score", score)
    with pytest.raises(torch.OutOfMemoryError):
        evaluation.evaluate(tmp_path, PROTOCOL)
    assert not list(tmp_path.rglob("result.json"))


class _Teacher:
    grid, words = (1, 1), "a teacher"

    def __init__(self, allocator: Allocator) -> None:
        self._allocator = allocator

    def tokens(self, image_BCHW: Tensor, batch: int) -> Tensor:
        self._allocator.failures += 1
        return torch.ones(len(image_BCHW), 1, 2)


def test_tokens_of_a_teacher_that_ran_out_of_memory_are_not_cached(allocator: Allocator) -> None:
    rows = open_rows(Content("tokens", (4, 1, 2), torch.float16, "do without"))
    cache = TeacherCache(_Teacher(allocator), rows, Blocks(2, torch.zeros(4)))  # type: ignore[arg-type]
    with pytest.raises(torch.OutOfMemoryError):
        cache.fill([0, 1], lambda ids: torch.zeros(len(ids), 3, 4, 4))
    assert not rows.has(torch.arange(4)).any()


def test_a_worker_whose_gpu_ran_out_of_memory_leaves_the_other_runs_to_a_new_process(
    tmp_path: Path, allocator: Allocator, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("reset_peak_memory_stats", "max_memory_reserved", "empty_cache"):
        monkeypatch.setattr(torch.cuda, name, lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: SimpleNamespace(total_memory=0))
    tasks = tasks_in(tmp_path)

    def runs_out(task: Task, *others: object) -> Message:
        allocator.failures += 1
        return Message(task.key, "died", text="out of memory")

    assert [one.state for one in work(tasks, "round", runs_out)] == ["died"]
    allocator.failures = 0
    assert [one.key[1] for one in work(tasks, "round", done)] == [0, 1, 2]


def test_a_run_in_a_process_that_ran_out_of_memory_before_is_not_called_exact(allocator: Allocator) -> None:
    gpu = torch.device("cuda")
    assert why_inexact(gpu, wanted=True, ranks=1) == []
    allocator.failures = 1
    assert "memory ran out" in why_inexact(gpu, wanted=True, ranks=1)[0]


_CONVOLUTIONS = """
import hashlib, sys, torch
from tintype.runtime.memory import checked_memory
torch.backends.cudnn.deterministic, torch.backends.cudnn.allow_tf32 = True, True
generator = torch.Generator("cuda").manual_seed(0)
x = torch.randn(64, 64, 256, 256, device="cuda", generator=generator)
weights = [torch.randn(64, 64, 3, 3, device="cuda", generator=generator) / 24 for _ in range(3)]
hog = []
free = torch.cuda.mem_get_info()[0] - int(float(sys.argv[1]) * 2**30)
if free > 0:
    hog.append(torch.empty(free, dtype=torch.uint8, device="cuda"))
try:
    with checked_memory():
        for weight in weights:
            x = torch.nn.functional.conv2d(x, weight, padding=1).relu_()
    print(hashlib.sha256(x.cpu().numpy().tobytes()).hexdigest())
except torch.OutOfMemoryError:
    print("out of memory")
"""


@pytest.mark.slow
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_convolutions_beside_a_memory_hog_have_the_same_bits_or_run_out_of_memory() -> None:
    def run(free_gib: float) -> str:
        return subprocess.run(
            [sys.executable, "-c", _CONVOLUTIONS, str(free_gib)], capture_output=True, text=True, check=True
        ).stdout.strip()

    alone = run(1e3)
    assert len(alone) == hashlib.sha256().digest_size * 2
    found = [run(1.0 + 0.25 * level) for level in range(20)]
    assert set(found) <= {alone, "out of memory"}
