"""A study of thousands of runs is reported and followed by work that grows with its runs alone, each read once.

The tests count files, hashes and statistics, never seconds.
"""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.written_runs import Writer, written_runs
from tintype.evaluation.protocol import Protocol
from tintype.plan import Plan
from tintype.runtime import files
from tintype.settings import Named
from tintype.study.folder import stored_study
from tintype.study.lab import report_study, run_study
from tintype.study.runner import tasks_of
from tintype.study.stats import estimate
from tintype.study.status import status_of
from tintype.study.study import load_study

RUNS = 24


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a study of 24 runs that was reported, with logs."""
    out = tmp_path_factory.mktemp("study")
    study = load_study("pocket", ["seeds=[0,1,2,3,4,5,6,7]", "control_seeds=[]", "primary=[validation_loss]"])
    with written_runs(Writer()):
        run_study(study, out, 1)
    line = {"flow": 1.0, "seconds": 1.0, "images_per_s": 1.0, "parts": {"forward": 1.0}}
    for task in tasks_of(stored_study(out), out):
        for step in range(5):
            files.append_line(task.folder / "metrics.jsonl", {"step": step, **line})
    return out


@pytest.fixture
def opened(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Counter[Path]:
    """Count how often each file of the study is opened.

    Threads that other tests left in this process read files of the system.
    """
    found, usual = Counter[Path](), io.open

    def noted(file: object, *given: object, **more: object) -> object:
        if Path(str(file)).is_relative_to(folder):
            found[Path(str(file))] += 1
        return usual(file, *given, **more)  # type: ignore[call-overload]

    monkeypatch.setattr(io, "open", noted)
    return found


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> Counter[type[Named]]:
    """Count how often the hash of plans and protocols is computed."""
    found = Counter[type[Named]]()
    for kind in (Plan, Protocol):
        usual = kind.compute_hash

        def noted(one: Named, usual: Callable[[Named], str] = usual) -> str:  # type: ignore[assignment]
            found[type(one)] += 1
            return usual(one)

        monkeypatch.setattr(kind, "compute_hash", noted)
    return found


def test_a_report_reads_each_file_once_and_hashes_each_plan_once(
    folder: Path, opened: Counter[Path], hashed: Counter[type[Named]]
) -> None:
    """The line that names a run, at the top of its plan.yaml, is read again for each file with a seal."""
    report_study(folder)
    heads = [count for file, count in opened.items() if file.name == "plan.yaml"]
    assert len(heads) == RUNS and sum(heads) <= 4 * RUNS + 2
    again = [file.name for file, count in opened.items() if count > 1 and file.name != "plan.yaml"]
    assert sorted(again) == ["looks.json", "result.json"], "that one result names the scores of real images"
    assert hashed[Plan] <= RUNS + 1 and hashed[Protocol] <= 2


def test_a_status_opens_no_file_of_a_run_that_has_ended_and_no_results(
    folder: Path, opened: Counter[Path], hashed: Counter[type[Named]]
) -> None:
    assert len(status_of(folder).of("done")) == RUNS
    assert {file.name for file in opened} == {"baseline.yaml", "study.yaml"}
    assert hashed[Plan] <= RUNS + 1 and hashed[Protocol] <= 2


def test_the_seeds_for_the_same_are_found_by_few_exact_values(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hundreds of comparisons ask for them: the exact values beside the rough answer decide."""
    exact, usual = list[float](), estimate.same_power

    def noted(margin: float, freedom: float, confidence: float, quantiles: int) -> float:
        exact.extend([freedom] if quantiles == estimate._QUANTILES else [])
        return usual(margin, freedom, confidence, quantiles)

    monkeypatch.setattr(estimate, "same_power", noted)
    for seeds, margin in ((3, 0.02), (3, 0.1), (20, 0.02), (100, 1.0)):
        one = estimate.Estimate(0.0, 1.0, 0.99, 0.02, 2.5 * seeds, 0.3, seeds)
        exact.clear()
        found = one.seeds_for_same(margin)
        assert len(exact) <= 3
        monkeypatch.setattr(estimate, "_FEW_QUANTILES", estimate._QUANTILES)
        assert one.seeds_for_same(margin) == found
        monkeypatch.undo()
        monkeypatch.setattr(estimate, "same_power", noted)
