"""Damage, full disks, retention and completeness of checkpoints, with controls that show what each guard is for."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.edit_checked import edit_json
from tests.fault.promises import Promise
from tests.full_disk import disk_of
from tests.tiny import tiny_plan
from tintype.errors import UserError
from tintype.plan import Plan
from tintype.runtime import fault, files
from tintype.runtime.interrupt import Interrupt
from tintype.train import checkpoint, folder
from tintype.train.folder import RunFolder
from tintype.train.loop import train
from tintype.train.record import RunRecord
from tintype.train.session import build_session
from tintype.train.state import new_state

PLAN = tiny_plan(techniques=["ema"])
FILES = ("state.safetensors", "state.json", "manifest.json")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("finished") / "run"
    train(PLAN, made, Interrupt())
    return made


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


@pytest.mark.promise(4)
@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("share", [0.0, 0.37, 0.8, 1.0])
def test_one_flipped_bit_is_found_and_the_checkpoint_before_is_used(run: Path, file: str, share: float) -> None:
    """Flip a bit of each file of the newest checkpoint; training resumes from the one before, to the same weights."""
    expected = final_digest(run)
    flip_bit(newest(run) / file, share)
    outcome = train(PLAN, run, Interrupt())
    assert outcome.finished and not outcome.already_done
    assert final_digest(run) == expected
    assert [event["event"] for event in RunRecord(run).events] == ["damaged-checkpoint"]
    assert list((run / "checkpoints").glob("damaged-0-*"))


@pytest.mark.promise(4)
@pytest.mark.parametrize("file", FILES)
def test_a_truncated_or_missing_file_is_found(run: Path, file: str) -> None:
    """Cut a file of the newest checkpoint, then delete it; training resumes from the one before."""
    expected = final_digest(run)
    path = newest(run) / file
    path.write_bytes(path.read_bytes()[:-7])
    train(PLAN, run, Interrupt())
    (newest(run) / file).unlink()
    train(PLAN, run, Interrupt())
    assert final_digest(run) == expected


def with_manifest(path: Path, change: dict[str, str | None]) -> Path:
    """The checkpoint with some names added to its manifest, or taken away."""

    def rename(content: dict[str, Any]) -> None:
        wanted = content["sha256"] | change
        content["sha256"] = {name: digest for name, digest in wanted.items() if digest is not None}

    edit_json(path / "manifest.json", rename)
    return path


@pytest.mark.parametrize("name", ["../../plan.yaml", "notes.txt", "shard-1/../state.safetensors"])
def test_a_manifest_cannot_name_other_files_than_those_of_a_checkpoint(run: Path, name: str) -> None:
    """Though their checksums are right."""
    (newest(run) / "notes.txt").write_text("")
    (newest(run) / "shard-1").mkdir()
    right = hashlib.sha256((newest(run) / name).read_bytes()).hexdigest()
    with pytest.raises(checkpoint.DamagedError, match="does not list the files"):
        checkpoint.read(with_manifest(newest(run), {name: right}))


@pytest.mark.parametrize("file", ["state.json", "state.safetensors"])
def test_a_file_that_the_manifest_leaves_out_is_not_believed(run: Path, file: str) -> None:
    with pytest.raises(checkpoint.DamagedError, match="does not list the files"):
        checkpoint.read(with_manifest(newest(run), {file: None}))


@pytest.mark.promise(4, control="checksums of checkpoints off")
def test_without_checksums_a_flipped_bit_is_not_seen(run: Path) -> None:
    """Flip a bit of the tensors' file and load it by safetensors alone."""
    path = newest(run) / "state.safetensors"
    before = {name: tensor.clone() for name, tensor in load_file(path).items()}  # the loaded ones are mapped
    flip_bit(path, 0.8)
    after = load_file(path)
    assert any(not torch.equal(before[name], after[name]) for name in before)


@pytest.mark.promise(4)
def test_when_all_are_damaged_training_starts_again_and_logs_it(run: Path) -> None:
    """Damage every checkpoint of a run; training starts from step 0 and ends with the same weights."""
    expected = final_digest(run)
    for step in checkpoint.steps(run / "checkpoints"):
        flip_bit(checkpoint.folder_of(run / "checkpoints", step) / "state.safetensors", 0.5)
    train(PLAN, run, Interrupt())
    assert final_digest(run) == expected
    assert len(RunRecord(run).events) == 2


@pytest.mark.promise(6)
def test_two_checkpoints_are_kept_and_fewer_cannot_be_asked_for(run: Path) -> None:
    """Count the checkpoints of a run, and ask for one only."""
    assert checkpoint.steps(run / "checkpoints") == [4, 6]
    with pytest.raises(UserError, match="keep_checkpoints"):
        tiny_plan("run.keep_checkpoints=1")


@pytest.mark.promise(6)
def test_pruning_after_damage_leaves_a_good_checkpoint(promise: Promise, run: Path) -> None:
    """Damage the newest checkpoint while training holds the state, save the next two steps, and prune."""
    state = new_state(build_session(PLAN))
    checkpoint.restore(run / "checkpoints", state, lambda path, reason: None)
    for file in FILES:
        for damage in ("flipped", "cut", "deleted"):
            path = checkpoint.folder_of(run / "checkpoints", state.step) / file
            if damage == "flipped":
                flip_bit(path, 0.6)
            elif damage == "cut":
                path.write_bytes(path.read_bytes()[:-7])
            else:
                path.unlink()
            state.step += 1
            checkpoint.save(run / "checkpoints", state, 2)
            promise.count(bool(good(run)), f"{file} {damage}")
            state.step += 1
            checkpoint.save(run / "checkpoints", state, 2)
            promise.count(len(good(run)) == 2, f"{file} {damage}, after two saves")


class _KilledError(BaseException):
    """Ends the work where it stands."""


@pytest.mark.promise(6)
@pytest.mark.parametrize("removed", [0, 1, 3, 4])
def test_a_kill_while_pruning_leaves_a_good_checkpoint(
    run: Path, removed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """End the removal of an old checkpoint after some of its files; the next save removes the rest."""
    state = new_state(build_session(PLAN))
    checkpoint.restore(run / "checkpoints", state, lambda path, reason: None)
    whole_tree = shutil.rmtree

    def interrupted(path: Path, ignore_errors: bool = False) -> None:
        for file in sorted(path.iterdir())[:removed]:
            file.unlink()
        raise _KilledError

    state.step += 1
    monkeypatch.setattr(shutil, "rmtree", interrupted)
    with pytest.raises(_KilledError):
        checkpoint.save(run / "checkpoints", state, 2)
    monkeypatch.setattr(shutil, "rmtree", whole_tree)
    assert good(run)[-2:] == [6, 7]
    assert checkpoint.restore(run / "checkpoints", new_state(build_session(PLAN)), lambda path, reason: None)
    state.step += 1
    checkpoint.save(run / "checkpoints", state, 2)
    assert checkpoint.steps(run / "checkpoints") == good(run) == [7, 8]


@pytest.mark.promise(6, control="pruning before the new checkpoint is whole")
def test_pruning_first_loses_all_on_a_full_disk(promise: Promise, run: Path) -> None:
    """Remove the old checkpoints before a save that fails."""
    state = new_state(build_session(PLAN))
    checkpoint.restore(run / "checkpoints", state, lambda path, reason: None)
    checkpoint.remove_after(run / "checkpoints", 0)
    state.step += 1
    with disk_of(4096), pytest.raises(UserError):
        checkpoint.save(run / "checkpoints", state, 2)
    promise.count(bool(good(run)), "no checkpoint is left")


def good(run: Path) -> list[int]:
    """The steps of the checkpoints that are whole."""
    found = []
    for step in checkpoint.steps(run / "checkpoints"):
        with suppress(checkpoint.DamagedError):
            checkpoint.verify(checkpoint.folder_of(run / "checkpoints", step))
            found.append(step)
    return found


def test_only_the_newest_damaged_checkpoints_are_kept(run: Path) -> None:
    for _ in range(4):
        flip_bit(newest(run) / "state.safetensors", 0.5)
        train(PLAN, run, Interrupt())
    kept = sorted(path.name for path in (run / "checkpoints").glob("damaged-*"))
    assert kept == ["damaged-2-step-000000006", "damaged-3-step-000000006"]


def leftovers(run: Path) -> list[str]:
    return [path.name for path in run.rglob("*") if ".writing" in path.name]


SIZES = (64, 600, 1500, 4096, 20_000, 300_000, 1_000_000)
"""From less than the smallest file to a part of the tensors."""


@pytest.mark.promise(5)
def test_a_full_disk_loses_nothing(promise: Promise, run: Path, tmp_path: Path) -> None:
    """Train a last step with files limited to several sizes; what was good loads, and with room it ends the same."""
    expected = final_digest(run)
    shutil.rmtree(newest(run))
    for size in SIZES:
        tried = Path(shutil.copytree(run, tmp_path / f"limit-{size}"))
        with disk_of(size), pytest.raises((UserError, OSError)) as stopped:
            train(PLAN, tried, Interrupt())
        place = getattr(stopped.value, "filename", None) or str(stopped.value)
        promise.count(str(tried) in place, f"{size}: the message names no path: {stopped.value}")
        promise.count(not leftovers(tried), f"{size}: left {leftovers(tried)}")
        promise.count(good(tried)[-1:] == [4], f"{size}: the checkpoint of step 4 is not whole")
        train(PLAN, tried, Interrupt())
        same_lines = [line["step"] for line in RunRecord(tried).lines] == [1, 2, 3, 4, 5, 6]
        promise.count(final_digest(tried) == expected and same_lines, f"{size}: it ends otherwise")


@pytest.mark.promise(5)
@pytest.mark.parametrize("name", ["metrics.jsonl", "events.jsonl"])
def test_a_log_on_a_full_disk_is_named(run: Path, name: str) -> None:
    """Let a log become /dev/full before a line is written, then give it room: the run ends with the same weights."""
    expected, log, aside = final_digest(run), run / name, run / "aside"
    flip_bit(newest(run) / "state.safetensors", 0.5)  # which is an event

    def fill_disk() -> None:
        log.rename(aside)
        log.symlink_to("/dev/full")

    if name == "events.jsonl":
        log.touch()
        fill_disk()
    else:
        fault.arm("log.write", fill_disk)
    with pytest.raises(UserError, match=rf"cannot write to {re.escape(str(log))}: No space left on device"):
        train(PLAN, run, Interrupt())
    fault.disarm()
    aside.replace(log)
    train(PLAN, run, Interrupt())
    assert final_digest(run) == expected
    assert [line["step"] for line in RunRecord(run).lines] == [1, 2, 3, 4, 5, 6]


@pytest.mark.promise(5, control="what is half written is not removed")
def test_without_removal_a_full_disk_stays_full(promise: Promise, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Train a last step with files limited in size, and leave temporary folders where they are."""
    shutil.rmtree(newest(run))
    monkeypatch.setattr(shutil, "rmtree", lambda path, ignore_errors=False: None)
    with disk_of(20_000), pytest.raises(UserError):
        train(PLAN, run, Interrupt())
    promise.count(not leftovers(run), "temporary folders are left")


def test_the_logs_are_on_the_disk_before_the_checkpoint_that_vouches_for_them(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushed: list[Path] = []

    def noted(path: Path) -> None:
        files.flush(path)
        flushed.append(path)

    monkeypatch.setattr(folder, "flush", noted)
    monkeypatch.setattr(checkpoint, "flush", noted)
    shutil.rmtree(newest(run))
    train(PLAN, run, Interrupt())
    names = [path.name for path in flushed]
    assert names.index("metrics.jsonl") < names.index("state.safetensors") < names.index("checkpoints")


KILLS = [("step.backward", 2), ("log.write", 3), ("save.begin", 1), ("save.rename", 1), ("save.prune", 2)]


def kill_and_resume(run: Path, plan: Plan) -> list[int]:
    """Stop a run five times, each with a line cut short, and return the steps of its lines at the end."""
    for point, occurrence in KILLS:
        left = [occurrence]

        def die(left: list[int] = left) -> None:
            left[0] -= 1
            if not left[0]:
                raise _KilledError

        fault.arm(point, die)
        with pytest.raises(_KilledError):
            train(plan, run, Interrupt())
        fault.disarm()
        with (run / "metrics.jsonl").open("a") as file:
            file.write('{"step": 99, "lo')
    train(plan, run, Interrupt())
    return [json.loads(line)["step"] for line in (run / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.promise(16)
def test_a_run_stopped_five_times_has_one_line_for_each_step(promise: Promise, tmp_path: Path) -> None:
    """Stop a run five times in steps, logs and saves, each with a line cut short, and count its lines."""
    plan = tiny_plan("train.steps=14")
    found = kill_and_resume(tmp_path / "run", plan)
    for step in range(1, 15):
        promise.count(found.count(step) == 1, f"step {step}: {found.count(step)} lines")
    promise.count(found == sorted(found) and len(RunRecord(tmp_path / "run").lines) == 14, "order")


@pytest.mark.promise(16, control="the log is not cut back to the checkpoint")
def test_without_cutting_the_log_steps_are_logged_twice(
    promise: Promise, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same, where a resumed run keeps the lines of steps that it does again."""
    monkeypatch.setattr(RunFolder, "forget_after", lambda self, step: None)
    found = kill_and_resume(tmp_path / "run", tiny_plan("train.steps=14"))
    for step in range(1, 15):
        promise.count(found.count(step) == 1, f"step {step}")


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
    monkeypatch.setattr("tintype.runtime.locks._WAIT_S", 0.0)
    folder = RunFolder(run)
    with folder.claim(PLAN), pytest.raises(UserError, match=rf"another process \({os.getpid()}\) is writing to "):
        train(PLAN, run, Interrupt())


def test_a_folder_without_write_permission(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(UserError, match=r"cannot write to .*choose another --out"):
        train(PLAN, tmp_path / "file" / "run", Interrupt())


def test_a_folder_with_other_files_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("precious")
    with pytest.raises(UserError, match="contains other files"):
        train(PLAN, tmp_path, Interrupt())
    assert (tmp_path / "thesis.tex").read_text() == "precious"


@pytest.mark.promise(16)
def test_a_metrics_line_cut_short_is_dropped(run: Path) -> None:
    """Cut a line of the log short, as a kill does, and resume."""
    file = run / "metrics.jsonl"
    whole = file.read_text()
    shutil.rmtree(newest(run))
    file.write_text(whole + '{"step": 7, "lo')
    train(PLAN, run, Interrupt())
    assert [line["step"] for line in RunRecord(run).lines] == [1, 2, 3, 4, 5, 6]


def lose_lines(log: Path, damage: str) -> None:
    lines = log.read_text().splitlines(keepends=True)
    if damage == "a line":
        log.write_text("".join(lines[:2] + lines[3:]))
    elif damage == "its end":
        log.write_text("".join(lines)[:-30])
    else:
        log.unlink()


@pytest.mark.promise(4)
@pytest.mark.parametrize(("damage", "kept"), [("a line", 5), ("its end", 5), ("all", 0)])
def test_a_log_that_lost_lines_is_refused_until_training_has_logged_the_loss(run: Path, damage: str, kept: int) -> None:
    """Take a line, the end, or all of a finished run's log; reading refuses, training logs the loss once."""
    lose_lines(run / "metrics.jsonl", damage)
    with pytest.raises(UserError, match=r"metrics.jsonl is damaged .* lost.*`tintype train .*plan.yaml --out"):
        list(RunRecord(run).lines)
    for _ in range(2):
        assert train(PLAN, run, Interrupt()).already_done
    assert len(RunRecord(run).lines) == kept
    (event,) = RunRecord(run).events
    assert (event["event"], event["file"]) == ("damaged-file", "metrics.jsonl")


@pytest.mark.promise(4)
@pytest.mark.parametrize("name", ["latents.json", "environment.json", "optimizer.json"])
@pytest.mark.parametrize("deleted", [True, False])
def test_a_small_file_is_restored_from_a_checkpoint(run: Path, name: str, deleted: bool) -> None:
    """Delete or change a small file of a finished run; reading refuses it, training restores it from a checkpoint."""
    file = run / name
    before = file.read_bytes()
    file.unlink() if deleted else flip_bit(file, 0.4)
    with pytest.raises(UserError, match=rf"{name} is damaged .*`tintype train .* restores it from a checkpoint"):
        RunRecord(run).read(name)
    assert train(PLAN, run, Interrupt()).already_done
    assert file.read_bytes() == before
    assert [event["file"] for event in RunRecord(run).events] == [name]


@pytest.fixture(scope="module")
def other_seed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of the same plan with another seed."""
    path = tmp_path_factory.mktemp("other") / "run"
    train(Plan(**{**dict(PLAN), "seed": 1}), path, Interrupt())
    return path


@pytest.mark.promise(31)
@pytest.mark.parametrize("step", [4, 6])
def test_a_checkpoint_of_another_seed_or_step_is_set_aside(run: Path, other_seed: Path, step: int) -> None:
    """Put a checkpoint of another seed, or of the step before, in the place of the last; the run ends as it did."""
    expected = final_digest(run)
    source = other_seed if step == 6 else run
    taken = checkpoint.folder_of(source / "checkpoints", step)
    shutil.copytree(taken, run / "taken")
    shutil.rmtree(newest(run))
    (run / "taken").rename(newest(run) if step == 6 else checkpoint.folder_of(run / "checkpoints", 6))
    assert checkpoint.newest_whole_step(run / "checkpoints") is None
    train(PLAN, run, Interrupt())
    assert final_digest(run) == expected
    (event,) = RunRecord(run).events
    assert event["event"] == "damaged-checkpoint" and f"step-{step:09d}/manifest.json of the run" in event["reason"]


@pytest.mark.promise(31)
@pytest.mark.parametrize("name", ["metrics.jsonl", "latents.json", "environment.json", "optimizer.json"])
def test_a_small_file_of_another_seed_is_refused_and_made_good(run: Path, other_seed: Path, name: str) -> None:
    """Put a log or a small file of another seed into a run; reading refuses it, training sets it aside."""
    shutil.copyfile(other_seed / name, run / name)
    before = RunRecord(run)
    with pytest.raises(UserError, match=rf"{name} is damaged \(its seal says .*`tintype train"):
        list(before.lines) if name == "metrics.jsonl" else before.read(name)
    train(PLAN, run, Interrupt())
    record = RunRecord(run)
    (event,) = record.events
    assert event["event"] == "damaged-file" and event["file"] == name
    assert record.lines == [] if name == "metrics.jsonl" else record.read(name)


@pytest.mark.promise(4)
@pytest.mark.parametrize("share", [0.1, 0.5, 0.9, None])
def test_damage_to_the_records_of_a_checkpoint_is_noticed_and_made_good(run: Path, share: float | None) -> None:
    """Flip a bit of a checkpoint's records.json, or delete it: reading refuses the run, training writes it again."""
    file = newest(run) / "records.json"
    before = file.read_bytes()
    flip_bit(file, share) if share is not None else file.unlink()
    with pytest.raises(UserError, match=r"records.json is damaged .*`tintype train .* writes it again"):
        list(RunRecord(run).lines)
    train(PLAN, run, Interrupt())
    assert [(event["event"], event["file"]) for event in RunRecord(run).events] == [
        ("damaged-file", "checkpoints/step-000000006/records.json")
    ]
    found, expected = json.loads(file.read_text()), json.loads(before)
    assert found["files"] == expected["files"] and found["lines"]["metrics.jsonl"] == 6


def test_a_run_is_read_and_resumed_under_another_name_and_with_other_housekeeping(run: Path, tmp_path: Path) -> None:
    moved = Path(shutil.copytree(run, tmp_path / "study" / "runs" / "renamed"))
    expected = final_digest(run)
    shutil.rmtree(newest(moved))
    other = Plan(**{**dict(PLAN), "run": PLAN.run.model_copy(update={"log_every_steps": 1, "save_every_steps": 3})})
    assert train(other, moved, Interrupt()).finished and final_digest(moved) == expected
    assert not RunRecord(moved).events


def test_another_plan_may_be_tried_in_a_folder_where_none_was_trained(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    with folder.claim(PLAN):
        folder.write_record("environment.json", {"plan": PLAN.hash})
        folder.log_event("warning", 0, text="of the first plan")
    other = Plan(**{**dict(PLAN), "seed": 1})
    with RunFolder(tmp_path).claim(other):
        assert files.run_of(tmp_path) == other.hash and not RunRecord(tmp_path).events
        assert RunRecord(tmp_path).read("environment.json") == {}


@pytest.mark.parametrize("umask", [0o022, 0o077, 0o002])
def test_every_file_of_a_run_follows_the_umask(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        plan = tiny_plan("train.steps=2", "run.save=background", techniques=["power-ema:snapshots=1"])
        train(plan, tmp_path / "run", Interrupt(), keep_at=[1])
    finally:
        os.umask(before)
    modes = {path: path.stat().st_mode & 0o777 for path in (tmp_path / "run").rglob("*")}
    assert {path.parent.parent.name for path in modes if path.name == "state.safetensors"} == {
        *("checkpoints", "snapshots", "kept")
    }
    wrong = {
        str(path): oct(mode) for path, mode in modes.items() if mode != (0o777 if path.is_dir() else 0o666) & ~umask
    }
    assert not wrong
