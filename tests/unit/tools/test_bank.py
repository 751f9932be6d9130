"""Studies drawn from a bank of runs: verdicts between runs of one plan are false, planted changes are found."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tintype.metrics.metric import NOT_NEGATIVE
from tintype.study.results import Comparison, MetricInfo, Run, Verdict
from tools.calibration import bank as banks
from tools.calibration.bank import Bank, measure, null, null_studies, real

ACCURACY = MetricInfo(name="accuracy", label="accuracy", direction="higher", definition="", primary=True)
DISTANCE = MetricInfo(
    name="distance", label="distance", direction="lower", definition="", primary=True, range=NOT_NEGATIVE
)


def runs(name: str, count: int, accuracy: float = 0.7, distance: float = 3.0, spread: float = 1.0) -> tuple[Run, ...]:
    generator = np.random.default_rng(len(name) + count)
    return tuple(
        Run(
            seed=seed,
            hash=f"{name}/{seed}",
            folder="",
            state="done",
            metrics={"accuracy": accuracy + 0.01 * spread * a, "distance": distance * math.exp(0.1 * spread * b)},
        )
        for seed, (a, b) in enumerate(generator.normal(size=(count, 2)).tolist())
    )


@pytest.fixture
def bank() -> Bank:
    return Bank(
        baseline=runs("baseline", 64),
        arms={"far": runs("far", 32, accuracy=0.4, distance=9.0), "like": runs("like", 32)},
        metrics={"accuracy": ACCURACY, "distance": DISTANCE},
        primary=("accuracy", "distance"),
    )


def test_no_run_is_drawn_twice_for_a_study(bank: Bank) -> None:
    for seeds, arms in ((3, 5), (8, 5), (16, 2)):
        sets = next(null_studies(bank, seeds, 1))
        drawn = [run.hash for some in sets.values() for run in some]
        assert len(drawn) == len(set(drawn)) == seeds * (arms + 2)
        assert [run.seed for run in sets["control"]] == list(range(seeds))


def test_few_studies_of_one_plan_have_verdicts_and_large_changes_are_found(bank: Bank) -> None:
    found = null(bank, 8, 60)
    assert found.arms == 5
    assert found.false_verdicts <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / 60)
    assert found.covered > 0.95
    assert found.found["2"] > max(0.5, found.found["1"])


def test_a_method_without_correction_would_be_caught(bank: Bank, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tintype.study.compare.confidence_of", lambda share: 0.8)
    assert null(bank, 5, 30).false_verdicts > 0.5


def test_verdicts_on_real_arms_are_held_against_the_seeds_that_were_not_drawn(bank: Bank) -> None:
    found = real(bank, 5, 20)
    assert found.claims >= 40  # the arm that is far from the baseline, on both metrics
    assert found.holds is not None and found.holds > 0.9
    assert found.opposite == 0


@pytest.mark.parametrize(
    ("verdict", "interval", "outcome"),
    [
        ("worse", (0.5, 1.5), "holds"),
        ("unstable", (0.5, 1.5), "holds"),
        ("better", (-1.5, -0.5), "opposite"),
        ("undecided", (-0.5, 1.5), "open"),
        ("unstable", (-0.5, 1.5), "open"),
        ("incomplete", (None, None), "open"),
    ],
)
def test_other_seeds_confirm_a_verdict_contradict_it_or_leave_it_open(
    verdict: Verdict, interval: tuple[float | None, float | None], outcome: str
) -> None:
    (low, high), difference = interval, -1.0 if verdict == "better" else 1.0
    first = Comparison(mean=1.0, baseline_mean=0.0, differences=[1.0], difference=1.0, verdict="worse")
    later = first.model_copy(update={"verdict": verdict, "difference": difference, "low": low, "high": high})
    assert banks._outcome(first, later) == outcome


def test_the_numbers_of_a_bank_have_a_row_for_each_number_of_seeds(bank: Bank, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(banks, "SEEDS", (3, 20))
    monkeypatch.setattr(banks, "EFFECTS", (2.0,))
    found = measure(bank, 2)
    rows = found["null"], found["real"]
    assert [[row["seeds"] for row in some] for some in rows] == [[3, 20], [3]]  # type: ignore[attr-defined]
