"""Verdicts of the shared method: what an interval says, in the metric's own unit."""

from __future__ import annotations

import math

import pytest
from pydantic import ValidationError

from tintype.study.analysis import AnalysisSettings
from tintype.study.groups import metric_groups
from tintype.study.pairs import Pair, pair_runs
from tintype.study.results import Comparison, MetricInfo, Role, Run
from tintype.study.stats import corrected_for_selection
from tintype.study.verdicts import compare

LOWER = MetricInfo(name="m", label="distance", direction="lower", definition="", range=(0.0, None))
SHARE = MetricInfo(name="m", label="accuracy", direction="higher", definition="", range=(0.0, 1.0))
SPREAD = [0.0, 0.01, -0.01, 0.005, -0.005]


def runs(*values: float) -> list[Run]:
    return [
        Run(seed=seed, hash="", folder="", state="done", metrics={"m": value, "images_per_s": 10 + seed})
        for seed, value in enumerate(values)
    ]


def row_of(
    arm: list[Run], baseline: list[Run], meaning: MetricInfo, metric: str = "m", **analysis: object
) -> Comparison:
    roles: dict[str, Role] = {"baseline": "baseline", "arm": "arm", "other": "arm"}
    by_arm = {"baseline": baseline, "arm": arm, "other": baseline[: len(SPREAD)]}
    groups = metric_groups(roles, by_arm, metric, meaning)
    pair = groups.compared(pair_runs(arm, baseline, metric, True), "arm")
    settings = AnalysisSettings.model_validate(analysis)
    return compare({("arm", metric): pair}, {metric: meaning}, [metric], settings)["arm", metric]


def around(mean: float, times: float = 1.0) -> list[Run]:
    return runs(*(mean * (1 + times * one) for one in SPREAD))


@pytest.mark.parametrize(
    ("mean", "times", "verdict"),
    [(0.5, 1, "worse"), (0.62, 1, "better"), (0.552, 1, "same"), (0.56, 5, "undecided")],
)
def test_the_interval_says_what_is_shown(mean: float, times: float, verdict: str) -> None:
    row = row_of(around(mean, times), around(0.55, times), SHARE)
    assert row.verdict == verdict and row.low is not None and row.high is not None and row.margin is not None
    inside = -row.margin <= row.low and row.high <= row.margin
    assert inside == (verdict == "same")
    assert (not inside and not row.low <= 0 <= row.high) == (verdict in ("better", "worse"))
    assert (row.seeds_needed is not None and row.seeds_needed > 5) == (verdict == "undecided")


def test_margins_are_of_the_metric_or_of_all_relative_or_in_its_unit() -> None:
    for analysis in (
        {"margin": "20%"},
        {"margins": {"m": 0.11}},
        {"margin": 0.11},
        {"margin": "1%", "margins": {"m": "20%"}},
    ):
        row = row_of(around(0.56), around(0.55), SHARE, **analysis)
        assert row.verdict == "same" and row.margin == pytest.approx(0.11, rel=0.01)
    with pytest.raises(ValidationError, match=r"margin three: write it as 5%"):
        AnalysisSettings(margin="three")


def test_distances_are_compared_as_logarithms_and_written_in_their_unit() -> None:
    row = row_of(around(2.0), around(4.0), LOWER)
    assert row.scale == "log" and row.verdict == "better" and row.low is not None and row.high is not None
    geometric = math.exp(sum(math.log(1 + one) for one in SPREAD) / len(SPREAD))
    assert (row.mean, row.baseline_mean) == pytest.approx((2 * geometric, 4 * geometric))
    assert row.difference == pytest.approx(row.mean - row.baseline_mean)
    low, high = (math.log1p(end / row.baseline_mean) for end in (row.low, row.high))
    assert (low + high) / 2 == pytest.approx(math.log(0.5))
    larger = row_of(around(20.0), around(40.0), LOWER)
    assert larger.low == pytest.approx(10 * row.low) and larger.p == pytest.approx(row.p)


def test_values_that_are_not_positive_are_compared_as_they_are() -> None:
    row = row_of(runs(0.0, 1.0, 2.0), runs(4.0, 5.0, 6.0), LOWER)
    assert row.scale == "raw" and row.difference == pytest.approx(-4)


def test_the_estimate_of_a_verdict_is_corrected_for_selection() -> None:
    near, far = (row_of(around(mean), around(0.55), SHARE, margin="0.1%") for mean in (0.558, 0.8))
    assert near.verdict == far.verdict == "better" and near.corrected is not None and far.corrected is not None
    assert 0 < near.corrected < 0.9 * near.difference
    assert far.corrected == pytest.approx(far.difference, rel=0.01)
    assert corrected_for_selection(-5.0, 1.0, 2.0) == pytest.approx(-corrected_for_selection(5.0, 1.0, 2.0))


def test_an_arm_whose_runs_fell_is_unstable_and_its_numbers_are_of_the_others() -> None:
    arm = [*around(0.6), *(run.model_copy(update={"seed": 5}) for run in runs(0.2))]
    baseline = runs(*(0.55 * (1 + one) for one in [*SPREAD, 0.002]))
    row = row_of(arm, baseline, SHARE)
    assert row.verdict == "unstable" and row.fallen == [5] and row.words == "unstable: 1 of 6 runs fell off"
    assert row.mean == pytest.approx(0.6) and len(row.differences) == 6
    turned = row_of(baseline, arm, SHARE)
    assert turned.verdict == "unstable" and turned.note == "runs of the baseline fell off (seed 5)"
    assert turned.baseline_fallen == [5] and turned.words == "unstable: runs of the baseline fell off"


def test_the_throughput_is_measured() -> None:
    speed = MetricInfo(name="images_per_s", label="speed", direction="higher", definition="", range=(0.0, None))
    row = row_of(around(1.0), around(1.0), speed, "images_per_s")
    assert row.verdict == "measured" and row.p is None and row.low is None and row.difference == 0


def test_a_share_of_the_error_widens_the_interval() -> None:
    pair = Pair([1.0, 1.2, 0.9], [2.0, 2.1, 1.8], True, True)
    whole, half = (compare({("a", "m"): pair}, {"m": LOWER}, share=share)["a", "m"] for share in (1.0, 0.5))
    assert whole.low is not None and half.low is not None and half.low < whole.low
    assert half.p_adjusted == pytest.approx(2 * (whole.p_adjusted or 0)) and half.level == pytest.approx(0.975)
