"""A tiny run that fails between two checkpoints, resumes, is scored and gets verdicts, for tests of trackers."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from PIL import Image

from tests.tiny import tiny_plan
from tintype.evaluation.protocol import Protocol
from tintype.evaluation.results import EvaluationResult, result_file
from tintype.evaluation.tracking import track_result
from tintype.plan import Plan
from tintype.runtime.interrupt import Interrupt
from tintype.seams import Tracker, TrackerStatus, VerdictRow
from tintype.train import trackers
from tintype.train.loop import train
from tintype.train.steps import Progress
from tintype.train.trackers import TRACKERS, TrackerKind, mirror
from tintype.train.trackers.mirror import mirror_more
from tintype.train.trackers.tracked import Tracked

PROTOCOL = Protocol(count=8, also=())
SCORE = f"scores-{PROTOCOL.hash[:8]}/fd"
SAMPLE = f"samples-{PROTOCOL.hash[:8]}/preview-0"
ROWS: list[VerdictRow] = [{"arm": "muon", "metric": "fd", "verdict": "better", "difference": -0.5, "low": None}]


@dataclass
class Recorder:
    """Stands for a tracker's server: keeps what it gets, and fails where it is told to."""

    opened: list[Tracked] = field(default_factory=list)
    lines: list[tuple[int, Mapping[str, float]]] = field(default_factory=list)
    images: list[tuple[int, list[str]]] = field(default_factory=list)
    verdicts: list[Sequence[VerdictRow]] = field(default_factory=list)
    statuses: list[TrackerStatus] = field(default_factory=list)
    fail_open: bool = False
    fail_at: int | None = None
    wait_s: float = 0.0

    @property
    def steps(self) -> list[int]:
        return [step for step, numbers in self.lines if "loss" in numbers]

    def open(self, about: Tracked) -> Tracker:
        if self.fail_open:
            raise ConnectionError("no network")
        self.opened.append(about)
        return _Recorded(self)


class _Recorded(Tracker):
    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    def log(self, step: int, numbers: Mapping[str, float]) -> None:
        time.sleep(self._recorder.wait_s)
        if step == self._recorder.fail_at:
            raise OSError("the server is\ngone")
        self._recorder.lines.append((step, dict(numbers)))

    def log_images(self, step: int, files: Mapping[str, Path]) -> None:
        self._recorder.images.append((step, [name for name, file in files.items() if file.is_file()]))

    def log_verdicts(self, rows: Sequence[VerdictRow]) -> None:
        self._recorder.verdicts.append(rows)

    def close(self, status: TrackerStatus) -> None:
        self._recorder.statuses.append(status)


def record_wandb(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    """Put a recorder in the place of wandb."""
    found = Recorder()
    table = {**TRACKERS, "wandb": TrackerKind("tintype", found.open)}
    monkeypatch.setattr(trackers, "TRACKERS", table)
    monkeypatch.setattr(mirror, "TRACKERS", table)
    return found


def tracked_plan(*trackers: str, **settings: str) -> Plan:
    return tiny_plan(
        f"run.trackers=[{', '.join(trackers)}]", *(f"run.{key}={value}" for key, value in settings.items())
    )


def train_with_a_failure(plan: Plan, run: Path) -> None:
    """Fail after step 5, whose line is logged and whose checkpoint is that of step 4; then resume to the end, 6."""

    def fail(now: Progress) -> None:
        if now.step == 5:
            raise RuntimeError("made to fail")

    with pytest.raises(RuntimeError, match="made to fail"):
        train(plan, run, Interrupt(), fail)
    train(plan, run, Interrupt())


def score(plan: Plan, run: Path) -> None:
    """Log a result with one preview, twice: the second time nothing is to be sent."""
    file = result_file(run, PROTOCOL, 6)
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (16, 16), (200, 30, 30)).save(file.with_name("preview-0.png"))
    result = EvaluationResult(
        metrics={"fd": 1.5},
        errors={},
        encoders={},
        warnings=(),
        seconds=1.0,
        step=6,
        weights="raw",
        protocol=PROTOCOL,
        protocol_hash=PROTOCOL.hash,
        details={},
        samples={},
        real={},
        time_split={},
        previews=(str(file.with_name("preview-0.png").relative_to(run)),),
    )
    track_result(run, plan, file, result)
    track_result(run, plan, file, result)


def log_verdicts(plan: Plan, study: Path) -> None:
    study.mkdir(exist_ok=True)
    with mirror_more(plan, study, "a study") as opened:
        opened.log_verdicts("verdicts-1", ROWS)
