"""Interval, p value and verdict of a comparison agree, on random values and on degenerate ones."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pytest

from tests.unit.study.plain_rows import asked_arm, rows_of, runs_of
from tintype.study.analysis import AnalysisSettings
from tintype.study.results import Comparison, MetricInfo, Run
from tintype.study.stats.contrast import Key
from tintype.study.stats.estimate import CONFIDENCE
from tintype.study.verdicts import Matched, match

LOWER, HIGHER = (
    MetricInfo(name="m", label="anything", direction=direction, definition="") for direction in ("lower", "higher")
)
OTHER_WAY = {"better": "worse", "worse": "better"}
ANALYSIS = AnalysisSettings(margin="1e-9%")


def drawn(kind: str, seeds: int, generator: np.random.Generator) -> tuple[list[float], list[float]]:
    """Values of an arm and of the baseline."""
    old = generator.normal(3, 1, seeds)
    noise = generator.normal(size=seeds)
    new = {
        "random": old + noise,
        "clear": old - 2 + 0.05 * noise,
        "constant difference": old + 0.25,
        "constant sets": np.full(seeds, 0.5),
        "equal": old.copy(),
        "equal up to rounding": old * (1 + 1e-15 * noise),
        "ties": np.round(old + noise),
        "tied differences": old + generator.integers(0, 2, seeds),
        "symmetric differences": old + np.resize([1.0, -1.0, 0.5, -0.5, 0.0], seeds),
        "one differs": old + np.eye(seeds)[0],
        "zeros": np.zeros(seeds),
        "clearly above": old + 3 + 0.05 * noise,
    }[kind]
    if kind == "constant sets":
        old = np.full(seeds, 0.25)
    if kind == "ties":
        old = np.round(old)
    if kind == "zeros":
        old = np.zeros(seeds)
    return new.tolist(), old.tolist()


KINDS = (
    "random",
    "clear",
    "constant difference",
    "constant sets",
    "equal",
    "equal up to rounding",
    "ties",
    "tied differences",
    "symmetric differences",
    "one differs",
    "zeros",
    "clearly above",
)


@dataclass(frozen=True)
class Case:
    new: list[float]
    old: list[float]
    name: str
    """An arm, whose runs share the baseline's seeds, or the control."""

    @cached_property
    def row(self) -> Comparison:
        return row_of(self.new, self.old, self.name)

    def row_of(self, new: list[float], old: list[float], meaning: MetricInfo = LOWER) -> Comparison:
        return row_of(new, old, self.name, meaning)


def _cases() -> Iterator[Case]:
    generator = np.random.default_rng(0)
    for kind in KINDS:
        for seeds in range(1, 11):
            new, old = drawn(kind, seeds, generator)
            for name in NAMES:
                yield Case(new, old, name)


NAMES = ("arm", "control")
CASES = list(_cases())


def row_of(new: list[float], old: list[float], name: str, meaning: MetricInfo = LOWER) -> Comparison:
    """One of three comparisons of a study; the other two have not been run."""
    runs = {"baseline": runs_of(old), name: runs_of(new, 0 if name == "arm" else 100)}
    family = [asked_arm(name).key, Key("b", "m"), Key("c", "m")]
    return rows_of(runs, meaning, family=family, analysis=ANALYSIS)[name]


def check(row: Comparison) -> None:
    """Check what holds for every comparison."""
    given = (row.low, row.high, row.p, row.p_adjusted, row.detectable, row.difference)
    assert all(math.isfinite(value) for value in given if value is not None)
    level = 1 - CONFIDENCE
    assert (row.p is None) == (row.verdict in ("sketch", "identical", "no spread"))
    if row.p is None:
        assert row.low is row.high is row.p_adjusted is row.detectable is None
        return
    assert row.p_adjusted is not None and 0 <= row.p <= row.p_adjusted <= 1
    assert row.p_adjusted == pytest.approx(min(1.0, 3 * row.p))
    assert (row.verdict in ("better", "worse")) == (row.p_adjusted < level)
    if row.verdict in ("better", "worse"):
        assert (row.difference < 0) == (row.verdict == "better")
    assert row.low is not None and row.high is not None and row.low < row.high
    if abs(row.p_adjusted - level) > 1e-9:
        assert row.low <= row.difference <= row.high
        assert (row.low > 0 or row.high < 0) == (row.p_adjusted < level)
    if row.verdict in ("better", "worse"):
        assert row.low > 0 or row.high < 0


def same(first: Comparison, second: Comparison, factor: float = 1.0, turned: bool = False) -> None:
    """The second is the first times a factor; a negative one mirrors the interval. `turned`: better is worse then."""
    ends = (first.low, first.high) if factor > 0 else (first.high, first.low)
    size = max(abs(value) for value in (first.mean, first.baseline_mean, first.difference, 1e-300))
    for value, expected in zip((second.low, second.high, second.difference), (*ends, first.difference), strict=True):
        assert (value is None) == (expected is None)
        if value is not None and expected is not None:
            assert value / factor == pytest.approx(expected, rel=1e-7, abs=1e-9 * size)
    assert second.p == pytest.approx(first.p, rel=1e-6, abs=1e-12) if first.p is not None else second.p is None
    assert second.verdict == (OTHER_WAY.get(first.verdict, first.verdict) if turned else first.verdict)


def test_interval_p_and_verdict_agree_whatever_the_values() -> None:
    for case in CASES:
        check(case.row)
    assert {case.row.verdict for case in CASES} == {"better", "worse", "undecided", "identical", "no spread", "sketch"}


def test_the_order_of_the_seeds_does_not_matter() -> None:
    generator = np.random.default_rng(1)
    for case in CASES:
        first = generator.permutation(len(case.new))
        second = first if case.name == "arm" else generator.permutation(len(case.new))
        same(case.row, case.row_of([case.new[i] for i in first], [case.old[i] for i in second]))


def test_swapping_the_sets_turns_everything_round() -> None:
    for case in CASES:
        same(case.row, case.row_of(case.old, case.new), -1.0, turned=True)


def test_values_of_the_other_sign_and_direction_mirror_the_interval() -> None:
    """Collapsed runs are the same ones: a collapse is towards the worse side."""
    for case in CASES:
        row = case.row_of([-value for value in case.new], [-value for value in case.old], HIGHER)
        same(case.row, row, -1.0)
        assert (row.collapsed, row.baseline_collapsed) == (case.row.collapsed, case.row.baseline_collapsed)


@pytest.mark.parametrize("factor", [1e-300, 1e-170, 3.0, 1e200, 1e300])
def test_the_unit_of_a_metric_does_not_matter(factor: float) -> None:
    """Squares of these overflow or vanish."""
    for case in CASES:
        if len(case.new) <= 5:
            row = case.row_of([factor * value for value in case.new], [factor * value for value in case.old])
            same(case.row, row, factor)


@pytest.mark.parametrize("name", NAMES)
def test_without_a_spread_there_is_no_interval_and_no_verdict(name: str) -> None:
    """It was an interval of [0.25, 0.25] beside p = 1, and a smallest detectable difference of zero."""
    for new, verdict in (([0.5] * 8, "no spread"), ([0.25] * 8, "identical")):
        row = row_of(new, [0.25] * 8, name)
        assert (row.verdict, row.difference) == (verdict, new[0] - 0.25)
        assert row.low is row.high is row.p is row.p_adjusted is row.detectable is None


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, None])
@pytest.mark.parametrize("side", ["arm", "baseline"])
def test_a_value_that_is_not_finite_or_missing_leaves_no_verdict(bad: float | None, side: str) -> None:
    """`None`: the run has no such metric."""
    generator = np.random.default_rng(2)
    for seeds in range(1, 11):
        for name in NAMES:
            new, old = (runs_of(generator.normal(size=seeds).tolist()) for _ in range(2))
            lost = Run(seed=0, hash="h", folder="f", state="done", metrics={} if bad is None else {"m": bad})
            (new if side == "arm" else old)[0] = lost
            found = match(asked_arm(name), {name: new, "baseline": old}, "m")
            assert isinstance(found, Matched) and len(found.old) == len(found.differences) == seeds - 1
            assert not found.complete and found.loss == ("incomplete" if bad is None else "diverged")
            if found.differences:
                row = rows_of({name: new, "baseline": old}, LOWER)[name]
                assert row.verdict == found.loss and row.p_adjusted is None


def test_values_at_the_end_of_the_range_of_floats_do_not_stop_a_report() -> None:
    for new in ([1e308, -1e308, 1.7e308], [1e308] * 3, [5e-324, 0.0, 5e-324]):
        assert row_of(new, [0.0, 1.0, -1e308], "arm").verdict == "undecided"
