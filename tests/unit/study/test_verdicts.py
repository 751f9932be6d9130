"""Verdicts: the runs of a contrast seed by seed, and what an interval says in the metric's own unit."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from pydantic import ValidationError

from tests.unit.study.plain_rows import asked_arm, rows_of, runs_of
from tintype.study.analysis import AnalysisSettings
from tintype.study.results import Comparison, MetricInfo, Run
from tintype.study.stats.cells import RATIO
from tintype.study.stats.collapse import collapse_p
from tintype.study.stats.family import UNSTABLE
from tintype.study.verdicts import Matched, cells_of, match, without_bias

DISTANCE = MetricInfo(name="m", label="distance", direction="lower", definition="", scale="log")
SHARE = MetricInfo(name="m", label="accuracy", direction="higher", definition="", scale="logit")
LOWER, HIGHER = (
    MetricInfo(name="m", label="anything", direction=direction, definition="") for direction in ("lower", "higher")
)
SPREAD = [0.0, 0.01, -0.01, 0.005, -0.005]
UNPAIRED = [0.0, -0.005, 0.005, 0.01, -0.01]
"""The same runs in an order that has no correlation with the first."""


def row_of(arm: list[Run], baseline: list[Run], meaning: MetricInfo, **analysis: object) -> Comparison:
    """Compare an arm in a study with another arm that is like the baseline."""
    runs = {"baseline": baseline, "arm": arm, "other": baseline[: len(SPREAD)]}
    settings = AnalysisSettings.model_validate(analysis)
    return rows_of(runs, meaning, [asked_arm("arm")], analysis=settings)["arm"]


def around(mean: float, times: float = 1.0, spread: list[float] = UNPAIRED) -> list[Run]:
    return runs_of([mean * (1 + times * one) for one in spread])


def usual(mean: float, times: float = 1.0) -> list[Run]:
    return around(mean, times, SPREAD)


@pytest.mark.parametrize(
    ("mean", "times", "verdict"),
    [(0.5, 1, "worse"), (0.62, 1, "better"), (0.552, 1, "same"), (0.56, 5, "undecided")],
)
def test_the_interval_says_what_is_shown(mean: float, times: float, verdict: str) -> None:
    row = row_of(around(mean, times), usual(0.55, times), SHARE)
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
        row = row_of(around(0.56), usual(0.55), SHARE, **analysis)
        assert row.verdict == "same" and row.margin == pytest.approx(0.11, rel=0.01)
    with pytest.raises(
        ValidationError, match=r"margin three is not a valid size of a difference; write a percentage of"
    ):
        AnalysisSettings(margin="three")


def test_distances_are_compared_as_logarithms_and_written_in_their_unit() -> None:
    row = row_of(around(2.0), usual(4.0), DISTANCE)
    assert row.scale == "log" and row.verdict == "better" and row.low is not None and row.high is not None
    geometric = math.exp(sum(math.log(1 + one) for one in SPREAD) / len(SPREAD))
    assert (row.mean, row.baseline_mean) == pytest.approx((2 * geometric, 4 * geometric))
    assert row.difference == pytest.approx(row.mean - row.baseline_mean)
    low, high = (math.log1p(end / row.baseline_mean) for end in (row.low, row.high))
    assert (low + high) / 2 == pytest.approx(math.log(0.5))
    larger = row_of(around(20.0), usual(40.0), DISTANCE)
    assert larger.low == pytest.approx(10 * row.low) and larger.p == pytest.approx(row.p)


def biased(runs: list[Run], bias: float) -> list[Run]:
    return [run.model_copy(update={"biases": {"m": bias}}) for run in runs]


def test_same_is_not_said_where_the_bias_may_hide_a_difference() -> None:
    """The distances 1.00 and 1.04 lie within a margin of 10%; of 0.10 and 0.14 without their bias nobody says so."""
    new, old = around(1.04, 0.1), usual(1.0, 0.1)
    plain = row_of(new, old, DISTANCE, margin="10%")
    hidden, little = (row_of(biased(new, bias), biased(old, bias), DISTANCE, margin="10%") for bias in (0.9, 0.05))
    assert plain.verdict == little.verdict == "same" and little.note == ""
    assert hidden.verdict == "undecided" and "images the difference is +0.04: worse" in hidden.note
    assert (hidden.difference, hidden.low, hidden.high) == (plain.difference, plain.low, plain.high)
    one_unknown = [*biased(new[1:], 0.9), new[0]]
    assert row_of(one_unknown, biased(old, 0.9), DISTANCE, margin="10%") == row_of(
        [*new[1:], new[0]], old, DISTANCE, margin="10%"
    ), "as if no bias were known"


def test_a_bias_takes_no_verdict_of_a_difference_but_is_noted() -> None:
    """An arm with less bias looks better and is not; one within its bias says nothing."""
    row = row_of(biased(around(1.0), 0.1), biased(usual(1.1), 0.2), DISTANCE)
    assert row.verdict == "better" and row.note.endswith(": same"), row.note
    assert row_of(biased(around(0.1), 0.15), biased(usual(0.1), 0.15), DISTANCE, margin="10%").verdict == "undecided"
    assert "bias" not in row_of(biased(around(0.5), 0.1), biased(usual(1.1), 0.1), DISTANCE).note


def test_ratios_lose_their_bias_only_where_a_logarithm_is_left() -> None:
    runs = {"baseline": biased(usual(1.0), 0.5)}
    cells = cells_of({"baseline": "baseline"}, runs, "m", DISTANCE)
    ratios = replace(cells, scale=RATIO)
    bare = without_bias(ratios, runs, "m")
    assert (
        bare is not None and bare.scale == RATIO and bare.values["baseline"][1] == pytest.approx(math.log(1.01 - 0.5))
    )
    within = {"baseline": biased(usual(1.0), 1.0)}
    assert without_bias(ratios, within, "m") is None
    left = without_bias(cells, within, "m")
    assert left is not None and left.scale.kind == "raw"


def test_values_that_are_not_positive_are_compared_as_they_are() -> None:
    row = row_of(runs_of([0.0, 1.0, 2.0]), runs_of([4.0, 5.0, 6.0]), DISTANCE)
    assert row.scale == "raw" and row.difference == pytest.approx(-4)


def test_the_estimate_of_a_verdict_is_corrected_for_selection() -> None:
    near, far = (row_of(around(mean), usual(0.55), SHARE, margin="0.1%") for mean in (0.559, 0.8))
    assert near.verdict == far.verdict == "better" and near.corrected is not None and far.corrected is not None
    assert 0 < near.corrected.value < 0.9 * near.difference
    assert far.corrected.value == pytest.approx(far.difference, rel=0.01)
    for one in (near.corrected, far.corrected):
        assert one.low is not None and one.high is not None and one.low < one.value < one.high


def test_runs_that_keep_the_luck_of_their_seed_are_paired() -> None:
    plain, paired = (row_of(around(0.56, 1, spread), usual(0.55), SHARE) for spread in (UNPAIRED, SPREAD))
    assert plain.correlation == 0 and paired.correlation > 0.9
    assert plain.low is not None and paired.low is not None and paired.low > plain.low
    assert plain.difference == pytest.approx(paired.difference)


SIX = [0.55 * (1 + one) for one in [*SPREAD, 0.002]]


def test_one_collapsed_run_is_left_out_and_noted() -> None:
    arm = [*around(0.6), *runs_of([0.2], first_seed=5)]
    row = row_of(arm, runs_of(SIX), SHARE)
    assert row.verdict == row.words == "better" and row.collapsed == [5] and row.healthy_verdict is None
    assert row.note == "1 of 6 runs collapsed; of the baseline's, 0 of 6; with collapsed runs: undecided"
    assert row.mean == pytest.approx(0.6, rel=1e-3) and len(row.differences) == 6
    assert row.collapse_p == pytest.approx(collapse_p(1, 6, 0, 6))
    assert row.all_runs is not None and row.all_runs.value < 0 and row.all_runs_verdict == "undecided"


def test_a_collapsed_run_of_the_baseline_takes_no_verdict() -> None:
    baseline = [*usual(0.55), *runs_of([0.2], first_seed=5)]
    row = row_of(runs_of([0.6 * (1 + one) for one in [*UNPAIRED, 0.002]]), baseline, SHARE)
    assert row.verdict == "better" and (row.collapsed, row.baseline_collapsed) == ([], [5])
    assert row.baseline_mean == pytest.approx(0.55, rel=1e-3) and row.collapse_p is None
    assert row.note == "0 of 6 runs collapsed; of the baseline's, 1 of 6; with collapsed runs: undecided"
    assert row.all_runs is not None and row.all_runs.value > row.difference


@pytest.mark.parametrize(("collapsed", "of_baseline", "unstable"), [(1, 0, False), (5, 0, True), (3, 3, False)])
def test_an_arm_is_unstable_where_it_collapses_more_often(collapsed: int, of_baseline: int, unstable: bool) -> None:
    """Arm and baseline have ten runs each; the one arm has all of the 2%."""
    ten = [*SPREAD, *(0.9 * one + 0.001 for one in UNPAIRED)]

    def ten_runs(mean: float, collapsed: int) -> list[Run]:
        return runs_of([mean * (1 + one) if index < 10 - collapsed else 0.1 for index, one in enumerate(ten)])

    row = row_of(ten_runs(0.6, collapsed), ten_runs(0.55, of_baseline), SHARE)
    p = collapse_p(collapsed, 10, of_baseline, 10)
    assert row.collapse_p == pytest.approx(p) and (p < UNSTABLE) == unstable
    assert sorted(row.collapsed) == list(range(10 - collapsed, 10)) and len(row.baseline_collapsed) == of_baseline
    if unstable:
        assert row.verdict == "unstable" and row.healthy_verdict == "better"
        assert row.note == "with collapsed runs: worse"
        assert row.words == f"unstable: {collapsed} of 10 runs collapsed; the others: better"
    else:
        assert row.verdict == "better" and row.note.startswith(f"{collapsed} of 10 runs collapsed")


def verdicts(meaning: MetricInfo = LOWER, /, **values: list[float]) -> dict[str, str]:
    rows = rows_of({name: runs_of(of) for name, of in values.items()}, meaning)
    return {name: row.verdict for name, row in rows.items()}


BASELINE = [10.0, 10.2, 9.9]


def test_a_clear_effect_is_called_by_its_direction() -> None:
    values = {"baseline": BASELINE, "low": [5.0, 5.25, 4.85], "high": [15.0, 15.1, 14.9]}
    assert verdicts(**values) == {"low": "better", "high": "worse"}
    assert verdicts(HIGHER, **values) == {"low": "worse", "high": "better"}


def test_one_seed_is_a_sketch() -> None:
    row = rows_of({"baseline": runs_of([10.0]), "arm": runs_of([5.0])}, LOWER)["arm"]
    assert row.verdict == "sketch" and row.difference == -5
    assert row.low is row.high is row.p is row.p_adjusted is row.detectable is None


def lost(*seeds: int, state: str = "diverged") -> list[Run]:
    """Three runs, of which some have no value."""
    return [
        Run.model_validate({"seed": run.seed, "hash": "", "folder": "", "state": state}) if run.seed in seeds else run
        for run in runs_of([2.0, 2.2, 2.1])
    ]


def matched(arm: list[Run], baseline: list[Run], name: str = "arm") -> Matched:
    found = match(asked_arm(name), {name: arm, "baseline": baseline}, "m")
    assert isinstance(found, Matched)
    return found


def test_runs_that_failed_or_diverged_leave_the_comparison_with_their_partners() -> None:
    arm = [*runs_of([2.0, math.inf]), *lost(2, state="failed")[2:]]
    found = matched(arm, runs_of([1.0] * 3))
    assert (found.old, found.differences, found.complete, found.loss) == ([1.0], [1.0], False, "diverged")
    assert found.lost == "diverged 1 of 3, failed 1 of 3"
    assert matched(runs_of([1.0] * 3), lost(0)).lost == "baseline diverged 1 of 3"


def test_an_arm_may_have_fewer_seeds_and_the_control_has_its_own() -> None:
    """Its runs differ from the baseline's mean, whichever run each is beside."""
    fewer = matched(runs_of([3.0, 4.0]), runs_of([1.0, 2.0, 9.0]))
    assert fewer.complete and fewer.differences == [2.0, 2.0]
    control = matched(runs_of([3.0, 4.0], first_seed=7), runs_of([1.0, 2.0]), "control")
    assert control.complete and control.differences == [1.5, 2.5]


def test_an_arm_that_lost_runs_has_numbers_and_no_verdict() -> None:
    for state, verdict in (("diverged", "diverged"), ("failed", "failed"), ("missing", "incomplete")):
        rows = rows_of({"baseline": runs_of(BASELINE), "arm": lost(1, state=state)}, LOWER)
        row = rows["arm"]
        assert row.verdict == verdict and len(row.differences) == 2
        assert row.p is not None and row.p_adjusted is None
    none_left = rows_of({"baseline": runs_of(BASELINE), "arm": lost(0, 1, 2)}, LOWER)["arm"]
    assert none_left.verdict == "diverged" and none_left.differences == [] and math.isnan(none_left.difference)
    waiting = lost(0, 1, 2, state="missing")
    assert rows_of({"baseline": runs_of(BASELINE), "arm": waiting}, LOWER) == {}
