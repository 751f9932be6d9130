"""A diverged run says so: its own exit code, its own state, and no command that uses it by accident."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest
import torch

from tests.fault.promises import Promise
from tests.tiny import tiny_plan
from tintype import cli
from tintype.errors import DivergedError, UserError
from tintype.evaluation.protocol import Protocol
from tintype.plan import Plan
from tintype.runtime.files import write_sealed
from tintype.runtime.interrupt import Interrupt
from tintype.runtime.transfer import PendingNumbers
from tintype.settings import SKIP_WINDOW_STEPS
from tintype.study.runner import Task, note_failure, run_task
from tintype.study.runs import read_run
from tintype.train import checkpoint, loop
from tintype.train.divergence import count_step, too_large
from tintype.train.folder import RunFolder
from tintype.train.loop import train
from tintype.train.record import RunRecord
from tintype.train.session import build_session
from tintype.train.state import TrainState, new_state
from tintype.train.update import StepResult

EXPLODES = ("optimizer.lr=1e30", "train.clip_norm=null")
"""The first step leads to weights of 1e30, and every later one overflows."""
MANY_SKIPS = tiny_plan(*EXPLODES, "train.most_weight_rms=null", "train.steps=15", "run.save_every_steps=2")
LARGE_WEIGHTS = tiny_plan("optimizer.lr=3e3", "train.warmup_steps=0", "train.steps=3")
PROTOCOL = Protocol(count=8, also=(), reference_count=8, validation_count=2)


@pytest.fixture(scope="module")
def diverged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of which 4 of 15 steps were skipped; its checkpoint of step 4 has weights of 1e30."""
    folder = tmp_path_factory.mktemp("diverged") / "run"
    with pytest.raises(DivergedError):
        train(MANY_SKIPS, folder, Interrupt())
    return folder


def test_a_share_of_skipped_steps_ends_the_run(diverged: Path) -> None:
    """15 steps are fewer than train.most_skips, so that a run of 14 skipped ones was called trained."""
    text = RunFolder(diverged).diverged_file.read_text()
    assert "4 of the run's 15 steps were skipped, more than train.most_skipped, 25% (up to step 5)" in text
    assert checkpoint.steps(diverged / "checkpoints") == [2, 4]


@pytest.mark.parametrize("plan", [LARGE_WEIGHTS, tiny_plan(*EXPLODES)], ids=["3e3", "1e30"])
def test_absurdly_large_weights_end_the_run_before_they_are_saved(plan: Plan, tmp_path: Path) -> None:
    with pytest.raises(DivergedError, match=r"diverged at step 1: the root mean square of \S+ is \S+, above train"):
        train(plan, tmp_path / "run", Interrupt())
    assert checkpoint.steps(tmp_path / "run" / "checkpoints") == []


def skip(state: TrainState, folder: RunFolder, step: int, skipped: bool) -> None:
    numbers = PendingNumbers(torch.tensor([float("nan") if skipped else 1.0, float(skipped), 1.0]))
    result = StepResult({}, torch.zeros(2, 8), step, 4 * (step - 1), 0, numbers)
    count_step(folder, build_session(LONG), state, result)


LONG = tiny_plan("train.steps=100000", "train.most_skipped=0.05")


def test_the_share_is_also_that_of_a_window_of_steps(tmp_path: Path) -> None:
    """5 of any 100 steps may be skipped, and a sixth ends a run of 100,000 steps."""
    state, folder = new_state(build_session(LONG)), RunFolder(tmp_path)
    for step in (1, 20, 40, 60, 80):
        skip(state, folder, step, skipped=True)
        skip(state, folder, step + 1, skipped=False)
    skip(state, folder, SKIP_WINDOW_STEPS + 1, skipped=True)  # the first is 100 steps ago
    assert state.recent_skips == [20, 40, 60, 80, 101] and (state.skips, state.skips_in_a_row) == (6, 1)
    with pytest.raises(DivergedError, match=r"6 of 100 steps were skipped, more than train\.most_skipped, 5%"):
        skip(state, folder, SKIP_WINDOW_STEPS + 19, skipped=True)


@pytest.mark.parametrize(("value", "found"), [(1e30, "is 1e"), (float("nan"), "w is not finite"), (999.0, "")])
def test_the_size_of_weights_is_their_root_mean_square(value: float, found: str) -> None:
    named = {"small": torch.zeros(3), "empty": torch.zeros(0), "w": torch.tensor([value, -value, value, value])}
    assert (found in too_large(named, 1000.0)) if found else (too_large(named, 1000.0) == "")
    assert too_large({"w": torch.full((2,), 1e30)}, None) == ""
    assert too_large({"w": torch.full((2,), 3e38, dtype=torch.bfloat16)}, 1e3).startswith("the root mean square of w")


def exit_of(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str]:
    """The exit code and the error of a command line."""
    monkeypatch.setattr(sys, "argv", ["tintype", *map(str, words)])
    try:
        cli.main()
    except SystemExit as left:
        return int(left.code or 0), capsys.readouterr().err
    return 0, capsys.readouterr().err


SAMPLE = ["sample", "RUN", "a red ball", "--steps", "2", "--out", "OUT"]
COMMANDS = [
    SAMPLE,
    ["evaluate", "RUN", "--set", "count=8"],
    ["export", "RUN", "--to", "tintype", "--out", "OUT"],
]


def with_places(command: list[str], run: Path, out: Path) -> list[str]:
    return [word.replace("RUN", str(run)).replace("OUT", str(out)) for word in command]


@pytest.mark.promise(26)
def test_training_that_diverges_has_its_own_exit_code(
    promise: Promise, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Train plans that diverge by skipped steps or by large weights: exit code 3, a reason, a file that keeps it."""
    for name, plan in (("skips", MANY_SKIPS), ("weights", LARGE_WEIGHTS)):
        (tmp_path / f"{name}.yaml").write_text(plan.to_yaml())
        code, said = exit_of(monkeypatch, capsys, "train", tmp_path / f"{name}.yaml", "--out", tmp_path / name)
        kept = (tmp_path / name / "diverged.txt").is_file()
        promise.count(code == cli.DIVERGED == 3 and "the run diverged" in said and kept, f"{name}: {code} {said}")


@pytest.mark.promise(26)
def test_commands_refuse_a_diverged_run_and_say_why(
    diverged: Path,
    promise: Promise,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    """Sample, evaluate and export a diverged run: each refuses with the reason and exit code 3."""
    for command in COMMANDS:
        code, said = exit_of(monkeypatch, capsys, *with_places(command, diverged, tmp_path / "out"))
        words = " ".join(said.split())
        held = code == 3 and "is a run that diverged" in words and "4 of the run's 15 steps were skipped" in words
        promise.count(held and not list(tmp_path.glob("out*")), f"{command[0]}: {code} {words}")


@pytest.mark.promise(26)
def test_weights_that_are_absurd_are_refused_without_a_word_in_the_folder(
    promise: Promise, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Use a run of an older version, which called itself trained with weights of 1e30: each command refuses it."""
    run = tmp_path / "run"
    with monkeypatch.context() as older:
        older.setattr(loop, "check_weights", lambda parts, state: None)
        assert train(tiny_plan(*EXPLODES, "train.most_skipped=1.0", "train.steps=3"), run, Interrupt()).finished
    for command in COMMANDS:
        code, said = exit_of(monkeypatch, capsys, *with_places(command, run, tmp_path / "out"))
        words = " ".join(said.split())
        promise.count(code == 3 and "has diverged: the root mean square of" in words, f"{command[0]}: {code} {words}")


@pytest.mark.promise(26, control="diverged.txt is removed, and train.most_weight_rms is null")
def test_control_without_both_guards_the_run_is_sampled(
    diverged: Path,
    promise: Promise,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    """Sample the same run where neither its file nor its weights are looked at."""
    run = Path(shutil.copytree(diverged, tmp_path / "run"))
    (run / "diverged.txt").unlink()
    code, said = exit_of(monkeypatch, capsys, *with_places(SAMPLE, run, tmp_path / "out"))
    promise.count(code != 0, said)


@pytest.mark.promise(26, control="no share of skipped steps ends a run, and no size of weights")
def test_control_without_the_limits_a_diverged_run_is_called_trained(
    promise: Promise, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Train the same plan with the limits of before: 20 skipped steps in a row."""
    monkeypatch.setattr(loop, "check_weights", lambda parts, state: None)
    plan = tiny_plan(*EXPLODES, "train.most_weight_rms=null", "train.most_skipped=1.0", "train.steps=15")
    promise.count(not train(plan, tmp_path / "run", Interrupt()).finished, "14 of 15 steps were skipped")


@pytest.mark.promise(26)
def test_a_study_calls_the_run_diverged_and_tries_it_again(diverged: Path, tmp_path: Path) -> None:
    """Run the plan as a task of a study: its state is diverged, with the reason."""
    task = Task("arm", MANY_SKIPS, tmp_path / "runs" / MANY_SKIPS.hash)
    last = run_task(task, PROTOCOL, Interrupt(), lambda message: None)
    note_failure(task, last)
    run = read_run(MANY_SKIPS, PROTOCOL, tmp_path)
    assert (last.state, run.state) == ("diverged", "diverged") and "15 steps were skipped" in (run.error or "")


def test_a_run_that_does_not_diverge_any_more_is_used_again(tmp_path: Path) -> None:
    train(tiny_plan(), tmp_path / "run", Interrupt())
    write_sealed(RunFolder(tmp_path / "run").diverged_file, "the first attempt diverged")
    with pytest.raises(DivergedError, match="the first attempt diverged"):
        RunRecord(tmp_path / "run").refuse_diverged()
    assert train(tiny_plan(), tmp_path / "run", Interrupt()).already_done
    RunRecord(tmp_path / "run").refuse_diverged()


def test_no_run_starts_from_a_diverged_one(diverged: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"start: the run in \S+ diverged") as refused:
        train(tiny_plan(techniques=[f"sft:from={diverged}"]), tmp_path / "run", Interrupt())
    assert not isinstance(refused.value, DivergedError), "it is the parent that diverged"


def test_a_window_that_never_fills_is_refused() -> None:
    with pytest.raises(UserError, match=r"skip_spikes\.window is 128, but the run has 6 steps"):
        tiny_plan("train.skip_spikes={}")
