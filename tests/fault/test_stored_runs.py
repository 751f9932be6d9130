"""Runs of every format that was ever written (tests/stored_runs): read as they were meant, or refused clearly."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.fault.promises import Promise
from tests.stored_runs import write as stored
from tintype.errors import UserError
from tintype.evaluation.results import read_result
from tintype.evaluation.run import evaluate
from tintype.plan import plan_from_folder
from tintype.runtime import files
from tintype.runtime.interrupt import Interrupt
from tintype.train import checkpoint
from tintype.train.load import load_run
from tintype.train.loop import train
from tintype.train.reconstruct import reconstruction
from tintype.train.record import RunRecord
from tintype.train.session import build_session
from tintype.train.state import new_state

SETS = stored.sets()
RUNS = [path for one in SETS for path in sorted(one.iterdir()) if path.name in stored.KINDS]
EXPORTS = [one / stored.EXPORT for one in SETS if (one / stored.EXPORT).is_dir()]
RESULTS = [file for run in RUNS for file in run.glob("evaluation/*/result.json")]
NEWER = {"format": checkpoint.FORMAT + 1, "files": [{"name": "weights.bin", "blake3": "0" * 64}]}


def words(path: Path) -> str:
    return str(path.relative_to(stored.ROOT))


def formats(path: Path) -> dict[str, int]:
    found: dict[str, int] = json.loads((path / stored.FORMATS).read_text(encoding="utf-8"))
    return found


def test_the_formats_of_this_version_are_stored() -> None:
    """A format that changes needs a new set: `python -m tests.stored_runs.write`."""
    newest = {name: number for name, number in formats(SETS[-1]).items() if name != "tintype"}
    assert newest == stored.current_formats(), "run `python -m tests.stored_runs.write` and commit the new folder"
    assert {path.name for path in RUNS} == set(stored.KINDS) and EXPORTS and RESULTS


@pytest.mark.promise(23)
def test_stored_runs_load_the_state_that_their_files_hold(promise: Promise) -> None:
    """Load each stored run, compare every tensor with its file, and the weights and image with those of its day."""
    for run in RUNS:
        if formats(run.parent)["checkpoint"] != checkpoint.FORMAT:
            with pytest.raises(UserError, match=r"was written in format \d+; this version of tintype reads format"):
                load_run(run)
            promise.count(True, run)
            continue
        promise.count(_same_state(run) and _as_expected(run), words(run))
    for export in EXPORTS:
        promise.count(_as_expected(export), words(export))


def _same_state(run: Path) -> bool:
    state = new_state(build_session(plan_from_folder(run)))
    assert checkpoint.restore(run / "checkpoints", state, lambda path, reason: pytest.fail(reason))
    held = state.tensors()
    files = sorted(checkpoint.folder_of(run / "checkpoints", stored.STEP).glob("*.safetensors"))
    if len(files) > 1:  # in shards: each is a run of rows
        parts: dict[str, list[torch.Tensor]] = {}
        for file in files:
            for name, tensor in load_file(file).items():
                parts.setdefault(name, []).append(tensor)
        return held.keys() == parts.keys() and all(
            torch.equal(held[name], torch.cat(some) if len(some) > 1 else some[0]) for name, some in parts.items()
        )
    there = load_file(files[0])
    return held.keys() == there.keys() and all(torch.equal(held[name], there[name]) for name in there)


def _as_expected(path: Path) -> bool:
    """Whether sampling loads the same weights, and makes the same image up to rounding to a grey level."""
    expected = json.loads((path.parent / f"{path.name}.{stored.EXPECTED}").read_text(encoding="utf-8"))
    weights, image = stored.loaded(path)
    apart = [abs(one - other) for one, other in zip(image, expected["image"], strict=True)]
    return bool(weights == expected["weights"] and max(apart) <= 1)


@pytest.mark.promise(23)
def test_stored_runs_resume_to_their_end(promise: Promise, tmp_path: Path) -> None:
    """Train a copy of each stored run to its last step, under the plan that it was begun with."""
    for run in promise.choose([run for run in RUNS if formats(run.parent)["checkpoint"] == checkpoint.FORMAT], short=4):
        copy = Path(shutil.copytree(run, tmp_path / run.parent.name / run.name))
        plan = plan_from_folder(copy)
        RunRecord(copy).check_plan()
        outcome = train(plan, copy, Interrupt())
        steps = [line["step"] for line in RunRecord(copy).lines]
        promise.count(outcome.finished and not outcome.already_done and steps == [1, 2, 3, 4], words(run))


@pytest.mark.promise(23)
def test_stored_results_snapshots_and_exports_are_read_or_refused(promise: Promise, tmp_path: Path) -> None:
    """Read each stored result, score its run anew, make an average of stored snapshots, refuse to train an export."""
    for file in RESULTS:
        try:
            promise.count(read_result(file).step == stored.STEP, words(file))
        except UserError as error:
            current = formats(file.parents[3])["result"] == stored.current_formats()["result"]
            promise.count(not current and "to score the run again" in str(error), f"{words(file)}: {error}")
    run = Path(shutil.copytree(SETS[-1] / stored.SCORED, tmp_path / "run"))
    shutil.rmtree(run / "evaluation")
    promise.count(evaluate(run, stored.PROTOCOL).step == stored.STEP, "scored anew")
    for run in [run for run in RUNS if run.name == "power-ema"]:
        average = reconstruction(run, plan_from_folder(run).ema.lengths[0])  # type: ignore[union-attr]
        promise.count(load_run(run, average=average)[1] == stored.STEP, words(run))
    for export in EXPORTS:
        copy = Path(shutil.copytree(export, tmp_path / "exports" / export.parent.name))
        with pytest.raises(UserError, match="export"):
            train(plan_from_folder(copy), copy, Interrupt())
        promise.count(True, words(export))


def of_the_future(tmp_path: Path, manifest: dict[str, object]) -> Path:
    """A run whose newest checkpoint is of a format that this version does not know."""
    run = Path(shutil.copytree(SETS[-1] / stored.SCORED, tmp_path / f"run-{len(manifest)}"))
    newer = checkpoint.folder_of(run / "checkpoints", stored.STEP + 1)
    newer.mkdir()
    (newer / "weights.bin").write_bytes(b"\0" * 8)
    (newer / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    return run


def contents(run: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in run.rglob("*") if path.is_file() and path.name != ".lock"}


@pytest.mark.promise(23)
def test_a_checkpoint_of_a_later_format_is_refused_and_left_alone(promise: Promise, tmp_path: Path) -> None:
    """Resume, load and score a run whose newest checkpoint has a later format, other files and another manifest."""
    run = of_the_future(tmp_path, NEWER)
    before = contents(run)
    number = checkpoint.FORMAT
    wanted = f"was written in format {number + 1}; this version of tintype reads format {number}; install a newer"
    for use in (
        lambda: train(plan_from_folder(run), run, Interrupt()),
        lambda: load_run(run),
        lambda: evaluate(run, stored.PROTOCOL),
    ):
        with pytest.raises(UserError, match=wanted):
            use()
        promise.count(contents(run).keys() == before.keys(), "files changed")


@pytest.mark.promise(23, control="the format is not looked at first")
def test_without_its_format_a_later_checkpoint_counts_as_damaged(
    promise: Promise, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same, by a reader that looks for its own files first: it moves the checkpoint aside."""
    monkeypatch.setattr(files, "_check_format", lambda *args, **names: None)
    run = of_the_future(tmp_path, NEWER)
    train(plan_from_folder(run), run, Interrupt())
    promise.count(not list((run / "checkpoints").glob("damaged-*")), "moved aside and trained again")


def test_a_flipped_bit_in_the_format_is_damage_and_not_another_format(tmp_path: Path) -> None:
    run = Path(shutil.copytree(SETS[-1] / stored.SCORED, tmp_path / "run"))
    manifest = checkpoint.folder_of(run / "checkpoints", stored.STEP) / "manifest.json"
    content = {**json.loads(manifest.read_text(encoding="utf-8")), "format": 5}
    for value in (content, {**content, "format": "1"}):
        manifest.write_text(json.dumps(value), encoding="utf-8")
        with pytest.raises(checkpoint.DamagedError, match=r"manifest.json: the file does not match its checksum"):
            checkpoint.read(manifest.parent)
