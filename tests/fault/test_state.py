"""A checkpoint holds the whole state, and is loaded strictly: each name, shape and type is checked before a copy."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.fault.promises import Promise
from tests.stopping import stop_and_go_on
from tests.tiny import tiny_plan
from tests.tiny_tuning import NO_PERCEPTUAL, tuned_plan
from tintype.errors import UserError
from tintype.export.model_folder import export_model
from tintype.export.trained import ExportOptions
from tintype.plan import Plan
from tintype.runtime.clock import Clock
from tintype.runtime.interrupt import Interrupt
from tintype.train import checkpoint, state
from tintype.train.load import load_run
from tintype.train.loop import train
from tintype.train.reconstruct import reconstruction
from tintype.train.session import build_session
from tintype.train.state import StateMismatchError, TrainState, new_state
from tintype.train.update import update

BF16 = ("precision.compute=bf16", "precision.storage=bf16")
REPA = "repa:teacher=scenes,hidden=8"
PLANS: dict[str, Callable[[], Plan]] = {
    "adamw, ema, spikes": lambda: tiny_plan("train.skip_spikes.window=4", techniques=["ema", REPA]),
    "muon in bf16, power-ema": lambda: tiny_plan(*BF16, "precision.rounding=kahan", techniques=["muon", "power-ema"]),
    "trained tokenizer, discriminator": lambda: tuned_plan(
        "data.size_px=32",
        techniques=[f"{NO_PERCEPTUAL},adversarial.weight=0.5,adversarial.start_step=0,adversarial.width=8"],
    ),
}
"""Between them every kind of tensor that a state can have."""


@lru_cache
def trained(name: str) -> TrainState:
    """A state after one step."""
    parts = build_session(PLANS[name]())
    parts.ready()
    made = new_state(parts)
    update(parts, made, Clock(parts.device))
    return made


def stored(name: str) -> dict[str, Tensor]:
    return {key: tensor.clone() for key, tensor in trained(name).tensors().items()}


@lru_cache
def _fresh(name: str) -> TrainState:
    return new_state(build_session(PLANS[name]()))


def fresh(name: str) -> TrainState:
    """A state of the same plan to load into. Refused tensors leave it as it is, so that one serves many tries."""
    return _fresh(name)


def perturbed(tensor: Tensor, number: int) -> Tensor:
    """A value that no other leaf has, in the tensor's type."""
    if not tensor.is_floating_point():
        return torch.full_like(tensor, number)
    return torch.full_like(tensor, 0.5 + (number % 64) / 64) * 2.0 ** (number // 64 - 20)


def save_and_restore(name: str, folder: Path) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Perturb every leaf, save, restore into a state built anew: what was saved, and what came back."""
    saved = {key: perturbed(tensor, number) for number, (key, tensor) in enumerate(stored(name).items())}
    checkpoint.commit(folder, 1, saved, trained(name).scalars(), what="checkpoint", stage="save")
    restored = new_state(build_session(PLANS[name]()))
    checkpoint.restore(folder, restored, lambda path, reason: None)
    return saved, restored.tensors()


@pytest.mark.promise(7)
@pytest.mark.parametrize("name", PLANS)
def test_every_tensor_of_the_state_is_saved_and_restored(name: str, promise: Promise, tmp_path: Path) -> None:
    """Give every tensor of a state its own value, save it, restore it into a state built anew."""
    saved, restored = save_and_restore(name, tmp_path)
    assert saved.keys() == restored.keys()
    for key, tensor in saved.items():
        promise.count(torch.equal(restored[key], tensor) and restored[key].dtype == tensor.dtype, f"{name}: {key}")


@pytest.mark.promise(7, control="the optimizer's state is left out of the load")
def test_control_a_part_that_is_not_loaded_is_found(
    promise: Promise, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same, where loading leaves the optimizer out."""
    monkeypatch.setattr(TrainState, "_load_optimizer", lambda self, tensors: None)
    saved, restored = save_and_restore("adamw, ema, spikes", tmp_path)
    for key, tensor in saved.items():
        promise.count(key in restored and torch.equal(restored[key], tensor), key)


@pytest.mark.promise(7)
def test_every_counter_of_the_state_is_saved_and_restored(promise: Promise) -> None:
    """Give every counter of a state its own value, and load it into a state built anew."""
    parts = ("modules", "optimizer", "ema", "spikes", "teacher")  # of tensors; the teacher reads the average
    counters = [field.name for field in fields(TrainState) if field.name not in parts]
    before = fresh("adamw, ema, spikes")
    changed = {
        name: [number, 90] if isinstance(getattr(before, name), list) else number
        for number, name in enumerate(counters, 5)
    }
    restored = new_state(build_session(PLANS["adamw, ema, spikes"]()))
    restored.load(stored("adamw, ema, spikes"), changed)
    assert set(changed) == set(restored.scalars())
    for name, value in changed.items():
        promise.count(getattr(restored, name) == restored.scalars()[name] == value, name)


def wrong_forms(tensor: Tensor) -> dict[str, Tensor]:
    """Return the numbers in other shapes and types, each of which torch would accept, broadcast or cast."""
    found = {"fp16": tensor.half(), "fp64": tensor.double()} if tensor.dtype != torch.float64 else {}
    found["one axis more"] = tensor[None]
    if tensor.numel() > 1:
        found["shape [1]"] = tensor.flatten()[:1]
        found["flat"] = tensor.flatten() if tensor.ndim > 1 else tensor[:, None]
    if tensor.ndim > 1:
        found["transposed"] = tensor.mT.contiguous()
    same = (tensor.shape, tensor.dtype)  # a square one, transposed
    return {kind: wrong for kind, wrong in found.items() if (wrong.shape, wrong.dtype) != same}


def refusal(name: str, tensors: Mapping[str, Tensor], scalars: Mapping[str, Any] | None = None) -> str:
    """The error of loading this, or '' where it was loaded."""
    try:
        fresh(name).load(tensors, trained(name).scalars() if scalars is None else scalars)
    except StateMismatchError as error:
        return str(error)
    return ""


def wrong_states(name: str) -> list[tuple[str, str]]:
    return [(key, kind) for key, tensor in stored(name).items() for kind in wrong_forms(tensor)]


@pytest.mark.promise(7)
@pytest.mark.parametrize("name", PLANS)
def test_a_tensor_of_another_shape_or_type_is_refused_by_name(name: str, promise: Promise) -> None:
    """Load a state in which one tensor has another shape or type: each tensor, each way."""
    state_before = {key: tensor.clone() for key, tensor in fresh(name).tensors().items()}
    right = stored(name)
    for key, kind in promise.choose(wrong_states(name), short=40):
        wrong = wrong_forms(right[key])[kind]
        found = refusal(name, {**right, key: wrong})
        said = (
            f"{key} is " in found and f"{list(wrong.shape)} and not " in found and f"{list(right[key].shape)}" in found
        )
        promise.count(said, f"{name}: {key}: {kind}: {found}")
    after = fresh(name).tensors()
    assert all(torch.equal(after[key], tensor) for key, tensor in state_before.items()), "a refused load changed it"


@pytest.mark.promise(7, control="shapes and types are not compared")
def test_control_names_alone_let_wrong_tensors_in(promise: Promise, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same, where names alone are compared: torch broadcasts, casts and transposes in silence."""
    name = "adamw, ema, spikes"
    monkeypatch.setattr(state, "misfits", lambda found, wanted: "")
    right = stored(name)
    for key, kind in [(key, kind) for key, kind in wrong_states(name) if key.startswith(("ema/", "optimizer/"))][:40]:
        loaded = new_state(build_session(PLANS[name]()))
        try:
            loaded.load({**right, key: wrong_forms(right[key])[kind]}, trained(name).scalars())
        except RuntimeError:
            continue
        promise.count(False, f"{key}: {kind}")


@pytest.mark.promise(7)
@pytest.mark.parametrize("name", PLANS)
def test_a_missing_or_unknown_tensor_is_refused_by_name(name: str, promise: Promise) -> None:
    """Load a state that lacks one tensor, each in turn, or has one too many."""
    right = stored(name)
    for gone in promise.choose(list(right), short=40):
        found = refusal(name, {key: tensor for key, tensor in right.items() if key != gone})
        promise.count("missing: " in found and gone.rpartition("/")[0] in found, f"{name}: without {gone}: {found}")
    for more in ("modules/unknown", "optimizer/unknown/step", "ema/unknown", "spikes/unknown", "other/x"):
        found = refusal(name, {**right, more: torch.zeros(1)})
        promise.count(f"1 too many: {more}" in found, f"{name}: with {more}: {found}")


@pytest.mark.parametrize("part", ["optimizer/", "ema/", "spikes/"])
def test_a_state_without_one_of_its_parts_is_refused(part: str) -> None:
    """A run must not resume with an optimizer that begins anew."""
    kept = {key: one for key, one in stored("adamw, ema, spikes").items() if not key.startswith(part)}
    assert "missing: " + part in refusal("adamw, ema, spikes", kept)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"step": None}, r"missing \['step'\]"),
        ({"more": 1}, r"unknown \['more'\]"),
        ({"step": 1.5}, "step is 1.5, but must be a count"),
        ({"images_seen": -4}, "images_seen is -4, but must be a count"),
        ({"skips": "3"}, "skips is '3', but must be a count"),
        ({"recent_skips": 3}, "recent_skips is 3, but must be a list of counts"),
        ({"recent_skips": [True]}, r"recent_skips is \[True\], but must"),
    ],
)
def test_counters_that_are_none_are_refused(change: dict[str, Any], message: str) -> None:
    changed = {**trained("adamw, ema, spikes").scalars(), **change}
    scalars = {key: value for key, value in changed.items() if value is not None}
    assert re.search(message, refusal("adamw, ema, spikes", stored("adamw, ema, spikes"), scalars))


def test_a_checkpoint_from_before_a_counter_was_added_is_loaded() -> None:
    older = {key: trained("adamw, ema, spikes").scalars()[key] for key in ("step", "images_seen", "skips_in_a_row")}
    assert refusal("adamw, ema, spikes", stored("adamw, ema, spikes"), older) == ""
    _fresh.cache_clear()


def test_losses_in_fp32_beside_compensated_weights_resume(tmp_path: Path) -> None:
    """Such a run was refused: its loss's own parameters have no compensation, and the weights beside them have."""
    plan = tiny_plan("train.steps=2", "run.save_every_steps=1", *BF16, "precision.rounding=kahan", techniques=[REPA])
    stop_and_go_on(plan, tmp_path / "run", 1)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("strict") / "run"
    train(tiny_plan("train.steps=4", techniques=["power-ema:snapshots=2", REPA]), folder, Interrupt())
    return folder


NAME = "denoiser.img_in.weight"
LOADED = {
    "weights, shape [1]": (f"modules/{NAME}", "shape [1]"),
    "weights, fp16": (f"modules/{NAME}", "fp16"),
    "average, shape [1]": (f"ema/0.05/{NAME}", "shape [1]"),
    "average, transposed": (f"ema/0.05/{NAME}", "transposed"),
    "average, fp16": (f"ema/0.05/{NAME}", "fp16"),
    "count of updates": ("ema/updates", "one axis more"),
}


@pytest.mark.promise(7)
def test_sampling_refuses_weights_and_averages_of_another_form(run: Path, promise: Promise, tmp_path: Path) -> None:
    """Load a run to sample from it, where one of its weights or averages has another shape or type, or is missing."""
    tensors, scalars = checkpoint.read(run / "checkpoints" / "step-000000004")
    for number, (what, (key, kind)) in enumerate(LOADED.items()):
        for changed in (wrong_forms(tensors[key])[kind], None):
            copy = copy_run(run, tmp_path / f"{number}{changed is None}")
            kept = {name: one for name, one in {**tensors, key: changed}.items() if one is not None}
            checkpoint.commit(copy / "checkpoints", 4, kept, scalars, what="checkpoint", stage="save")
            found = load_error(copy)
            said = f"1 missing: {key.partition('/')[2]}" if changed is None else f"{key.partition('/')[2]} is "
            promise.count("does not fit its plan.yaml" in found and said in found, f"{what}: {found}")


@pytest.mark.promise(7)
def test_an_average_made_of_snapshots_refuses_those_of_another_form(
    run: Path, promise: Promise, tmp_path: Path
) -> None:
    """Make an average of snapshots of which one has a tensor of another shape or type, or none."""
    tensors, about = checkpoint.read(run / "snapshots" / "step-000000002")
    key = f"0.05/{NAME}"
    for number, changed in enumerate((*wrong_forms(tensors[key]).values(), None)):
        copy = copy_run(run, tmp_path / str(number))
        checkpoint.remove_after(copy / "snapshots", 0)
        kept = {name: one for name, one in {**tensors, key: changed}.items() if one is not None}
        for step, some in ((2, tensors), (4, kept)):
            counted = {**about, "step": step, "updates": step}
            checkpoint.commit(copy / "snapshots", step, some, counted, what="snapshot", stage="snapshot")
        with pytest.raises(UserError) as refused:
            reconstruction(copy, 0.07).weights()
        found = str(refused.value)
        promise.count("the snapshot" in found and "step-000000004 does not fit" in found and NAME in found, found)


def test_an_export_that_is_of_another_type_than_it_says_is_refused(run: Path, tmp_path: Path) -> None:
    export_model(run, tmp_path / "model", ExportOptions(dtype="bf16"))
    assert load_error(tmp_path / "model") == ""
    record = tmp_path / "model" / "tintype.json"
    record.write_text(record.read_text().replace('"dtype": "bf16"', '"dtype": "fp32"'))
    assert re.search(r"of another shape or type: \S+ is bf16 \[.*\] and not fp32 \[", load_error(tmp_path / "model"))


def copy_run(run: Path, folder: Path) -> Path:
    """The run without its newest checkpoint."""
    shutil.copytree(run, folder)
    shutil.rmtree(folder / "checkpoints" / "step-000000004")
    return folder


def load_error(run: Path) -> str:
    try:
        load_run(run)
    except UserError as error:
        return str(error)
    return ""
