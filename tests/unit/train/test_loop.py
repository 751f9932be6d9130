from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from tests.stopping import stop_and_go_on
from tests.tiny import tiny_plan
from tests.tiny_dino import write_dino
from tintype.data.order import ids_at
from tintype.data.scenes.source import SceneSource
from tintype.data.sources import forget_sources
from tintype.errors import DivergedError, UserError
from tintype.runtime import signals
from tintype.runtime.clock import Clock
from tintype.runtime.interrupt import Interrupt, watch_signals
from tintype.train import checkpoint, exact, loop
from tintype.train.load import load_run
from tintype.train.loop import train
from tintype.train.prepare import prepare_images
from tintype.train.record import RunRecord
from tintype.train.session import Session, build_session
from tintype.train.state import TrainState
from tintype.train.steps import Progress
from tintype.train.update import StepResult, update


def test_the_loop_is_one_file_that_can_be_read_at_once() -> None:
    assert len(Path(loop.__file__).read_text().splitlines()) < 150


def test_metrics_have_one_line_for_each_window_and_the_probe_at_saves(tmp_path: Path) -> None:
    train(
        tiny_plan("run.save_every_steps=3"), tmp_path / "run", Interrupt(), probe=lambda parts, step: {"probed": step}
    )
    lines = RunRecord(tmp_path / "run").lines
    assert [line["step"] for line in lines] == [1, 2, 3, 4, 5, 6]
    assert [(line["step"], line["probed"]) for line in lines if "probed" in line] == [(3, 3), (6, 6)]
    assert all(line["images"] == 4 * line["step"] and line["loss"] > 0 for line in lines)


def test_no_step_pays_for_the_making_of_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    render = SceneSource._render

    def noted(self: SceneSource, ids: Sequence[int]) -> Tensor:
        made.extend(ids)
        return render(self, ids)

    monkeypatch.setattr(SceneSource, "_render", noted)
    plan, before = tiny_plan("data.seed=77", "train.steps=3"), list[int]()
    train(plan, tmp_path / "run", Interrupt(), lambda progress: before.append(len(made)))
    assert before == [0] + [12] * 4 and sorted(set(made)) == sorted(made)  # 3 steps of 4, of the 24 that there are
    forget_sources()
    made.clear()
    later = before[:]
    longer = tiny_plan("data.seed=77", "train.steps=6")
    parts = build_session(longer)
    prepare_images(parts, 12, Interrupt(), lambda: later.append(0))
    assert sorted(made) == sorted(ids_at(longer.seed, 12, 12, 24).tolist()) and len(later) == len(before) + 1
    forget_sources()
    stopped = Interrupt()
    stopped.signal = signal.SIGTERM
    made.clear()
    train(tiny_plan("data.seed=78"), tmp_path / "other", stopped)
    assert not made


EXPLODES = ("optimizer.lr=1e30", "train.clip_norm=null")
"""The first step leads to weights of 1e30, and every later one overflows."""


def test_non_finite_steps_are_events_and_too_many_end_the_run(tmp_path: Path) -> None:
    plan = tiny_plan(*EXPLODES, "train.most_weight_rms=null", "train.most_skips=3", "train.steps=50")
    with pytest.raises(DivergedError, match=r"3 steps in a row .* none of these steps changed the weights"):
        train(plan, tmp_path / "run", Interrupt())
    events = RunRecord(tmp_path / "run").events
    assert {event["event"] for event in events} == {"non-finite-step"}
    steps = [event["step"] for event in events]
    assert steps == sorted(set(steps)) and [e["first_position"] for e in events] == [4 * (step - 1) for step in steps]
    assert events[-1]["last_position"] - events[-1]["first_position"] == 3
    assert events[-1]["ids"] == ids_at(plan.seed, events[-1]["first_position"], 4, 24).tolist()


@pytest.mark.parametrize("every", [1, 4, 100])
def test_skipped_steps_are_counted_the_same_however_often_is_logged(every: int, tmp_path: Path) -> None:
    own = ("train.most_weight_rms=null", "train.most_skipped=1.0", "train.most_skips=4")
    plan = tiny_plan(*EXPLODES, *own, f"run.log_every_steps={every}")
    with pytest.raises(UserError, match=r"4 steps in a row were skipped \(up to step 5\)"):
        train(plan, tmp_path / "run", Interrupt())
    assert [event["step"] for event in RunRecord(tmp_path / "run").events] == [2, 3, 4, 5]


LATE = "repa:teacher=scenes,hidden=8,schedule.kind=ramp,schedule.start=3,schedule.end=5"


@pytest.mark.parametrize("stop", [1, 3, 4])
def test_a_loss_that_starts_late_resumes_bit_exactly(stop: int, tmp_path: Path) -> None:
    """Before its start the optimizer has no state for its parameters."""
    plan = tiny_plan(techniques=[LATE])
    stop_and_go_on(plan, tmp_path / "stopped", stop)
    train(plan, tmp_path / "whole", Interrupt())
    first, second = (
        checkpoint.read(tmp_path / name / "checkpoints" / "step-000000006")[0] for name in ("stopped", "whole")
    )
    assert set(first) == set(second) and all(torch.equal(first[key], second[key]) for key in first)


def test_sampling_builds_no_loss_and_loads_none_of_its_parameters(tmp_path: Path) -> None:
    train(tiny_plan(techniques=[LATE]), tmp_path / "run", Interrupt())
    parts, _ = load_run(tmp_path / "run")
    assert not isinstance(parts, Session) and parts.trained_steps == 6
    assert {name.split(".")[0] for name in parts.modules.state_dict()} == {"denoiser", "text"}


def test_a_line_of_metrics_adds_up_where_a_weight_changes(tmp_path: Path) -> None:
    techniques = ["repa:teacher=scenes,hidden=8,schedule.kind=until,schedule.end=2"]
    train(
        tiny_plan("run.log_every_steps=4", "run.save_every_steps=6", techniques=techniques),
        tmp_path / "run",
        Interrupt(),
    )
    first, *_, last = RunRecord(tmp_path / "run").lines
    assert first["weights"] == {"repa": 0.25} and last["weights"] == {"repa": 0.0} and "repa" not in last
    for line in RunRecord(tmp_path / "run").lines:
        assert line["loss"] == pytest.approx(line["flow"] + line["weights"]["repa"] * line.get("repa", 0.0), rel=1e-4)


def test_a_run_does_not_go_on_with_other_weights_of_a_teacher(tmp_path: Path) -> None:
    folder = write_dino(tmp_path / "dino")
    plan = tiny_plan(techniques=[f"repa:teacher.kind=dinov2,teacher.source={folder},hidden=8"])
    interrupt = Interrupt()

    def at(progress: Progress) -> None:
        if progress.step == 3:
            interrupt.signal = signal.SIGTERM

    train(plan, tmp_path / "run", interrupt, at)
    weights = load_file(folder / "model.safetensors")
    save_file({name: -value for name, value in weights.items()}, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(UserError, match=r"identity of 'repa' \(.*put the first one back"):
        train(plan, tmp_path / "run", Interrupt())
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    assert train(plan, tmp_path / "run", Interrupt()).finished


def test_a_run_that_failed_before_its_first_step_leaves_the_folder_free(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there is no folder /nowhere"):
        train(tiny_plan(techniques=["repa:teacher.kind=dinov2,teacher.source=/nowhere"]), tmp_path / "run", Interrupt())
    assert train(tiny_plan(techniques=["repa:teacher=scenes"]), tmp_path / "run", Interrupt()).finished
    with pytest.raises(UserError, match="another plan"):
        train(tiny_plan(), tmp_path / "run", Interrupt())


def test_training_rounds_no_convolution_to_tf32(tmp_path: Path) -> None:
    before = torch.backends.cudnn.allow_tf32
    seen: list[bool] = []
    train(tiny_plan(), tmp_path / "run", Interrupt(), lambda progress: seen.append(torch.backends.cudnn.allow_tf32))
    assert set(seen) == {False} and torch.backends.cudnn.allow_tf32 == before


def test_tensorboard_is_written_when_asked_for(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    train(tiny_plan("run.trackers=[tensorboard]"), tmp_path / "run", Interrupt())
    assert list((tmp_path / "run" / "tensorboard").glob("events.*"))


def test_a_signal_that_comes_twice_at_once_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    exits: list[int] = []
    monkeypatch.setattr(os, "_exit", exits.append)
    with watch_signals() as interrupt:
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)
        assert (interrupt.signal, exits) == (signal.SIGTERM, [])
        monkeypatch.setattr(signals, "_SAME_SIGNAL_S", 0.0)
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
    assert RunRecord(tmp_path / "run").lines[-1]["images"] == 32


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


@pytest.mark.parametrize("moved", [False, True])
def test_an_operation_without_a_deterministic_form_is_named_and_the_step_taken_again(
    moved: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But not once the weights have moved. The refusal is torch's own, of an operation that has no exact form here."""
    plan = tiny_plan("train.steps=2", "run.save_every_steps=2", "run.deterministic=true")
    train(plan, tmp_path / "usual", Interrupt())

    def with_another_operation(parts: Session, state: TrainState, clock: Clock) -> StepResult:
        if moved:
            state.parameters[0].data.add_(0)
            torch.autograd.graph.increment_version(state.parameters[0])
        torch.zeros(2).put_(torch.tensor([0, 0]), torch.ones(2))
        return update(parts, state, clock)

    monkeypatch.setattr(exact, "update", with_another_operation)
    monkeypatch.setattr(exact, "choose_device", lambda name: torch.device("cuda"))  # which asks for the strict mode
    run = RunRecord(tmp_path / "run")
    if moved:
        with pytest.raises(RuntimeError, match="put_ does not have"):
            train(plan, run.path, Interrupt())
    else:
        with pytest.warns(UserWarning, match="put_ does not have"):
            train(plan, run.path, Interrupt())
        assert [(event["event"], event["step"], event["operation"]) for event in run.events] == [
            ("not-exact", 1, "put_")
        ]
        losses = [[line["loss"] for line in RunRecord(tmp_path / name).lines] for name in ("usual", "run")]
        assert losses[0] == losses[1]
    assert not torch.are_deterministic_algorithms_enabled()
