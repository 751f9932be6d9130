from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
import torch

from tests.tiny import tiny_plan
from tintype.errors import UserError
from tintype.train import checkpoint, loop
from tintype.train import interrupt as interrupt_module
from tintype.train.folder import RunFolder
from tintype.train.interrupt import Interrupt, watch_signals
from tintype.train.load import load_run
from tintype.train.loop import Progress, train


def test_the_loop_is_one_file_that_can_be_read_at_once() -> None:
    assert len(Path(loop.__file__).read_text().splitlines()) < 150


def test_metrics_have_one_line_for_each_window_and_the_probe_at_saves(tmp_path: Path) -> None:
    train(tiny_plan("run.save_every_steps=3"), tmp_path / "run", Interrupt(), probe=lambda parts: {"probed": 1.0})
    lines = RunFolder(tmp_path / "run").metrics()
    assert [line["step"] for line in lines] == [1, 2, 3, 4, 5, 6]
    assert [line["step"] for line in lines if "probed" in line] == [3, 6]
    assert all(line["images"] == 4 * line["step"] and line["loss"] > 0 for line in lines)


def test_non_finite_steps_are_events_and_too_many_end_the_run(tmp_path: Path) -> None:
    plan = tiny_plan("optimizer.lr=1e30", "train.clip_norm=null", "train.most_skips=3", "train.steps=50")
    with pytest.raises(UserError, match=r"3 steps in a row .* none of them reached the weights"):
        train(plan, tmp_path / "run", Interrupt())
    events = RunFolder(tmp_path / "run").events()
    assert {event["event"] for event in events} == {"non-finite-step"}
    steps = [event["step"] for event in events]
    assert steps == sorted(set(steps)) and [e["first_position"] for e in events] == [4 * (step - 1) for step in steps]
    assert events[-1]["last_position"] - events[-1]["first_position"] == 3


@pytest.mark.parametrize("every", [1, 4, 100])
def test_skipped_steps_are_counted_the_same_however_often_is_logged(every: int, tmp_path: Path) -> None:
    plan = tiny_plan("optimizer.lr=1e30", "train.clip_norm=null", "train.most_skips=4", f"run.log_every_steps={every}")
    with pytest.raises(UserError, match=r"4 steps in a row \(to step 5\)"):
        train(plan, tmp_path / "run", Interrupt())
    assert [event["step"] for event in RunFolder(tmp_path / "run").events()] == [2, 3, 4, 5]


def test_tensorboard_is_written_when_asked_for(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    train(tiny_plan("run.tensorboard=true"), tmp_path / "run", Interrupt())
    assert list((tmp_path / "run" / "tensorboard").glob("events.*"))


def test_a_signal_that_comes_twice_at_once_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    exits: list[int] = []
    monkeypatch.setattr(os, "_exit", exits.append)
    with watch_signals() as interrupt:
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)
        assert (interrupt.signal, exits) == (signal.SIGTERM, [])
        monkeypatch.setattr(interrupt_module, "_SAME_SIGNAL_S", 0.0)
        signal.raise_signal(signal.SIGTERM)
        assert exits == [143]


@pytest.mark.parametrize("stop", [1, 3, 6])
def test_a_signal_after_the_decision_to_save_still_saves(stop: int, tmp_path: Path) -> None:
    plan = tiny_plan("run.save_every_steps=100", "run.log_every_steps=4", "train.steps=8")
    interrupt = Interrupt()

    def at(progress: Progress) -> None:
        if progress.step == stop:
            interrupt.signal = signal.SIGTERM

    assert train(plan, tmp_path / "run", interrupt, at).step == stop
    assert checkpoint.steps(tmp_path / "run" / "checkpoints") == [stop]
    assert train(plan, tmp_path / "run", Interrupt()).finished
    assert RunFolder(tmp_path / "run").metrics()[-1]["images"] == 32


def test_a_run_that_keeps_an_average_is_sampled_with_it(tmp_path: Path) -> None:
    train(tiny_plan(techniques=["ema:decay=0.5"]), tmp_path / "run", Interrupt())
    parts, step = load_run(tmp_path / "run")
    tensors, _ = checkpoint.read(tmp_path / "run" / "checkpoints" / "step-000000006")
    name = "denoiser.final_layer.linear.weight"
    assert step == 6
    assert torch.equal(parts.modules.state_dict()[name], tensors[f"ema/{name}"])
    assert not torch.equal(tensors[f"ema/{name}"], tensors[f"modules/{name}"])


def test_a_damaged_checkpoint_is_said_when_a_run_is_loaded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train(tiny_plan(), tmp_path / "run", Interrupt())
    (tmp_path / "run" / "checkpoints" / "step-000000006" / "state.json").write_text("{}")
    assert load_run(tmp_path / "run")[1] == 4
    assert "the checkpoint of step 6" in capsys.readouterr().err


def test_what_a_killed_first_write_left_does_not_block_the_run(tmp_path: Path) -> None:
    (tmp_path / ".plan.yaml.writing").write_text("half")
    assert train(tiny_plan(), tmp_path, Interrupt()).finished
