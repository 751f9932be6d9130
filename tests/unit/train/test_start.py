"""Runs that start from others: what they take over, what they note, and what is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

from tests.edit_checked import write_plan
from tests.ranks import run_ranks
from tests.stopping import stop_and_go_on
from tests.tiny import tiny_plan
from tests.tiny_text import MAX_TOKENS, write_text_encoder
from tintype.errors import UserError
from tintype.plan import Plan
from tintype.runtime.files import read_json
from tintype.runtime.interrupt import Interrupt
from tintype.train import checkpoint
from tintype.train.folder import RunFolder
from tintype.train.load import load_run
from tintype.train.loop import train
from tintype.train.record import RunRecord
from tintype.train.session import build_session
from tintype.train.start import begin, identity
from tintype.train.state import TrainState, new_state

EMA = "ema.decay=0.5"


@pytest.fixture(scope="module")
def parent(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("parent") / "run"
    train(tiny_plan(EMA), folder, Interrupt())
    return folder


def begun(plan: Plan, folder: Path) -> TrainState:
    parts = build_session(plan)
    folder.mkdir(exist_ok=True)
    return begin(RunFolder(folder), parts, new_state(parts))


def started(parent: Path, *assignments: str) -> Plan:
    return tiny_plan(f"start.folder={parent}", *assignments)


@pytest.mark.parametrize("weights", ["raw", "average"])
def test_it_begins_with_the_other_runs_weights_and_a_new_optimizer(parent: Path, tmp_path: Path, weights: str) -> None:
    state = begun(started(parent, f"start.weights={weights}", EMA), tmp_path / "run")
    tensors = checkpoint.read(checkpoint.folder_of(parent / "checkpoints", 6))[0]
    prefix = "modules/" if weights == "raw" else "ema/"
    for name, parameter in state.modules.named_parameters():
        assert torch.equal(parameter, tensors[prefix + name])
    assert (state.step, state.images_seen, len(state.optimizer.state)) == (0, 0, 0)
    assert state.ema is not None
    state.ema.update(torch.zeros(()))  # the first update copies the weights
    for name, parameter in state.modules.named_parameters():
        assert torch.equal(state.ema.tensors()[name], parameter), "its own average follows the weights it begins with"
    if weights == "average":
        assert identity(dict(state.modules.state_dict())) == identity(dict(load_run(parent)[0].modules.state_dict()))


def test_the_lineage_is_noted_with_that_of_the_other_run(parent: Path, tmp_path: Path) -> None:
    train(started(parent), tmp_path / "second", Interrupt())
    train(started(tmp_path / "second", "optimizer.lr=1e-4"), tmp_path / "third", Interrupt())
    third = read_json(tmp_path / "third" / "lineage.json")
    assert (third["plan"], third["at_step"], third["weights"]) == (started(parent).hash, 6, "raw")
    assert third["lineage"]["plan"] == tiny_plan(EMA).hash and third["lineage"]["lineage"] is None
    second = checkpoint.read(checkpoint.folder_of(tmp_path / "second" / "checkpoints", 6))[0]
    taken = {name.removeprefix("modules/"): t for name, t in second.items() if name.startswith("modules/")}
    assert third["sha256"] == identity(taken) != third["lineage"]["sha256"]
    events = [event for event in RunRecord(tmp_path / "third").events if event["event"] == "started-from"]
    assert [event["sha256"] for event in events] == [third["sha256"]]


def test_a_run_that_begins_again_notes_its_start_once(parent: Path, tmp_path: Path) -> None:
    for _ in range(2):
        begun(started(parent), tmp_path / "run")
    assert [event["event"] for event in RunRecord(tmp_path / "run").events] == ["started-from"]


def test_it_goes_on_without_the_other_run(parent: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(parent, tmp_path / "copy")
    plan = started(copy)
    train(plan, tmp_path / "whole", Interrupt())
    stop_and_go_on(plan, tmp_path / "stopped", 3)
    shutil.rmtree(copy)
    (tmp_path / "stopped" / "checkpoints" / "step-000000006").rename(tmp_path / "away")
    assert train(plan, tmp_path / "stopped", Interrupt()).finished
    whole, stopped = (
        checkpoint.read(checkpoint.folder_of(tmp_path / name / "checkpoints", 6))[0] for name in ("whole", "stopped")
    )
    assert all(torch.equal(whole[name], stopped[name]) for name in whole)


def test_a_pinned_start_is_named_by_its_weights(parent: Path, tmp_path: Path) -> None:
    begun(started(parent), tmp_path / "run")
    pin = f"start.sha256={read_json(tmp_path / 'run' / 'lineage.json')['sha256'][:16]}"
    assert started(parent, pin).hash == started(Path("elsewhere"), pin).hash != started(parent).hash
    assert started(parent).hash != started(Path("elsewhere")).hash
    assert started(parent, pin).hash != started(parent, pin, "start.weights=average").hash
    begun(started(parent, pin), tmp_path / "pinned")
    with pytest.raises(
        UserError, match=r"start\.sha256 records .* raw weights of the run in .*a0{16} there, [0-9a-f]{12}… here"
    ):
        begun(started(parent, "start.sha256=a0000000000000000"), tmp_path / "other")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["model.width=48"], r"do not fit this plan: model\.width: 32 there, 48 here"),
        (["model.rope_theta=100"], r"model\.rope_theta: 10000 there, 100 here"),
        (["text.buckets=32"], r"text\.buckets: 64 there, 32 here"),
        (["objective.kind=x-prediction"], r"objective\.kind: velocity there, x-prediction here"),
        (
            ["route.kind=sprint", "route.share=0.5", "route.first=1", "route.last=2"],
            r"\d+ missing: router\.\S+.* \(the settings route, route\.kind.* differ too\)",
        ),
    ],
)
def test_other_architectures_are_refused_by_name(
    parent: Path, tmp_path: Path, settings: list[str], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        train(started(parent, *settings), tmp_path / "run", Interrupt())
    assert not (tmp_path / "run" / "lineage.json").exists()


def test_what_is_no_trained_run_is_refused(parent: Path, tmp_path: Path) -> None:
    def refused(plan: Plan, message: str, folder: Path = tmp_path / "run") -> None:
        with pytest.raises(UserError, match=message):
            train(plan, folder, Interrupt())

    refused(started(tmp_path / "nowhere"), "there is no run in .*nowhere")
    (tmp_path / "empty").mkdir()
    refused(started(tmp_path / "empty"), "is not a run: plan.yaml is missing")
    write_plan(tmp_path / "empty", tiny_plan())
    refused(started(tmp_path / "empty"), "was not trained yet: it has no checkpoints")
    refused(started(tmp_path / "self"), "self is the folder of this run itself", tmp_path / "self")
    refused(tiny_plan("start.kind=arm", "start.name=other"), "arms exist only in a study")
    train(tiny_plan(), tmp_path / "plain", Interrupt())
    refused(
        started(tmp_path / "plain", "start.weights=average"), "has no average of its weights; use start.weights=raw"
    )
    damaged = shutil.copytree(parent, tmp_path / "damaged")
    state = damaged / "checkpoints" / "step-000000006" / "state.safetensors"
    state.write_bytes(state.read_bytes()[:-1] + b"x")
    refused(started(damaged), "step-000000006 is damaged: state.safetensors does not match")
    manifest = json.loads((state.parent / "manifest.json").read_text())
    assert manifest["sha256"], "the other run is left as it is"


def test_an_arms_run_must_be_whole_and_of_the_plan(parent: Path, tmp_path: Path) -> None:
    plan = tiny_plan(EMA)
    shutil.copytree(parent, tmp_path / plan.hash)
    arm = ("start.kind=arm", "start.name=other", f"start.plan={plan.hash}")
    assert begun(tiny_plan(*arm), tmp_path / "run").step == 0
    assert tiny_plan(*arm).hash == tiny_plan(*arm, "start.name=another").hash
    shutil.rmtree(tmp_path / plan.hash / "checkpoints" / "step-000000006")
    with pytest.raises(
        UserError, match=f"is at step 4 of 6 of the plan {plan.hash}.*finish the training of that run first"
    ):
        begun(tiny_plan(*arm), tmp_path / "again")


def _trained(plan: Plan, folder: Path) -> None:
    train(plan, folder, Interrupt())


def test_ranks_that_hold_pieces_begin_alike(parent: Path, tmp_path: Path) -> None:
    plan = started(parent, "train.steps=2")
    train(plan, tmp_path / "alone", Interrupt())
    run_ranks(2, _trained, started(parent, "train.steps=2", "run.distribution.kind=fsdp"), tmp_path / "pieces")
    alone, pieces = (RunRecord(tmp_path / name) for name in ("alone", "pieces"))
    assert read_json(alone.path / "lineage.json") == read_json(pieces.path / "lineage.json")
    for one, two in zip(alone.lines, pieces.lines, strict=True):
        assert one["loss"] == pytest.approx(two["loss"], rel=1e-5)


def test_another_frozen_text_encoder_in_the_same_place_is_refused(tmp_path: Path) -> None:
    reads = f"text={{kind: minilm, weights: {tmp_path / 'text'}, max_tokens: {MAX_TOKENS}}}"
    shutil.copytree(write_text_encoder("minilm"), tmp_path / "text")
    train(tiny_plan(reads), tmp_path / "first", Interrupt())
    begun(started(tmp_path / "first", reads), tmp_path / "same")
    begun(started(tmp_path / "first", reads, "text.max_tokens=12"), tmp_path / "shorter")
    shutil.copytree(tmp_path / "text", tmp_path / "moved")
    begun(started(tmp_path / "first", reads, f"text.weights={tmp_path / 'moved'}"), tmp_path / "elsewhere")
    shutil.rmtree(tmp_path / "text")
    shutil.copytree(write_text_encoder("minilm", seed=1), tmp_path / "text")
    for tokens in (MAX_TOKENS, 12):
        with pytest.raises(UserError, match=r"first/loaded.json records another identity of 'text' "):
            begun(started(tmp_path / "first", reads, f"text.max_tokens={tokens}"), tmp_path / "other")
    moved = f"text.weights={tmp_path / 'moved'}"
    begun(started(tmp_path / "first", reads, moved, "text.max_tokens=12"), tmp_path / "both")
