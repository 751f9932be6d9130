"""Commands on studies: how they end when a signal stops them, and what Python gets in place of that."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

import tintype
from tests.tiny import TINY
from tests.written_runs import Writer, written_runs
from tintype import cli
from tintype.errors import UserError
from tintype.study import lab
from tintype.study.lab import WorkOutcome
from tintype.study.runner import Message, Task
from tintype.study.runs import read_commands

STUDY = """
question: q
recipe: PLAN
seeds: {first: 2, most: 4}
arms: [{name: fast, set: [optimizer.lr=0.01]}]
primary: [validation_loss]
evaluation: {count: 8, also: [], reference_count: 8, validation_count: 2, metrics: [], sampler: {steps: 1}}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "plan.yaml").write_text(TINY)
    (tmp_path / "study.yaml").write_text(STUDY.replace("PLAN", str(tmp_path / "plan.yaml")))
    return tmp_path / "study.yaml"


@pytest.fixture
def out(file: Path, tmp_path: Path) -> Path:
    """The folder of a study that was run."""
    with written_runs(Writer({"fast": -20.0})):
        tintype.run_study(file, tmp_path / "out")
    return tmp_path / "out"


def run(*arguments: object) -> Result:
    return CliRunner().invoke(cli.app, [str(one) for one in arguments], env={"COLUMNS": "200"})


COMMANDS = {
    "replicate": ["--seeds", "4"],
    "propose": ["--arm", "slow=optimizer.lr=0.02"],
}


def test_a_stopped_study_shows_what_is_done_and_resumes(file: Path, tmp_path: Path) -> None:
    """Runs that are done are shown in a report, before the line that says what is saved."""
    writer = Writer(stop_after=3)
    with written_runs(writer):
        stopped = run("ablate", file, "--out", tmp_path / "out")
        assert stopped.exit_code == 130 and "report.html" in stopped.stdout
        words = "interrupted: 3 of 6 runs are done, those that had begun are saved; run the same command to resume\n"
        assert stopped.stderr.endswith(words), stopped.stderr
        writer.stop_after = None
        assert run("ablate", file, "--out", tmp_path / "out").exit_code == 0


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_that_a_signal_stops_says_how_to_resume(command: str, out: Path) -> None:
    with written_runs(Writer(stop_after=1)):
        stopped = run(command, out, *COMMANDS[command])
    assert stopped.exit_code == 130 and "run the same command" in stopped.stderr.splitlines()[-1]
    assert stopped.stderr.splitlines()[-1].startswith("interrupted: ")


def test_python_gets_the_signal(out: Path) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's job in the background ignores it
    for call in (
        lambda: tintype.replicate(out, seeds=4),
        lambda: tintype.propose(out, arm="slow=optimizer.lr=0.02"),
    ):
        with written_runs(Writer(stop_after=1)), pytest.raises(KeyboardInterrupt):
            call()


def test_a_study_that_only_workers_were_told_to_stop_raises(file: Path, tmp_path: Path) -> None:
    def told(tasks: list[Task], *_: object) -> dict[tuple[str, int], Message]:
        return {tasks[0].key: Message(tasks[0].key, "interrupted")}

    with pytest.MonkeyPatch.context() as patch, pytest.raises(tintype.StoppedError, match="0 of 6 runs are done"):
        patch.setattr(lab, "run_tasks", told)
        tintype.run_study(file, tmp_path / "out")


def test_a_proposal_of_python_is_noted_so_that_its_ledger_cannot_vanish(out: Path) -> None:
    with written_runs(Writer()):
        tintype.propose(out, arm="slow down=optimizer.lr=0.02")
    words = [command.argv for command in read_commands(out)]
    assert words == [["tintype", "propose", str(out), "--arm", "slow down=optimizer.lr=0.02"]]
    shutil.rmtree(out / "proposals")
    with pytest.raises(UserError, match="ledger"):
        tintype.propose(out)


def test_a_worker_whose_gpu_failed_begins_again_in_a_new_process(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[list[str]] = []
    outcome = WorkOutcome({("fast", 0): Message(("fast", 0), "done")}, None, spent=True)
    monkeypatch.setattr(lab, "work_on_study", lambda *_: outcome)
    monkeypatch.setattr(os, "execv", lambda program, words: begun.append(words))
    shown = run("work", out)
    assert begun[0][1:3] == ["-m", "tintype"] and "starts again in a new process" in shown.stdout
    outcome = WorkOutcome(outcome.last, signal.SIGUSR1, spent=True)
    assert run("work", out).exit_code == 143 and len(begun) == 1, "a signal ends it"


def test_a_study_is_prepared_for_workers(file: Path, tmp_path: Path) -> None:
    shown = run("ablate", file, "--out", tmp_path / "out", "--prepare")
    assert shown.exit_code == 0 and "is ready: start any number of `tintype work" in shown.stdout
    assert {one.state for one in tintype.status(tmp_path / "out").runs} == {"waiting", "perhaps"}
    found = json.loads(run("ablate", file, "--out", tmp_path / "out", "--prepare", "--json").stdout)
    assert found["cost"] is None and [one["arm"] for one in found["arms"]] == ["baseline", "control", "fast"]
    assert found["arms"][2]["changes"]["optimizer.lr"][1] == 0.01


def test_a_look_that_does_not_fit_is_left_for_later(file: Path, tmp_path: Path) -> None:
    with written_runs(Writer({"fast": -1.0}, seconds=600)):
        shown = run("ablate", file, "--out", tmp_path / "out", "--budget", "1s")
        assert shown.exit_code == 0 and "run the same command with a larger --budget, or none, to go on" in shown.stdout
        found = json.loads(run("ablate", file, "--out", tmp_path / "out", "--budget", "1s", "--json").stdout)
    assert "was not begun" in found["left"] and found["verdicts"]


def test_a_study_that_is_made_takes_no_settings(file: Path, tmp_path: Path) -> None:
    study = tintype.load_study(file)
    with pytest.raises(UserError, match=r"this study exists already, .*; give the settings to load_study"):
        tintype.run_study(study, tmp_path / "out", "seeds=[0]")
    planned = tintype.run_study(study, tmp_path / "out", arms=["fast"], dry_run=True)
    assert isinstance(planned, tintype.PlannedStudy) and planned.cost is not None and planned.cost.most == 8
    assert not (tmp_path / "out").exists()
