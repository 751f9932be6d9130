"""The whole way with the real command, from the plan to the report. tests/fault kills it in between.

One study is run as a user runs it. What is then asked of it is asked in this process, by the same command line.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.edit_checked import edit_json
from tests.studies import studies_in_process
from tests.tiny import TINY
from tintype import cli
from tintype.errors import UserError
from tintype.study.folder import stored_study
from tintype.study.lab import report_study

STUDY = """
question: Does the <b>target</b> matter?
recipe: PLAN
seeds: [0, 1]
control_seeds: [5, 6]
arms:
  - techniques: [x-prediction]
evaluation:
  count: 12
  also: [{name: short, prompts: short, count: 4, distances: false}]
  reference_count: 16
  validation_count: 4
  sampler: {steps: 2, batch: 8}
"""


def tintype(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tintype", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment(), **options)


def ask(*arguments: str) -> str:
    """Return what a command prints, run in this process; its `UserError` is raised."""
    with studies_in_process():
        result = CliRunner().invoke(cli.app, list(arguments), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "140"}


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, subprocess.CompletedProcess[str]]:
    """A study that was run to its end."""
    folder = tmp_path_factory.mktemp("study")
    plan = folder / "plan.yaml"
    plan.write_text(TINY.replace("steps: 6", "steps: 12"))
    file = folder / "tiny.yaml"
    file.write_text(STUDY.replace("PLAN", str(plan)) + "score_at: [0.5]\nscore_count: 8\n")
    out = folder / "out"
    command = [sys.executable, "-m", "tintype", "ablate", str(file), "--out", str(out)]
    return file, out, subprocess.run(command, capture_output=True, text=True, check=False, env=environment())


def test_the_study_ends_with_verdicts_and_the_path_of_the_report(
    study: tuple[Path, Path, subprocess.CompletedProcess[str]],
) -> None:
    _, out, done = study
    assert done.returncode == 0, done.stdout + done.stderr
    assert "objective: velocity → x-prediction" in done.stdout
    assert done.stdout.strip().endswith(f"report: {out.resolve() / 'report.html'}")
    results = json.loads((out / "results.json").read_text())
    assert [arm["name"] for arm in results["arms"]] == ["baseline", "control", "x-prediction"]
    assert {run["state"] for arm in results["arms"] for run in arm["runs"]} == {"done"}
    expected = {"scene_accuracy", "fd_scenes", "kid_scenes", "validation_loss", "images_per_s"}
    assert expected <= set(results["arms"][2]["comparisons"])
    assert [command["argv"] for command in results["commands"]] == [
        ["tintype", "ablate", str(study[0]), "--out", str(out)]
    ]
    html = (out / "report.html").read_text()
    assert "<b>target</b>" not in html and "&lt;b&gt;target" in html
    assert (out / "results.csv").exists() and (out / "report.md").exists()


def test_it_has_scores_along_training_and_keeps_no_weights_for_them(
    study: tuple[Path, Path, subprocess.CompletedProcess[str]],
) -> None:
    _, out, _ = study
    results = json.loads((out / "results.json").read_text())
    runs = [run for arm in results["arms"] for run in arm["runs"]]
    assert [[score["step"] for score in run["along"]] for run in runs] == [[6, 12]] * 6
    assert results["along_images"] == 8
    arms = {(one["arm"], one["metric"]): one for one in results["along"]}
    assert {arm for arm, _ in arms} == {"control", "x-prediction"}
    assert [one["step"] for one in arms["x-prediction", "fd_scenes"]["differences"]] == [6, 12]
    assert not list(out.glob("runs/*/kept"))
    assert 'id="along"' in (out / "report.html").read_text() and "## Along training" in (out / "report.md").read_text()


def test_running_it_again_trains_nothing(study: tuple[Path, Path, subprocess.CompletedProcess[str]]) -> None:
    file, out, _ = study
    before = {path: path.stat().st_mtime_ns for path in out.glob("runs/*/metrics.jsonl")}
    assert len(before) == 6
    ask("ablate", str(file), "--out", str(out))
    assert {path: path.stat().st_mtime_ns for path in before} == before


def test_another_baseline_may_not_move_in(study: tuple[Path, Path, subprocess.CompletedProcess[str]]) -> None:
    file, out, _ = study
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*")}
    for options in ([], ["--dry-run"]):
        with pytest.raises(UserError, match="with another baseline"):
            ask("ablate", str(file), "--out", str(out), "--set", "set=[optimizer.lr=0.5]", *options)
    with pytest.raises(UserError, match="read with other settings of x-prediction"):
        arms = "arms=[{name: x-prediction, techniques: ['x-prediction:clamp=0.1']}]"
        ask("ablate", str(file), "--out", str(out), "--dry-run", "--set", arms)
    assert "6 runs; 6 of them are done" in ask("ablate", str(file), "--out", str(out), "--dry-run")
    after = {path: path.stat().st_mtime_ns for path in out.rglob("*")}
    assert {path for path in after if after[path] != before.get(path)} <= {out / ".lock"}


def test_the_report_can_be_written_again_when_the_study_file_and_its_plan_are_gone(
    study: tuple[Path, Path, subprocess.CompletedProcess[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, out, _ = study
    monkeypatch.chdir(tmp_path)
    (out / "report.html").unlink()
    hidden = [path.rename(path.with_suffix(".hidden")) for path in (file, file.with_name("plan.yaml"))]
    try:
        ask("report", str(out))
    finally:
        for path in hidden:
            path.rename(path.with_suffix(".yaml"))
    assert '"missing"' not in (out / "results.json").read_text()
    assert (out / "report.html").exists()


@pytest.mark.parametrize(
    ("key", "messages"),
    [
        ("encoders", ["the encoder 'scenes' had the identity", "but abababababab for 'x-prediction', seed 1"]),
        ("protocol_hash", ["was scored with the evaluation protocol abababababab, but this study uses"]),
    ],
)
def test_arms_that_were_scored_differently_are_refused_with_both_hashes(
    study: tuple[Path, Path, subprocess.CompletedProcess[str]], key: str, messages: list[str]
) -> None:
    _, out, _ = study
    results = json.loads((out / "results.json").read_text())
    own = stored_study(out).settings.evaluation.hash
    stored = next((out / results["arms"][-1]["runs"][-1]["folder"]).glob(f"evaluation/{own}-*/result.json"))
    before = stored.read_text()

    def change(result: dict[str, Any]) -> None:
        if key == "encoders":
            result[key]["scenes"]["identity"] = "ab" * 32
        else:
            result[key] = "ab" * 6

    edit_json(stored, change)
    try:
        with pytest.raises(UserError) as refused:
            ask("report", str(out))
    finally:
        stored.write_text(before)
    assert all(message in str(refused.value) for message in messages), refused.value


def test_evaluate_prints_json(study: tuple[Path, Path, subprocess.CompletedProcess[str]]) -> None:
    _, out, _ = study
    run = next(out.glob("runs/*"))
    settings = ["count=8", "also=[]", "reference_count=8", "validation_count=2", "sampler.steps=1"]
    result = json.loads(ask("evaluate", str(run), "--json", *(f"--set={setting}" for setting in settings)))
    assert result["step"] == 12 and "fd_scenes" in result["metrics"]


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="finds the worker in /proc")
@pytest.mark.parametrize("retries", [0, 2])
def test_a_run_whose_worker_dies_is_tried_again_and_fails_after_its_retries(retries: int, tmp_path: Path) -> None:
    """It stops no other run, and the next command tries it again."""
    plan, file, out = tmp_path / "plan.yaml", tmp_path / "tiny.yaml", tmp_path / "out"
    plan.write_text(TINY.replace("steps: 6", "steps: 40"))
    text = STUDY.replace("PLAN", str(plan)).replace("[0, 1]", "[0]").replace("[5, 6]", "[5]")
    file.write_text(f"{text}retries: {retries}\n")
    command = [sys.executable, "-m", "tintype", "ablate", str(file), "--out", str(out)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment())
    deadline = time.monotonic() + 300
    while not list(out.glob("runs/*/metrics.jsonl")) and time.monotonic() < deadline:
        time.sleep(0.01)
    workers = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    for child in workers.read_text().split():
        if "spawn_main" in Path(f"/proc/{child}/cmdline").read_text():
            os.kill(int(child), signal.SIGKILL)
    stdout, stderr = process.communicate(timeout=300)
    assert "baseline, seed 0: its process ended with exit code -9; it will be resumed" in stdout
    assert "[3/3]" in stdout
    if retries:
        assert process.returncode == 0, stdout + stderr
        assert "its process ended with exit code -9" in (out / "report.md").read_text(), "an event"
    else:
        assert process.returncode == 1, stdout + stderr
        assert "failed: baseline, seed 0: its process died without getting further" in stdout
        assert "--run" in (out / "report.md").read_text()
        assert tintype("ablate", str(file), "--out", str(out)).returncode == 0
    assert '"failed"' not in (out / "results.json").read_text()


def test_a_folder_with_other_files_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "report.md").write_text("precious")
    with pytest.raises(UserError, match=r"contains other files, but not study\.yaml"):
        ask("ablate", "pocket", "--out", str(tmp_path))
    assert (tmp_path / "report.md").read_text() == "precious"


@pytest.mark.slow
def test_a_study_of_two_resolutions_compares_each_with_its_own_baseline_and_both_with_each_other(
    tmp_path: Path,
) -> None:
    plan, file, out = tmp_path / "plan.yaml", tmp_path / "tiny.yaml", tmp_path / "out"
    plan.write_text(TINY)
    places = "resolutions: [{name: fine, set: [model.patch=2]}, {name: coarse}]\n"
    file.write_text(STUDY.replace("PLAN", str(plan)).replace("control_seeds: [5, 6]\n", places))
    shown = ask("ablate", str(file), "--out", str(out), "--arm", "x-prediction")
    assert "x-prediction @ fine, seed 1: done" in shown and "16 → 64" in shown
    results = json.loads((out / "results.json").read_text())
    arms = {(arm["name"], arm["resolution"]): arm for arm in results["arms"]}
    assert [(*key, arm["tokens"]) for key, arm in arms.items()] == [
        ("baseline", "coarse", 16),
        ("x-prediction", "coarse", 16),
        ("baseline", "fine", 64),
        ("x-prediction", "fine", 64),
    ]
    for where in ("coarse", "fine"):
        values = [run["metrics"]["fd_scenes"] for run in arms["baseline", where]["runs"]]
        stated = arms["x-prediction", where]["comparisons"]["fd_scenes"]["baseline_mean"]
        assert stated == pytest.approx(math.sqrt(values[0] * values[1]))  # distances are compared as logarithms
        assert (out / "real" / where / "preview-0.png").exists()
    assert {trend["metric"] for trend in results["trends"]} == {"scene_accuracy", "fd_scenes", "images_per_s"}
    assert "Against the number of tokens" in (out / "report.html").read_text()
    plan.unlink()
    report_study(out)
    assert json.loads((out / "results.json").read_text()) == results


def test_a_proposal_is_trained_judged_and_remembered(
    study: tuple[Path, Path, subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    _, out, _ = study
    shutil.copytree(out, tmp_path / "out")
    command = ["propose", str(tmp_path / "out"), "--looks", "2", "--json", "--arm"]
    before = {folder.name for folder in (out / "runs").iterdir()}
    found = json.loads(ask(*command, "calm=train.clip_norm=0.5"))
    assert (found["number"], found["seeds"]) == (1, 2)
    assert found["answer"] in ("keep", "drop"), "two seeds are all that were planned"
    new = {folder.name for folder in (tmp_path / "out" / "runs").iterdir()} - before
    assert len(new) == 2, "two runs of the arm, and none of the baseline"
    again = json.loads(ask(*command, "other=train.clip_norm=0.50"))
    assert (again["answer"], again["repeats"], again["ledger"]) == (found["answer"], "calm", found["ledger"])
    assert "calm" in ask("propose", str(tmp_path / "out"))
    assert [one["name"] for one in json.loads(ask("propose", str(tmp_path / "out"), "--json"))] == ["calm"]
