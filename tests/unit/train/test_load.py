"""Weights kept at chosen steps: those that sampling would load, of one training, and of no effect on the run."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.tiny import tiny_plan
from tintype.plan import Plan
from tintype.runtime import fault
from tintype.runtime.interrupt import Interrupt
from tintype.train import checkpoint
from tintype.train.load import drop_kept, load_run
from tintype.train.loop import train
from tintype.train.record import RunRecord

EMA = tiny_plan(techniques=["ema"])


class StopError(Exception):
    pass


def crash(plan: Plan, run: Path, point: str, occurrence: int = 1) -> None:
    """Train until a fault point is reached for the `occurrence`-th time."""
    left = occurrence

    def count_down() -> None:
        nonlocal left
        left -= 1
        if left == 0:
            raise StopError

    fault.arm(point, count_down)
    try:
        with pytest.raises(StopError):
            train(plan, run, Interrupt(), keep_at=(3, 4))
    finally:
        fault.disarm()


def manifests(run: Path, name: str) -> dict[str, str]:
    return {path.name: (path / "manifest.json").read_text() for path in sorted((run / name).iterdir())}


def weights(run: Path, kept_step: int | None = None) -> dict[str, torch.Tensor]:
    model, step = load_run(run, kept_step=kept_step)
    assert step == model.trained_steps == (kept_step or 6)
    return model.modules.state_dict()


@pytest.mark.parametrize(
    "plan",
    [
        tiny_plan("run.save=wait"),
        EMA,
        tiny_plan("run.save=background", techniques=["power-ema:lengths=[0.1,0.2]"]),
        tiny_plan("precision.compute=bf16", "precision.storage=bf16", techniques=["ema"]),
        tiny_plan(techniques=["repa:teacher=scenes,hidden=32"]),
    ],
    ids=["raw", "average", "several averages, saved in the background", "stored in bf16", "a loss with weights"],
)
def test_they_are_the_weights_that_the_checkpoint_of_their_step_would_give(plan: Plan, tmp_path: Path) -> None:
    train(plan, tmp_path / "run", Interrupt(), keep_at=(6,))
    kept, last = weights(tmp_path / "run", 6), weights(tmp_path / "run")
    assert kept.keys() == last.keys()
    for name, tensor in last.items():
        assert tensor.dtype == kept[name].dtype and torch.equal(tensor, kept[name]), name


def test_they_change_nothing_else_of_the_run(tmp_path: Path) -> None:
    with_kept, without = tmp_path / "with", tmp_path / "without"
    train(EMA, with_kept, Interrupt(), keep_at=(1, 3))
    train(EMA, without, Interrupt())
    assert manifests(with_kept, "checkpoints") == manifests(without, "checkpoints")
    assert (with_kept / "plan.yaml").read_text() == (without / "plan.yaml").read_text()
    losses = [[(line["step"], line["loss"]) for line in RunRecord(run).lines] for run in (with_kept, without)]
    assert losses[0] == losses[1]
    assert checkpoint.steps(RunRecord(with_kept).kept) == [1, 3] and not RunRecord(without).kept.exists()


@pytest.mark.parametrize(
    ("point", "occurrence"),
    [
        ("keep.begin", 1),
        ("keep.state", 2),
        ("keep.rename", 1),
        ("keep.rename", 2),
        ("save.rename", 2),
        ("step.data", 4),
    ],
)
def test_a_run_that_was_stopped_has_them_all_in_the_end(point: str, occurrence: int, tmp_path: Path) -> None:
    train(EMA, tmp_path / "whole", Interrupt(), keep_at=(3, 4))
    crash(EMA, tmp_path / "run", point, occurrence)
    train(EMA, tmp_path / "run", Interrupt(), keep_at=(3, 4))
    assert manifests(tmp_path / "run", "kept") == manifests(tmp_path / "whole", "kept")


def test_those_of_steps_that_are_trained_again_are_removed(tmp_path: Path) -> None:
    """Without this, weights of a training that no checkpoint continues could be scored."""
    crash(EMA, tmp_path / "run", "save.begin", 2)  # step 4 is kept, and its checkpoint is not written
    assert checkpoint.steps(RunRecord(tmp_path / "run").kept) == [3, 4]
    train(EMA, tmp_path / "run", Interrupt())
    assert checkpoint.steps(RunRecord(tmp_path / "run").kept) == []


def test_dropping_the_last_removes_the_folder(tmp_path: Path) -> None:
    train(EMA, tmp_path / "run", Interrupt(), keep_at=(2, 4))
    folder = RunRecord(tmp_path / "run").kept
    drop_kept(folder, 2)
    assert checkpoint.steps(folder) == [4]
    drop_kept(folder, 4)
    drop_kept(folder, 4)
    assert not folder.exists()
