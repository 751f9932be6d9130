"""SIGKILL of a run with scores along training, while it keeps weights and while it scores: none is lost or taken twice.

The children are forked from a process that has imported torch and computed nothing.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.fault.harness import in_child
from tests.fault.promises import Promise
from tests.tiny import tiny_plan
from tintype.evaluation import early, results
from tintype.evaluation import run as evaluation
from tintype.evaluation.protocol import Protocol
from tintype.evaluation.results import write_result
from tintype.runtime import fault
from tintype.runtime.interrupt import Interrupt
from tintype.sampling.generate import SamplerSettings
from tintype.study.runner import Message, Task, run_task
from tintype.study.runs import read_run
from tintype.study.study import Along
from tintype.train.load import drop_kept

ROOT = Path(__file__).parents[2]
PLAN = tiny_plan("run.save=wait", techniques=["ema"])
FULL = Protocol(
    count=8, also=(), reference_count=8, validation_count=4, metrics=("fd",), sampler=SamplerSettings(steps=2, batch=4)
)
ALONG = Along((3, 4), FULL.model_copy(update={"seed": 1}))
"""Images of another noise than the full evaluation's, so that the last score has to be taken too."""

KEEP_KILLS = [(f"keep.{stage}", 1 + index % 2) for index, stage in enumerate(("begin", "state", "manifest", "rename"))]
SCORE_KILLS = [
    ("early score", 1),
    ("early score", 4),
    ("early score", 16),
    ("score is stored", 2),
    ("weights are dropped", 1),
    ("weights are dropped", 2),
]
"""Progress reports of the scores along training; before a result of any protocol is written; before a removal."""
SCRIPT = """
import sys, torch
import torch._dynamo
from pathlib import Path
torch.set_num_threads(1)
from tests.fault import test_along as kills
kills.main(Path(sys.argv[1]), {kills!r}, {forget!r})
"""


def score(root: Path, kill: tuple[str, int] | None, forget: bool) -> None:
    """Train and score in this process, and kill it at the given point; note each score that was stored."""
    left = kill[1] if kill else 0

    def count_down(point: str) -> None:
        nonlocal left
        if kill and point == kill[0]:
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    def send(message: Message) -> None:
        if message.text == "scoring along training":
            count_down("early score")

    def write(file: Path, result: results.EvaluationResult, *per_image: Any) -> None:
        count_down("score is stored")
        write_result(file, result, *per_image)
        with (root / "stored.txt").open("a") as log:
            log.write(f"{result.protocol_hash} {result.step}\n")

    def dropped(folder: Path, step: int) -> None:
        count_down("weights are dropped")
        drop_kept(folder, step)

    setattr(results, "write_result", write)  # noqa: B010
    setattr(early, "drop_kept", dropped)  # noqa: B010
    if forget:
        setattr(evaluation, "_stored", lambda *given: None)  # noqa: B010
    if kill and kill in KEEP_KILLS:
        fault.arm(kill[0], partial(count_down, kill[0]))
    os.environ["TINTYPE_CACHE"] = str(root / "cache")
    last = run_task(Task("arm", PLAN, root / "runs" / PLAN.hash, ALONG), FULL, Interrupt(), send)
    assert last.state == "done", last.text


def outcome(root: Path) -> dict[str, Any]:
    run = read_run(PLAN, FULL, root, ALONG)
    stored = sorted((root / "stored.txt").read_text().splitlines())
    return {
        "scores": [(one.step, one.images, one.metrics, one.errors) for one in run.along],
        "end": {name: value for name, value in run.metrics.items() if name != "images_per_s"},
        "once": stored
        == sorted(f"{hash} {step}" for hash, step in [(FULL.hash, 6), *((ALONG.protocol.hash, n) for n in (3, 4, 6))]),
        "dropped": not (root / "runs" / PLAN.hash / "kept").exists(),
        "events": run.events,
    }


def main(root: Path, kills: list[tuple[str, int]], forget: bool) -> None:
    """Print the outcome of a run that was not killed, and of each that was killed and resumed."""
    rows: list[dict[str, Any]] = []
    for index, kill in enumerate([None, *kills]):
        folder = root / str(index)
        folder.mkdir()
        ended = in_child(partial(score, folder, kill, forget)) if kill else -signal.SIGKILL
        resumed = in_child(partial(score, folder, None, forget))
        rows.append({"kill": kill, "killed": ended == -signal.SIGKILL, "resumed": resumed == 0, **outcome(folder)})
    print(json.dumps(rows))


def rows_of(root: Path, kills: list[tuple[str, int]], forget: bool = False) -> list[dict[str, Any]]:
    script = SCRIPT.format(kills=kills, forget=forget)
    done = subprocess.run(
        [sys.executable, "-c", script, str(root)], capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert done.returncode == 0, done.stderr
    rows: list[dict[str, Any]] = json.loads(done.stdout)
    assert all(row["killed"] and row["resumed"] for row in rows), done.stderr
    return rows


@pytest.mark.slow
@pytest.mark.promise(2)
def test_a_kill_loses_no_score_along_training_and_takes_none_twice(promise: Promise, tmp_path: Path) -> None:
    """Kill a run while it keeps weights and while these are scored, resume it, and compare with one that was not"""
    kills = [*promise.choose(KEEP_KILLS, short=1), *promise.choose(SCORE_KILLS, short=3)]
    whole, *killed = rows_of(tmp_path, kills)
    assert [step for step, *_ in whole["scores"]] == [3, 4, 6]
    assert whole["once"] and whole["dropped"]
    for row in killed:
        same = all(row[key] == whole[key] for key in ("scores", "end", "once", "dropped", "events"))
        promise.count(same, row)


@pytest.mark.slow
@pytest.mark.promise(2, control="stored scores are not looked for")
def test_without_looking_for_stored_scores_some_are_taken_twice(promise: Promise, tmp_path: Path) -> None:
    _, row = rows_of(tmp_path, [("weights are dropped", 1)], forget=True)
    promise.count(row["once"], row)
