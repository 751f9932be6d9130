"""Damage to any file of a run and of a study: it is refused, or made good and logged, and never silently read."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import re
import shutil
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.fault.promises import Promise
from tests.full_disk import disk_of
from tests.studies import by_command
from tests.tiny import tiny_plan
from tintype.errors import UserError
from tintype.evaluation.protocol import Protocol
from tintype.evaluation.run import evaluate
from tintype.runtime import files
from tintype.runtime.interrupt import Interrupt
from tintype.study import lab, runner
from tintype.study.results import SPEED, StudyResults, read_results_file
from tintype.study.runner import Message, Task
from tintype.study.study import load_study
from tintype.train import checkpoint
from tintype.train.load import load_run
from tintype.train.reconstruct import reconstruction

STUDY = """
question: Does a second stage help?
recipe: PLAN
seeds: [0]
arms: [{name: later, techniques: ["sft:from=arm:baseline,steps=2"]}]
evaluation:
  count: 8
  reference_count: 8
  validation_count: 2
  metrics: [fd]
  sampler: {steps: 1}
  also: []
"""
COMMAND = ["tintype", "ablate", "study.yaml"]


def run_in_this_process(
    tasks: Sequence[Task], protocol: Protocol, jobs: int, interrupt: Interrupt, on_message: Callable[[Message], None]
) -> dict[tuple[str, int], Message]:
    """The work of the workers, without their processes; a run that fails ends it with its error."""
    last = {}
    for task in tasks:
        message = runner.run_task(task, protocol, Interrupt(), lambda message: None)
        runner.note_failure(task, message)
        if message.state != "done":
            raise (RuntimeError if "Traceback" in message.text else UserError)(message.text)
        last[message.key] = message
    return last


@pytest.fixture(scope="module")
def inline() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lab, "run_tasks", run_in_this_process)
        yield


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, inline: None) -> Path:
    """A finished study of two runs, one started from the other, with snapshots and events."""
    folder = tmp_path_factory.mktemp("made")
    (folder / "plan.yaml").write_text(tiny_plan(techniques=["power-ema:snapshots=3"]).to_yaml())
    (folder / "study.yaml").write_text(STUDY.replace("PLAN", str(folder / "plan.yaml")))
    ablate(folder / "out")
    return folder / "out"


def ablate(out: Path) -> StudyResults:
    study = load_study(str(out.parent / "study.yaml"))
    assert not lab.run_study(study, out, 1, by_command(COMMAND)).failed
    return read_results_file(out / "results.json")


def report(out: Path) -> StudyResults:
    lab.report_study(out)
    return read_results_file(out / "results.json")


def use(run: Path) -> tuple[str, int, str]:
    """Load a run for sampling, with its average and with another one of its snapshots."""
    parts, step = load_run(run)
    digest = hashlib.sha256()
    for tensors in (parts.modules.state_dict(), reconstruction(run, 0.07).weights()):
        for name, tensor in sorted(tensors.items()):
            digest.update(name.encode() + tensor.numpy().tobytes())
    return parts.plan.hash, step, digest.hexdigest()


def scores(results: StudyResults) -> list[Any]:
    """Return the numbers that verdicts are made of, without the speed."""
    return [
        [arm.name, run.state, {name: value for name, value in run.metrics.items() if name != SPEED}, run.details]
        for arm in results.arms
        for run in arm.runs
    ]


# --- damage ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Damage:
    file: Path
    """Relative to the study."""
    name: str
    change: Callable[[bytes], bytes | None]
    """From the content to the damaged one; None: the file is deleted."""

    def apply(self, out: Path) -> Path:
        path = out / self.file
        content = self.change(path.read_bytes())
        path.unlink() if content is None else path.write_bytes(content)
        return path

    def __str__(self) -> str:
        return f"{self.file}: {self.name}"


def flip(place: int, bit: int, content: bytes) -> bytes:
    changed = bytearray(content)
    changed[place] ^= 1 << bit
    return bytes(changed)


def cut(share: float, content: bytes) -> bytes:
    return content[: int(share * len(content))]


def without_line(index: int, content: bytes) -> bytes:
    lines = content.splitlines(keepends=True)
    return b"".join(lines[:index] + lines[index + 1 :])


def swapped_lines(first: int, second: int, content: bytes) -> bytes:
    lines = content.splitlines(keepends=True)
    lines[first], lines[second] = lines[second], lines[first]
    return b"".join(lines)


def repeated_line(content: bytes) -> bytes:
    lines = content.splitlines(keepends=True)
    return b"".join([lines[0], *lines])


def deleted(content: bytes) -> None:
    return None


def damages(out: Path, file: Path) -> list[Damage]:
    """Bits in digits and elsewhere, cuts, lost, exchanged and repeated lines, an empty file and none."""
    content = (out / file).read_bytes()
    text = file.suffix != ".safetensors" and file.suffix != ".png"
    digits = [match.start() for match in re.finditer(rb"(?<=[: ,.\[])\d", content)] if text else []
    places = {(at, 0) for at in digits[:: len(digits) // 3 + 1]}
    bits = ((0, 2), (0.31, 1), (0.62, 5), (1, 1)) if file.suffix != ".png" else ((0.62, 5),)
    places |= {(int(share * (len(content) - 1)), bit) for share, bit in bits}
    found = [Damage(file, f"bit {bit} of byte {at} flipped", partial(flip, at, bit)) for at, bit in sorted(places)]
    found += [Damage(file, f"cut to {share:.0%}", partial(cut, share)) for share in (0, 0.7)]
    lines = content.count(b"\n") if file.suffix == ".jsonl" else 0
    if lines > 1:
        found += [Damage(file, f"line {at} removed", partial(without_line, at)) for at in {0, lines // 2, lines - 1}]
        found += [Damage(file, "two lines swapped", partial(swapped_lines, 0, lines - 1))]
    if lines:
        found += [Damage(file, "a line repeated", repeated_line)]
    return [*found, Damage(file, "deleted", deleted)] if content else []


def every_damage(out: Path) -> list[Damage]:
    """List the damages of each file that is there, so that a file of a later version is damaged too."""
    there = sorted(path.relative_to(out) for path in out.rglob("*") if path.is_file())
    return [damage for file in there for damage in damages(out, file)]


# --- what came of it ------------------------------------------------------------------------------------------------


def outcome(
    work: Callable[[], Any], expected: Any, path: Path, said: Callable[[Any, str], bool], may_refuse: bool = True
) -> str:
    """'' where the result is the undamaged one, or the error names the file and a command, or the change is said."""
    words = io.StringIO()
    try:
        with contextlib.redirect_stderr(words):
            found = work()
    except UserError as error:
        named = any(name in str(error) for name in (path.name, str(path.parent)))
        return (
            ""
            if may_refuse and named and ("`tintype" in str(error) or "command again" in str(error))
            else f"refused: {error}"
        )
    except Exception:
        return f"traceback: {traceback.format_exc().strip().splitlines()[-1]}"
    return "" if same(found, expected) or said(found, words.getvalue()) else "silent"


def same(found: Any, expected: Any) -> bool:
    """Whether two reports or loaded runs are equal; one value that is not a number equals another."""
    return bool(repr(found) == repr(expected))


def events_said(expected: StudyResults, found: StudyResults, words: str) -> bool:
    """Whether a changed report says what happened, and the scores are those of the undamaged study."""
    kinds = {event["event"] for arm in found.arms for run in arm.runs for event in run.events}
    known = bool(kinds & {"damaged-file", "damaged-checkpoint"}) or "commands.jsonl is damaged" in words
    return known and scores(found) == scores(expected)


def missing_said(expected: StudyResults, found: StudyResults, words: str) -> bool:
    """Whether the run that lost its result counts as not done."""
    return {run.state for arm in found.arms for run in arm.runs} == {"done", "missing"}


def scored_again(expected: StudyResults, found: StudyResults, words: str) -> bool:
    """Whether a run without a result has the same scores again; it took another time, and is no damage."""
    return scores(found) == scores(expected)


def older_said(expected: Any, found: Any, words: str) -> bool:
    return "is damaged" in words and found[:2] != expected[:2]


@pytest.mark.slow
@pytest.mark.promise(4)
def test_no_damaged_file_of_a_study_or_run_is_silently_read(promise: Promise, made: Path, tmp_path: Path) -> None:
    """Damage each file of a study of two runs (bits, cuts, lines, deletion), then report, rerun and load the runs."""
    expected = report(made)
    assert same(ablate(made), expected), "a study with nothing to do changes nothing"
    runs = sorted(path.relative_to(made) for path in (made / "runs").iterdir())
    loaded = {run: use(made / run) for run in runs}
    for name in ("plan.yaml", "study.yaml"):
        shutil.copy(made.parent / name, tmp_path)
    cases = every_damage(made)
    for number, damage in enumerate(promise.choose(cases, short=10)):
        out = tmp_path / f"out-{number}"
        shutil.copytree(made, out)
        path = damage.apply(out)
        run = next((run for run in runs if path.is_relative_to(out / run)), None)
        lost_result = damage.file.name == "result.json" and not path.exists()
        problem = outcome(
            partial(report, out), expected, path, partial(missing_said if lost_result else events_said, expected)
        )
        promise.count(not problem, f"report, {damage}: {problem}")
        if run is not None:
            problem = outcome(partial(use, out / run), loaded[run], path, partial(older_said, loaded[run]))
            promise.count(not problem, f"load, {damage}: {problem}")
        said = partial(scored_again if lost_result else events_said, expected)
        problem = outcome(partial(ablate, out), expected, path, said, may_refuse=False)
        promise.count(not problem, f"ablate, {damage}: {problem}")
        shutil.rmtree(out)


@pytest.fixture
def study(made: Path, tmp_path: Path) -> Path:
    """A copy of the study that a test may damage, with the files that it was made of."""
    for name in ("plan.yaml", "study.yaml"):
        shutil.copy(made.parent / name, tmp_path)
    return Path(shutil.copytree(made, tmp_path / "out"))


def set_accuracy(out: Path) -> Path:
    """Set a score by hand, as someone might."""
    file = sorted(out.glob("runs/*/evaluation/*/result.json"))[0]
    found = json.loads(file.read_text())
    found["metrics"]["scene_accuracy"] = 0.9
    file.write_text(json.dumps(found, indent=1))
    return file


@pytest.mark.promise(4)
def test_a_score_set_by_hand_is_refused_by_the_report_and_scored_again(study: Path) -> None:
    """Set an accuracy to 0.9 in a result.json: the report refuses it, and a rerun scores the run again."""
    expected = read_results_file(study / "results.json")
    file = set_accuracy(study)
    with pytest.raises(UserError, match=rf"{re.escape(str(file))} is damaged .*`tintype evaluate .*score it again"):
        report(study)
    found = ablate(study)
    assert scores(found) == scores(expected)
    events = [event for arm in found.arms for run in arm.runs for event in run.events]
    assert "result.json" in next(str(event["file"]) for event in events if event["event"] == "damaged-file")


class _AnyChecksum(str):
    """Equal to every checksum."""

    def __eq__(self, other: object) -> bool:
        return True

    def __ne__(self, other: object) -> bool:
        return False

    def __getitem__(self, key: Any) -> _AnyChecksum:
        return self

    __hash__ = str.__hash__


@pytest.mark.promise(4, control="checksums of scores and logs off")
def test_without_checksums_changed_scores_are_silent(
    promise: Promise, study: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Flip bits in the digits of scores and metrics, and set an accuracy by hand, with checksums not looked at."""
    expected = report(study)
    monkeypatch.setattr(files, "checksum_of_json", lambda content: _AnyChecksum())
    scored = sorted(path.relative_to(study) for path in study.glob("runs/*/evaluation/*/result.json"))[0]
    for file in (scored, scored.parents[2] / "metrics.jsonl"):
        before = (study / file).read_bytes()
        for damage in [one for one in damages(study, file) if one.name.startswith("bit 0")]:
            problem = outcome(partial(report, study), expected, damage.apply(study), partial(events_said, expected))
            promise.count(problem != "silent", damage)
            (study / file).write_bytes(before)
    set_accuracy(study)
    assert 0.9 in [run.metrics["scene_accuracy"] for arm in report(study).arms for run in arm.runs]


@pytest.mark.promise(4)
def test_damaged_samples_are_not_scored(promise: Promise, study: Path) -> None:
    """Damage the sampled images of a run that has no result yet, and score it."""
    run = sorted((study / "runs").iterdir())[0]
    protocol = load_study(str(study.parent / "study.yaml")).settings.evaluation
    (stored,) = run.glob("evaluation/*/result.json")
    expected = json.loads(stored.read_text())["metrics"]
    sampled = sorted(path.relative_to(study) for path in run.glob("evaluation/samples/*/*"))
    for damage in promise.choose([one for file in sampled for one in damages(study, file)], short=4):
        before = (study / damage.file).read_bytes()
        path = damage.apply(study)
        stored.unlink()
        problem = outcome(lambda: evaluate(run, protocol).metrics, expected, path, lambda found, words: False)
        promise.count(not problem, f"{damage}: {problem}")
        (study / damage.file).write_bytes(before)
        if not stored.exists():
            evaluate(run, protocol)


@pytest.mark.promise(5)
@pytest.mark.parametrize("size", [100, 1000, 3000])
def test_a_full_disk_while_scoring_and_reporting_is_named(promise: Promise, study: Path, size: int) -> None:
    """Score a run and write a report with files limited in size; with room, both end as they would have."""
    expected, run = report(study), sorted((study / "runs").iterdir())[0]
    protocol = load_study(str(study.parent / "study.yaml")).settings.evaluation
    for work, gone in (
        (partial(evaluate, run, protocol), [*run.glob("evaluation/*/*"), *run.glob("evaluation/samples/*/*")]),
        (partial(report, study), [study / "results.json"]),
    ):
        before = {path: path.read_bytes() for path in gone if path.is_file()}
        for path in before:
            path.unlink()
        with disk_of(size), pytest.raises((UserError, OSError)) as stopped:
            work()
        place = getattr(stopped.value, "filename", None) or str(stopped.value)
        promise.count(str(study) in place, f"the message names no path: {stopped.value}")
        promise.count(not [path for path in study.rglob("*") if ".writing" in path.name], "temporary files are left")
        for path, content in before.items():
            path.write_bytes(content)
    promise.count(same(report(study), expected), "the report differs")


def test_a_rerun_with_nothing_to_do_hashes_each_checkpoint_once(study: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hashed: list[Path] = []

    def count(path: Path) -> str:
        hashed.append(path)
        return files.sha256_of(path)

    monkeypatch.setattr(checkpoint, "sha256_of", count)
    ablate(study)
    tensors = [path for path in hashed if path.name == "state.safetensors"]
    newest = [max(run.glob("checkpoints/step-*")) / "state.safetensors" for run in (study / "runs").iterdir()]
    assert sorted(tensors) == sorted(newest)


def test_the_reason_of_a_failed_run_is_checked(study: Path) -> None:
    run = sorted((study / "runs").iterdir())[0]
    (stored,) = run.glob("evaluation/*/result.json")
    stored.unlink()
    files.write_sealed(run / "failed.txt", "the GPU burnt\n", run=run.name)
    states = {one.state: one.error for arm in report(study).arms for one in arm.runs}
    assert states["failed"] == "the GPU burnt"
    (run / "failed.txt").write_text((run / "failed.txt").read_text().replace("GPU", "CPU"))
    with pytest.raises(UserError, match=r"failed.txt is damaged .*`tintype ablate"):
        report(study)


def test_the_result_of_another_run_is_refused(study: Path) -> None:
    """Its checksum is right."""
    first, second = sorted((study / "runs").iterdir())
    (mine,), (other,) = first.glob("evaluation/*/result.json"), second.glob("evaluation/*/result.json")
    shutil.copytree(other.parent, mine.parent, dirs_exist_ok=True)
    with pytest.raises(UserError, match=rf"its seal says that it is .* of the run {second.name}, and it lies where"):
        report(study)


def test_a_study_whose_files_are_damaged_is_known_by_its_runs(study: Path) -> None:
    (study / "study.yaml").write_text((study / "study.yaml").read_text().replace("second", "third"))
    other = study.parent / "other.yaml"
    other.write_text((study.parent / "study.yaml").read_text().replace("seeds: [0]", "seeds: [7]"))
    with pytest.raises(UserError, match=r"study.yaml is damaged .*`tintype ablate STUDY --out"):
        lab.run_study(load_study(str(other)), study, 1)
    assert ablate(study).question == "Does a second stage help?"
