"""Averages that are made after the run, against averages over every step's weights."""

from __future__ import annotations

import shutil
import weakref
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from torch import Tensor

from tests.bounds import distance, rounding_bound
from tests.edit_checked import write_plan
from tests.slow import slow_unless
from tests.tiny import tiny_plan
from tests.unit.techniques.test_power_ema import power_weights
from tests.unit.train.test_update import Poisoned, clock
from tintype.errors import UserError
from tintype.runtime.interrupt import Interrupt
from tintype.train import checkpoint, reconstruct
from tintype.train.load import load_run
from tintype.train.loop import train
from tintype.train.reconstruct import read_snapshots, reconstruction, take_snapshot, try_reconstruction
from tintype.train.session import build_session
from tintype.train.state import new_state
from tintype.train.update import update

STEPS, SKIPPED = 144, range(20, 36)
PLAN = tiny_plan(f"train.steps={STEPS}", "optimizer.lr=3e-3", techniques=["power-ema:snapshots=36"])


@dataclass(frozen=True)
class Recorded:
    run: Path
    weights: list[dict[str, Tensor]]
    """Weights of each step that was not skipped, in float64."""

    def average(self, length: float, updates: int | None = None) -> Tensor:
        """By brute force."""
        past = self.weights[:updates]
        shares = power_weights(length, len(past)).tolist()
        names = sorted(past[0])
        return torch.cat([sum(s * one[n].flatten() for s, one in zip(shares, past, strict=True)) for n in names])


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    """A tiny run of which sixteen steps were skipped, so that its updates are not its steps."""
    run = tmp_path_factory.mktemp("recorded")
    write_plan(run, PLAN)
    parts, kept = build_session(PLAN), list[dict[str, Tensor]]()
    state = new_state(parts)
    poisoned = replace(parts, objective=Poisoned(parts.objective, torch.nan))
    for step in range(STEPS):
        if update(poisoned if step in SKIPPED else parts, state, clock()).finite:
            kept.append({name: p.detach().double().clone() for name, p in parts.modules.named_parameters()})
        take_snapshot(run / "snapshots", PLAN, state)
    assert len(kept) == STEPS - len(SKIPPED)
    return Recorded(run, kept)


def thinned(recorded: Recorded, folder: Path, every: int) -> Path:
    """The same run with fewer snapshots."""
    run = Path(shutil.copytree(recorded.run, folder))
    for number, step in enumerate(checkpoint.steps(run / "snapshots"), start=1):
        if number % every:
            shutil.rmtree(checkpoint.folder_of(run / "snapshots", step))
    return run


def flat(weights: dict[str, Tensor]) -> Tensor:
    return torch.cat([weights[name].double().flatten() for name in sorted(weights)])


def error(recorded: Recorded, run: Path, length: float) -> float:
    """As a share of what the average changes: its distance from the last weights."""
    exact = recorded.average(length)
    moved = exact - flat(recorded.weights[-1])
    return float((flat(try_reconstruction(run, length).weights()) - exact).norm() / moved.norm())


@pytest.mark.parametrize("length", slow_unless(lambda length: length == 0.2, [0.03, 0.07, 0.15, 0.2]))
def test_the_reconstruction_approaches_the_brute_force_average(
    length: float, recorded: Recorded, tmp_path: Path
) -> None:
    errors = [error(recorded, thinned(recorded, tmp_path / str(every), every), length) for every in (9, 4, 2, 1)]
    assert errors[0] > errors[1] > errors[2] > errors[3], errors
    assert errors[2] < 0.01 and errors[3] < 0.002, errors


@pytest.mark.parametrize("length", [0.05, 0.10])
def test_a_tracked_length_is_returned(length: float, recorded: Recorded) -> None:
    stored, _ = checkpoint.read(checkpoint.folder_of(recorded.run / "snapshots", STEPS))
    weights = reconstruction(recorded.run, length).weights()
    assert all(torch.equal(tensor, stored[f"{length}/{name}"]) for name, tensor in weights.items())
    exact = recorded.average(length)
    assert distance(flat(weights), exact) < rounding_bound(STEPS, exact)


def test_an_earlier_end_uses_the_snapshots_up_to_it(recorded: Recorded) -> None:
    found = reconstruction(recorded.run, 0.07, step=72)
    assert found.step == 72 and max(snapshot.step for snapshot, _, _ in found.terms) == 72
    exact = recorded.average(0.07, updates=72 - len(SKIPPED))
    moved = exact - flat(recorded.weights[72 - len(SKIPPED) - 1])
    assert (flat(found.weights()) - exact).norm() < 0.002 * moved.norm()


def test_the_updates_count_and_not_the_steps(recorded: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    """Control: with steps in place of updates the profiles are others, and the error is many times as large."""
    right = error(recorded, recorded.run, 0.15)
    by_step = [replace(one, updates=one.step) for one in read_snapshots(recorded.run / "snapshots")]
    monkeypatch.setattr(reconstruct, "read_snapshots", lambda folder: by_step)
    assert error(recorded, recorded.run, 0.15) > 5 * right


def test_the_sum_is_taken_in_float64(recorded: Recorded) -> None:
    """A short average has weights of both signs and larger than one; fp32 sums would lose digits to them."""
    found = try_reconstruction(recorded.run, 0.02)
    files = {one.path: checkpoint.read(one.path)[0] for one, _, _ in found.terms}
    expected = {
        name: sum(weight * files[one.path][f"{length}/{name}"].double() for one, length, weight in found.terms)
        for name in found.weights()
    }
    assert sum(abs(weight) for _, _, weight in found.terms) > 10
    assert all(torch.equal(tensor, expected[name].float()) for name, tensor in found.weights().items())  # type: ignore[union-attr]


def test_one_tensor_of_a_snapshot_is_in_memory_at_a_time(recorded: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    alive, most = set[int](), 0

    class Watched:
        def __init__(self, *args: Any) -> None:
            self.file: Any = safe_open(*args)

        def __enter__(self) -> Watched:
            self.inner = self.file.__enter__()
            return self

        def __exit__(self, *exception: Any) -> None:
            self.file.__exit__(*exception)

        def keys(self) -> list[str]:
            return list(self.inner.keys())

        def get_slice(self, name: str) -> Any:
            return self.inner.get_slice(name)

        def get_tensor(self, name: str) -> Tensor:
            nonlocal most
            tensor: Tensor = self.inner.get_tensor(name)
            alive.add(id(tensor))
            most = max(most, len(alive))
            weakref.finalize(tensor, alive.discard, id(tensor))
            return tensor

    monkeypatch.setattr(reconstruct, "safe_open", Watched)
    reconstruction(recorded.run, 0.07).weights()
    assert most == 1


def test_a_run_is_loaded_with_any_length(tmp_path: Path) -> None:
    train(tiny_plan("train.steps=12", techniques=["power-ema", "sprint"]), tmp_path / "run", Interrupt())
    average = reconstruction(tmp_path / "run", 0.07)
    parts, step = load_run(tmp_path / "run", average=average)
    loaded, weights = parts.modules.state_dict(), average.weights()
    assert step == parts.trained_steps == 12
    assert all(torch.equal(loaded[name], tensor) for name, tensor in weights.items())
    assert set(weights) == {name for name, _ in parts.modules.named_parameters()}


def test_snapshots_that_lack_a_parameter_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train(tiny_plan(techniques=["power-ema"]), tmp_path / "run", Interrupt())
    average = reconstruction(tmp_path / "run", 0.05)
    weights = average.weights()
    weights.pop("denoiser.final_layer.linear.weight")
    monkeypatch.setattr(reconstruct.Reconstruction, "weights", lambda self: weights)
    with pytest.raises(UserError, match=r"do not fit this plan and version: 1 missing: denoiser.final_layer.linear.w"):
        load_run(tmp_path / "run", average=average)


@pytest.mark.parametrize("length", [0.0, -0.05, 0.3, float("nan")])
def test_a_length_that_is_none_is_refused(length: float, recorded: Recorded) -> None:
    with pytest.raises(UserError, match=r"the length of an average is .*, but must lie between 0 and 0.2887"):
        reconstruction(recorded.run, length)


def test_a_length_that_the_snapshots_cannot_represent_is_refused_with_the_residual(
    recorded: Recorded, tmp_path: Path
) -> None:
    run = thinned(recorded, tmp_path / "run", 9)
    residual = try_reconstruction(run, 0.01).residual
    with pytest.raises(UserError, match=rf"the 4 snapshots .*\(lengths 0.05, 0.1\).* {residual:.0%} of its weighting"):
        reconstruction(run, 0.01)
    assert error(recorded, run, 0.01) > 0.3, "it would have been a bad average"


def test_a_run_without_snapshots_is_refused_with_what_to_do(tmp_path: Path) -> None:
    for plan, message in (
        (tiny_plan(techniques=["ema"]), "train with --technique power-ema"),
        (tiny_plan(), "train with --technique power-ema"),
        (tiny_plan(techniques=["power-ema:snapshots=3"]), "no snapshot of its weight averages yet.* at step 2"),
    ):
        write_plan(tmp_path, plan)
        with pytest.raises(UserError, match=message):
            reconstruction(tmp_path, 0.1)


def test_a_step_without_a_snapshot_is_refused(recorded: Recorded) -> None:
    with pytest.raises(UserError, match=r"no snapshot of step 70; it has snapshots of the steps 4, 8, 12"):
        reconstruction(recorded.run, 0.1, step=70)


@pytest.mark.parametrize("file", ["state.safetensors", "state.json", "manifest.json"])
def test_a_damaged_snapshot_is_named_and_can_be_done_without(file: str, recorded: Recorded, tmp_path: Path) -> None:
    run = thinned(recorded, tmp_path / "run", 2)
    path = checkpoint.folder_of(run / "snapshots", 80)
    before = reconstruction(run, 0.08).name
    content = bytearray((path / file).read_bytes())
    content[len(content) // 2] ^= 4
    (path / file).write_bytes(content)
    with pytest.raises(UserError, match=r"the snapshot \S*step-000000080 is damaged .* remove it and run the same"):
        reconstruction(run, 0.08).weights()
    shutil.rmtree(path)
    found = reconstruction(run, 0.08)
    assert found.name != before and found.weights()


def test_names_tell_lengths_apart(recorded: Recorded) -> None:
    lengths = [0.08, 0.080001, 0.0800000001]
    names = {try_reconstruction(recorded.run, length).name for length in lengths}
    assert len(names) == 3 and any(name.startswith("ema-0.08-") for name in names)


def test_snapshots_that_were_made_again_otherwise_have_another_name(recorded: Recorded, tmp_path: Path) -> None:
    run = thinned(recorded, tmp_path / "run", 4)
    before = reconstruction(run, 0.08).name
    path = checkpoint.folder_of(run / "snapshots", 80)
    tensors, about = checkpoint.read(path)
    shutil.rmtree(path)
    changed = {name: tensor + 1e-3 for name, tensor in tensors.items()}
    checkpoint.commit(run / "snapshots", 80, changed, about, what="snapshot", stage="snapshot")
    assert reconstruction(run, 0.08).name != before
