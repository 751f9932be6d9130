"""Snapshots of the averages in the run's folder: whole, each step once, all of one training."""

from __future__ import annotations

import json
import shutil
import signal
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.edit_checked import write_plan
from tests.stopping import stop_and_go_on
from tests.tiny import tiny_plan
from tests.unit.train.test_update import Poisoned, clock
from tintype.errors import UserError
from tintype.runtime import fault
from tintype.runtime.interrupt import Interrupt
from tintype.train import checkpoint
from tintype.train.load import load_run
from tintype.train.loop import train
from tintype.train.reconstruct import read_snapshots, take_snapshot
from tintype.train.record import RunRecord
from tintype.train.session import build_session
from tintype.train.state import new_state
from tintype.train.update import update

PLAN = tiny_plan("run.save_every_steps=4", "train.steps=8", techniques=["power-ema:snapshots=4"])


class StopError(Exception):
    pass


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("whole") / "run"
    train(PLAN, folder, Interrupt())
    return manifests(folder)


def manifests(run: Path) -> dict[str, str]:
    """The checksums of each snapshot, and the names of all else that lies beside them."""
    return {
        path.name: (path / "manifest.json").read_text() if (path / "manifest.json").exists() else ""
        for path in sorted((run / "snapshots").iterdir())
    }


def crash(run: Path, point: str, occurrence: int) -> None:
    left = occurrence

    def count_down() -> None:
        nonlocal left
        left -= 1
        if left == 0:
            raise StopError

    fault.arm(point, count_down)
    with pytest.raises(StopError):
        train(PLAN, run, Interrupt())
    fault.disarm()


def test_a_snapshot_holds_both_averages_in_fp32_as_the_checkpoint_does(tmp_path: Path) -> None:
    train(PLAN, tmp_path / "run", Interrupt())
    assert [snapshot.step for snapshot in read_snapshots(tmp_path / "run" / "snapshots")] == [2, 4, 6, 8]
    tensors, about = checkpoint.read(tmp_path / "run" / "snapshots" / "step-000000008")
    state, _ = checkpoint.read(tmp_path / "run" / "checkpoints" / "step-000000008")
    assert about == {"step": 8, "updates": 8, "lengths": [0.05, 0.1]}
    assert {tensor.dtype for tensor in tensors.values()} == {torch.float32}
    assert {f"ema/{name}" for name in tensors} | {"ema/updates"} == {name for name in state if name.startswith("ema/")}
    assert all(torch.equal(tensor, state[f"ema/{name}"]) for name, tensor in tensors.items())


def test_sampling_loads_the_first_length_by_default(tmp_path: Path) -> None:
    plan = tiny_plan(techniques=["power-ema:lengths=[0.2,0.05]"])
    train(plan, tmp_path / "run", Interrupt())
    parts, _ = load_run(tmp_path / "run")
    tensors, _ = checkpoint.read(tmp_path / "run" / "checkpoints" / "step-000000006")
    name = "denoiser.final_layer.linear.weight"
    assert torch.equal(parts.modules.state_dict()[name], tensors[f"ema/0.2/{name}"])
    assert not torch.equal(tensors[f"ema/0.05/{name}"], tensors[f"ema/0.2/{name}"])


def test_before_the_first_update_the_weights_themselves_are_loaded_and_no_snapshot_is_written(tmp_path: Path) -> None:
    plan = tiny_plan(techniques=["power-ema"])
    parts = build_session(plan)
    state = new_state(parts)
    update(replace(parts, objective=Poisoned(parts.objective, torch.nan)), state, clock())
    write_plan(tmp_path, plan)
    take_snapshot(tmp_path / "snapshots", plan, state)
    checkpoint.save(tmp_path / "checkpoints", state, 2)
    loaded = load_run(tmp_path)[0].modules.state_dict()
    assert all(torch.equal(loaded[name], tensor) for name, tensor in parts.modules.state_dict().items())
    assert not (tmp_path / "snapshots").exists()


def test_what_only_a_loss_needs_is_left_out(tmp_path: Path) -> None:
    plan = tiny_plan(techniques=["power-ema", "repa:teacher=scenes,hidden=8"])
    train(plan, tmp_path / "run", Interrupt())
    tensors, _ = checkpoint.read(tmp_path / "run" / "snapshots" / "step-000000006")
    assert {name.split("/")[1].split(".")[0] for name in tensors} == {"denoiser", "text"}


@pytest.mark.parametrize("stop", [1, 3, 4, 5, 7])
def test_a_run_that_is_stopped_and_resumed_has_the_same_snapshots(
    stop: int, whole: dict[str, str], tmp_path: Path
) -> None:
    stop_and_go_on(PLAN, tmp_path / "run", stop)
    assert manifests(tmp_path / "run") == whole


def test_snapshots_of_steps_that_are_done_again_are_made_again(whole: dict[str, str], tmp_path: Path) -> None:
    """As when the steps were first done on another machine: none of the first try stays among the second's."""
    crash(tmp_path / "run", "step.done", 7)  # the checkpoint is of step 4, and there is a snapshot of step 6
    later = tmp_path / "run" / "snapshots" / "step-000000006"
    other = {name: tensor + 1 for name, tensor in load_file(later / "state.safetensors").items()}
    save_file(other, later / "state.safetensors")
    shutil.copytree(later, later.with_name("step-000000005"))
    interrupt = Interrupt()
    interrupt.signal = signal.SIGTERM
    train(PLAN, tmp_path / "run", interrupt)
    assert list(manifests(tmp_path / "run")) == ["step-000000002", "step-000000004"]
    train(PLAN, tmp_path / "run", Interrupt())
    assert manifests(tmp_path / "run") == whole
    assert not torch.equal(next(iter(load_file(later / "state.safetensors").values())), next(iter(other.values())))


def test_a_run_whose_checkpoints_are_all_damaged_begins_its_snapshots_anew(
    whole: dict[str, str], tmp_path: Path
) -> None:
    train(PLAN, tmp_path / "run", Interrupt())
    for path in (tmp_path / "run" / "checkpoints").iterdir():
        (path / "state.json").write_text("{}")
    interrupt = Interrupt()
    interrupt.signal = signal.SIGTERM
    train(PLAN, tmp_path / "run", interrupt)
    assert manifests(tmp_path / "run") == {}
    train(PLAN, tmp_path / "run", Interrupt())
    assert manifests(tmp_path / "run") == whole


@pytest.mark.parametrize("point", ["snapshot.begin", "snapshot.state", "snapshot.manifest", "snapshot.rename"])
@pytest.mark.parametrize("occurrence", [1, 2, 3])
def test_a_snapshot_that_was_cut_off_is_not_there(
    point: str, occurrence: int, whole: dict[str, str], tmp_path: Path
) -> None:
    crash(tmp_path / "run", point, occurrence)
    found = read_snapshots(tmp_path / "run" / "snapshots") if occurrence > 1 else []
    assert [snapshot.step for snapshot in found] == [2, 4, 6, 8][: occurrence - 1]
    train(PLAN, tmp_path / "run", Interrupt())
    assert manifests(tmp_path / "run") == whole


def test_a_snapshot_that_is_half_removed_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train(PLAN, tmp_path / "run", Interrupt())
    folder = tmp_path / "run" / "snapshots"

    def half(path: Path) -> None:
        (path / "manifest.json").unlink()
        raise StopError

    monkeypatch.setattr(shutil, "rmtree", half)
    with pytest.raises(StopError):
        checkpoint.remove_after(folder, 5)
    monkeypatch.undo()
    assert [snapshot.step for snapshot in read_snapshots(folder)] == [2, 4]
    checkpoint.remove_after(folder, 5)
    assert sorted(path.name for path in folder.iterdir()) == ["step-000000002", "step-000000004"]


def test_a_full_disk_is_said_and_the_run_goes_on_later(
    whole: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    fault.arm("snapshot.rename", lambda: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(UserError, match=r"cannot write the snapshot of step 2 .*No space left.* to resume"):
        train(PLAN, run, Interrupt())
    fault.disarm()
    assert not list((run / "snapshots").iterdir())
    train(PLAN, run, Interrupt())
    assert manifests(run) == whole


def test_the_log_and_the_snapshots_of_a_run_that_was_cut_off_agree(tmp_path: Path) -> None:
    crash(tmp_path / "run", "save.begin", 2)
    train(PLAN, tmp_path / "run", Interrupt())
    assert [line["step"] for line in RunRecord(tmp_path / "run").lines] == list(range(1, 9))
    about = json.loads((tmp_path / "run" / "snapshots" / "step-000000008" / "state.json").read_text())
    assert about["scalars"]["updates"] == 8
