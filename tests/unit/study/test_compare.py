"""Rows of a study: their share of its error, what is measured, and the error that comes from sampling."""

from __future__ import annotations

import math
from statistics import fmean, stdev

import pytest

from tests.unit.study.plain_rows import rows_of, runs_of
from tintype.study.compare import _sampling_error
from tintype.study.results import MetricInfo, Run
from tintype.study.stats.contrast import Key

LOWER = MetricInfo(name="m", label="distance", direction="lower", definition="")
RUNS = {"baseline": runs_of([10.0, 10.2, 9.9]), "arm": runs_of([9.4, 8.8, 9.0])}
"""The runs share no luck of their seeds: with pairs, p would depend on the confidence at which they pay."""


def test_what_is_planned_and_missing_counts_with_a_p_of_one() -> None:
    """Alone it is better; of twenty it is not, and neither while the others are missing or in part."""
    planned = [Key("arm", "m"), *(Key(str(index), "m") for index in range(19))]
    alone, early = rows_of(RUNS, LOWER)["arm"], rows_of(RUNS, LOWER, family=planned)["arm"]
    assert alone.verdict == "better" and early.verdict == "undecided"
    assert alone.p_adjusted == pytest.approx(alone.p) and early.p_adjusted == pytest.approx(20 * (alone.p or 0))
    begun = rows_of({**RUNS, "0": runs_of([9.0, math.nan, 8.8])}, LOWER, family=planned)
    assert begun["arm"].level == early.level and begun["arm"].verdict == "undecided"
    assert begun["0"].verdict == "diverged" and begun["0"].p is not None and begun["0"].p_adjusted is None


def test_each_comparison_of_a_family_needs_more_evidence() -> None:
    others = {f"other {index}": runs_of([10.1, 10.0, 10.05]) for index in range(12)}
    assert rows_of({**RUNS, **others}, LOWER)["arm"].verdict == "undecided"


def test_a_share_of_the_error_widens_the_interval() -> None:
    whole, half = (rows_of(RUNS, LOWER, share=share)["arm"] for share in (1.0, 0.5))
    assert whole.low is not None and half.low is not None and half.low < whole.low
    assert half.p_adjusted == pytest.approx(2 * (whole.p_adjusted or 0)) and half.level == pytest.approx(0.975)


def test_the_throughput_is_measured_and_has_no_share() -> None:
    speed = MetricInfo(name="images_per_s", label="speed", direction="higher", definition="", range=(0.0, None))
    runs = {name: runs_of(of, metric=speed.name) for name, of in {"baseline": [9.0, 11.0], "arm": [12.0, 18.0]}.items()}
    row = rows_of(runs, speed)["arm"]
    assert (row.verdict, row.mean, row.baseline_mean, row.differences) == ("measured", 15.0, 10.0, [3.0, 7.0])
    assert row.p is row.low is row.level is None


def run(name: str, error: float) -> Run:
    return Run(seed=0, hash=name, folder=name, state="done", metrics={"loss": 0.0}, errors={"loss": error})


def test_images_that_all_arms_share_cancel() -> None:
    """Images are hard or easy for every arm. What differs between arms is a little more on each second image."""
    hard = [float(index % 10) for index in range(100)]
    images = {"old": {"loss": hard}, "new": {"loss": [value + 0.1 * (i % 2) for i, value in enumerate(hard)]}}
    found = _sampling_error([run("new", 0.3)], [run("old", 0.3)], "loss", images)
    assert found == pytest.approx(stdev([0.1 * (i % 2) for i in range(100)]) / 10)
    assert found is not None and found < 0.02 * math.hypot(0.3, 0.3)


def test_seeds_are_averaged_before_images_are_compared() -> None:
    values = {"a": [1.0, 2.0, 4.0, 0.0], "b": [3.0, 2.0, 0.0, 0.0], "old": [0.0, 1.0, 1.0, 0.0]}
    images = {name: {"loss": numbers} for name, numbers in values.items()}
    differences = [fmean((a, b)) - old for a, b, old in zip(*values.values(), strict=True)]
    found = _sampling_error([run("a", 1), run("b", 1)], [run("old", 1)], "loss", images)
    assert found == pytest.approx(stdev(differences) / 2)


def test_without_numbers_of_images_both_arms_are_independent() -> None:
    assert _sampling_error([run("new", 0.3)], [run("old", 0.4)], "loss", {}) == pytest.approx(0.5)
    assert _sampling_error([run("new", 0.3)], [run("old", 0.4)], "loss", {"new": {"loss": [1.0]}}) == pytest.approx(0.5)
