"""The whole way with the real command, from the plan to the report, killed in between."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.tiny import TINY

STUDY = """
question: Does the <b>target</b> matter?
recipe: PLAN
seeds: [0, 1]
control_seeds: [5, 6]
arms:
  - techniques: [x-prediction]
evaluation:
  count: 12
  short_count: 4
  reference_count: 16
  validation_count: 4
  sampler: {steps: 2, batch: 8}
"""


def tintype(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tintype", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment(), **options)


def environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "140"}


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, subprocess.CompletedProcess[str]]:
    """A study whose command was killed with all its workers, and then run again to its end."""
    folder = tmp_path_factory.mktemp("study")
    plan = folder / "plan.yaml"
    plan.write_text(TINY.replace("steps: 6", "steps: 12"))
    file = folder / "tiny.yaml"
    file.write_text(STUDY.replace("PLAN", str(plan)))
    out = folder / "out"
    command = [sys.executable, "-m", "tintype", "ablate", str(file), "--out", str(out)]
    first = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment())
    deadline = time.monotonic() + 120
    while not list(out.glob("runs/*/metrics.jsonl")) and time.monotonic() < deadline:
        time.sleep(0.02)
    first.send_signal(signal.SIGKILL)
    first.communicate(timeout=60)  # returns when the last worker has left and closed its end of the pipe
    return file, out, _again(command)


def _again(command: list[str]) -> subprocess.CompletedProcess[str]:
    """Workers of a killed study notice it and leave within a step; until then their folder is theirs."""
    for _ in range(10):
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment())
        if done.returncode != 1:
            return done
        time.sleep(0.5)
    return done


def test_the_study_ends_with_verdicts_and_the_path_of_the_report(
    study: tuple[Path, Path, subprocess.CompletedProcess[str]],
) -> None:
    _, out, done = study
    assert done.returncode == 0, done.stdout + done.stderr
    assert "objective.kind: velocity → x-prediction" in done.stdout
    assert done.stdout.strip().endswith(f"report: {out.resolve() / 'report.html'}")
    results = json.loads((out / "results.json").read_text())
    assert [arm["name"] for arm in results["arms"]] == ["baseline", "control", "x-prediction"]
    assert {run["state"] for arm in results["arms"] for run in arm["runs"]} == {"done"}
    expected = {"scene_accuracy", "fd_scenes", "kid_scenes", "validation_loss", "images_per_s"}
    assert expected <= set(results["arms"][2]["comparisons"])
    html = (out / "report.html").read_text()
    assert "<b>target</b>" not in html and "&lt;b&gt;target" in html
    assert (out / "results.csv").exists() and (out / "report.md").exists()


def test_running_it_again_trains_nothing(study: tuple[Path, Path, subprocess.CompletedProcess[str]]) -> None:
    file, out, _ = study
    before = {path: path.stat().st_mtime_ns for path in out.glob("runs/*/metrics.jsonl")}
    assert len(before) == 6
    assert tintype("ablate", str(file), "--out", str(out)).returncode == 0
    assert {path: path.stat().st_mtime_ns for path in before} == before


def test_another_baseline_may_not_move_in(study: tuple[Path, Path, subprocess.CompletedProcess[str]]) -> None:
    file, out, _ = study
    done = tintype("ablate", str(file), "--out", str(out), "--set", "set=[optimizer.lr=0.5]")
    assert done.returncode == 2 and "study of another baseline" in done.stderr


def test_the_report_can_be_written_again_from_the_files(
    study: tuple[Path, Path, subprocess.CompletedProcess[str]],
) -> None:
    _, out, _ = study
    (out / "report.html").unlink()
    assert tintype("report", str(out)).returncode == 0
    assert (out / "report.html").exists()


def test_evaluate_prints_json(study: tuple[Path, Path, subprocess.CompletedProcess[str]]) -> None:
    _, out, _ = study
    run = next(out.glob("runs/*"))
    done = tintype(
        "evaluate", str(run), "--json", "--set", "count=8", "--set", "short_count=0", "--set", "reference_count=8",
        "--set", "validation_count=2", "--set", "sampler.steps=1",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["step"] == 12 and "fd_scenes" in result["metrics"]
