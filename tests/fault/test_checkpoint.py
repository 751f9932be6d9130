"""Damage, full disks, retention and completeness of checkpoints, with controls that show what each guard is for."""

from __future__ import annotations

import hashlib
import json
import os
import resource
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.tiny import tiny_plan
from tintype.errors import UserError
from tintype.train import checkpoint
from tintype.train.folder import RunFolder
from tintype.train.interrupt import Interrupt
from tintype.train.loop import train
from tintype.train.parts import build_parts
from tintype.train.state import new_state

PLAN = tiny_plan(techniques=["ema"])
FILES = ("state.safetensors", "state.json", "manifest.json")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("finished") / "run"
    train(PLAN, folder, Interrupt())
    return folder


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "run"))


def newest(run: Path) -> Path:
    return run / "checkpoints" / "step-000000006"


def final_digest(run: Path) -> Any:
    return json.loads((newest(run) / "manifest.json").read_text())


def flip_bit(path: Path, share: float) -> None:
    content = bytearray(path.read_bytes())
    content[int(share * (len(content) - 1))] ^= 1 << 2
    path.write_bytes(content)


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("share", [0.0, 0.37, 0.8, 1.0])
def test_one_flipped_bit_is_found_and_the_checkpoint_before_is_used(run: Path, file: str, share: float) -> None:
    expected = final_digest(run)
    flip_bit(newest(run) / file, share)
    outcome = train(PLAN, run, Interrupt())
    assert outcome.finished and not outcome.already_done
    assert final_digest(run) == expected
    assert [event["event"] for event in RunFolder(run).events()] == ["damaged-checkpoint"]
    assert list((run / "checkpoints").glob("damaged-0-*"))


@pytest.mark.parametrize("file", FILES)
def test_a_truncated_or_missing_file_is_found(run: Path, file: str) -> None:
    expected = final_digest(run)
    path = newest(run) / file
    path.write_bytes(path.read_bytes()[:-7])
    train(PLAN, run, Interrupt())
    (newest(run) / file).unlink()
    train(PLAN, run, Interrupt())
    assert final_digest(run) == expected


def with_manifest(path: Path, change: dict[str, str | None]) -> Path:
    """The checkpoint with some names added to its manifest, or taken away."""
    wanted = json.loads((path / "manifest.json").read_text())["sha256"] | change
    kept = {name: digest for name, digest in wanted.items() if digest is not None}
    (path / "manifest.json").write_text(json.dumps({"sha256": kept}))
    return path


@pytest.mark.parametrize("name", ["../../plan.yaml", "notes.txt", "shard-1/../state.safetensors"])
def test_a_manifest_cannot_name_other_files_than_those_of_a_checkpoint(run: Path, name: str) -> None:
    """Though their checksums are right."""
    (newest(run) / "notes.txt").write_text("")
    (newest(run) / "shard-1").mkdir()
    right = hashlib.sha256((newest(run) / name).read_bytes()).hexdigest()
    with pytest.raises(checkpoint.DamagedError, match="does not name the files"):
        checkpoint.read(with_manifest(newest(run), {name: right}))


@pytest.mark.parametrize("file", ["state.json", "state.safetensors"])
def test_a_file_that_the_manifest_leaves_out_is_not_believed(run: Path, file: str) -> None:
    with pytest.raises(checkpoint.DamagedError, match="does not name the files"):
        checkpoint.read(with_manifest(newest(run), {file: None}))


def test_control_without_checksums_a_flipped_bit_goes_unseen(run: Path) -> None:
    path = newest(run) / "state.safetensors"
    before = {name: tensor.clone() for name, tensor in load_file(path).items()}  # the loaded ones are mapped
    flip_bit(path, 0.8)
    after = load_file(path)
    assert any(not torch.equal(before[name], after[name]) for name in before)


def test_when_all_are_damaged_training_starts_again_and_says_so(run: Path) -> None:
    expected = final_digest(run)
    for step in checkpoint.steps(run / "checkpoints"):
        flip_bit(checkpoint.folder_of(run / "checkpoints", step) / "state.safetensors", 0.5)
    train(PLAN, run, Interrupt())
    assert final_digest(run) == expected
    assert len(RunFolder(run).events()) == 2


def test_two_checkpoints_are_kept_and_fewer_cannot_be_asked_for(run: Path) -> None:
    assert checkpoint.steps(run / "checkpoints") == [4, 6]
    with pytest.raises(UserError, match="keep_checkpoints"):
        tiny_plan("run.keep_checkpoints=1")


def test_a_full_disk_loses_nothing(run: Path, tmp_path: Path) -> None:
    """A limit on file size stands in for the full disk: the write fails in the middle of the state file."""
    state = new_state(build_parts(PLAN))
    checkpoint.restore(run / "checkpoints", state, lambda path, reason: None)
    state.step += 1
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        with pytest.raises(UserError, match=r"cannot write the checkpoint of step 7 .*step 6 is intact"):
            checkpoint.save(run / "checkpoints", state, 2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)
    assert sorted(path.name for path in (run / "checkpoints").iterdir()) == ["step-000000004", "step-000000006"]
    assert checkpoint.restore(run / "checkpoints", new_state(build_parts(PLAN)), lambda path, reason: None)


@pytest.mark.promise(23)
def test_an_earlier_format_is_refused_by_name(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Resume a run of an earlier format than the one that is read."""
    monkeypatch.setattr(checkpoint, "FORMAT", 2)
    with pytest.raises(UserError, match="format 1; this version of tintype reads format 2; finish or export"):
        train(PLAN, run, Interrupt())


def test_another_plan_is_refused_and_nothing_is_touched(run: Path) -> None:
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    with pytest.raises(UserError, match=r"another plan \(optimizer.lr: 0.001 there, 0.1 here\)"):
        train(tiny_plan("optimizer.lr=0.1", techniques=["ema"]), run, Interrupt())
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before


def test_housekeeping_may_change_when_a_run_goes_on(run: Path) -> None:
    changed = tiny_plan("run.save_every_steps=3", techniques=["ema"])
    assert train(changed, run, Interrupt()).already_done


def test_two_processes_cannot_train_in_one_folder(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tintype.train.folder._WAIT_S", 0.0)
    folder = RunFolder(run)
    with folder.claim(PLAN), pytest.raises(UserError, match=rf"another process \({os.getpid()}\) works in "):
        train(PLAN, run, Interrupt())


def test_a_folder_without_write_permission(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(UserError, match=r"cannot write to .*choose another --out"):
        train(PLAN, tmp_path / "file" / "run", Interrupt())


def test_a_folder_with_other_files_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("precious")
    with pytest.raises(UserError, match="holds other files"):
        train(PLAN, tmp_path, Interrupt())
    assert (tmp_path / "thesis.tex").read_text() == "precious"


def test_a_metrics_line_cut_short_is_dropped(run: Path) -> None:
    file = run / "metrics.jsonl"
    whole = file.read_text()
    shutil.rmtree(newest(run))
    file.write_text(whole + '{"step": 7, "lo')
    train(PLAN, run, Interrupt())
    assert [line["step"] for line in RunFolder(run).metrics()] == [1, 2, 3, 4, 5, 6]
