"""The small VAE and the scene encoder share the loop's guard, signals and resume."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from tests.unit.tokenizer_lab.test_train_small_vae import tiny
from tintype.errors import DivergedError
from tintype.evaluation import train_scene_encoder
from tintype.evaluation.train_scene_encoder import SceneEncoderTraining
from tintype.runtime.interrupt import Interrupt, watch_signals
from tintype.tokenizer_lab import train_small_vae
from tintype.train import checkpoint
from tintype.train.record import RunRecord
from tintype.train.steps import Progress

STEPS, BAD = 8, 5
"""Logged at step 4 and 8 and saved at 2, 4, 6 and 8, so that the bad step is neither."""
Train = Callable[[Path, Interrupt, Callable[[Progress], None]], int]


def train_vae(out: Path, interrupt: Interrupt, on_progress: Callable[[Progress], None]) -> int:
    settings = tiny(steps=STEPS, log_every_steps=4, save_every_steps=2)
    return train_small_vae.train(settings, out, torch.device("cpu"), interrupt, on_progress).step


def train_encoder(out: Path, interrupt: Interrupt, on_progress: Callable[[Progress], None]) -> int:
    settings = SceneEncoderTraining(steps=STEPS, batch=4, measured_scenes=1, log_every_steps=4, save_every_steps=2)
    return train_scene_encoder.train(settings, out, "cpu", interrupt, on_progress).step


@pytest.fixture(params=[(train_vae, train_small_vae), (train_encoder, train_scene_encoder)], ids=["vae", "encoder"])
def training(request: pytest.FixtureRequest) -> tuple[Train, ModuleType]:
    found: tuple[Train, ModuleType] = request.param
    return found


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(train_scene_encoder, "measure", lambda *arguments: {})


def spoil_step(module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the loss of the bad step NaN."""
    name = "reconstruction_loss" if module is train_small_vae else "reading_loss"
    right, calls = getattr(module, name), list[int]()

    def spoilt(*arguments: object) -> Tensor:
        calls.append(1)
        loss: Tensor = right(*arguments)
        return loss * (torch.nan if len(calls) == BAD else 1.0)

    monkeypatch.setattr(module, name, spoilt)


def saved(out: Path) -> dict[str, Tensor]:
    newest = checkpoint.folder_of(out / "checkpoints", checkpoint.steps(out / "checkpoints")[-1])
    return load_file(checkpoint.tensors_file(newest))


@pytest.mark.parametrize("interrupted", [False, True], ids=["alone", "with SIGINT"])
def test_a_nan_at_a_step_without_a_log_line_is_noticed_at_that_step(
    training: tuple[Train, ModuleType], interrupted: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train, module = training
    spoil_step(module, monkeypatch)

    def interrupt_bad_step(progress: Progress) -> None:
        if interrupted and progress.step == BAD:
            os.kill(os.getpid(), signal.SIGINT)

    with watch_signals() as interrupt, pytest.raises(DivergedError, match=f"step {BAD} is not finite"):
        train(tmp_path, interrupt, interrupt_bad_step)
    events = RunRecord(tmp_path).events
    assert [(event["event"], event["step"]) for event in events] == [("non-finite-step", BAD)]
    assert checkpoint.steps(tmp_path / "checkpoints")[-1] == BAD - 1
    assert all(tensor.isfinite().all() for tensor in saved(tmp_path).values())


@pytest.mark.parametrize("stop", [1, 4, 7])
def test_a_training_that_sigint_stopped_resumes_bit_exactly(
    training: tuple[Train, ModuleType], stop: int, tmp_path: Path
) -> None:
    train, _ = training

    def interrupt_at_stop(progress: Progress) -> None:
        if progress.step == stop:
            os.kill(os.getpid(), signal.SIGINT)

    assert train(tmp_path / "whole", Interrupt(), lambda progress: None) == STEPS
    with watch_signals() as interrupt:
        assert train(tmp_path / "stopped", interrupt, interrupt_at_stop) == stop
    assert checkpoint.steps(tmp_path / "stopped" / "checkpoints")[-1] == stop
    assert train(tmp_path / "stopped", Interrupt(), lambda progress: None) == STEPS
    whole, resumed = saved(tmp_path / "whole"), saved(tmp_path / "stopped")
    assert whole.keys() == resumed.keys()
    assert all(torch.equal(tensor, resumed[name]) for name, tensor in whole.items())
