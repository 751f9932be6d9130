"""The shared spread: against scipy at both ends of sharing, and by hand between them."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats as scipy_stats

from tintype.study import spread
from tintype.study.spread import Groups, Term, against, difference

ARM, BASELINE, CONTROL = [1.0, 2.5, 3.1, 4.0], [0.7, 1.9, 3.3, 3.0], [0.9, 2.2, 2.6, 3.5]


def groups(**values: list[float]) -> Groups:
    known = {name: dict(enumerate(of)) for name, of in values.items()}
    return Groups(known, {"control": "baseline"} if "control" in known else {})


def two() -> Term:
    return against(groups(arm=ARM, baseline=BASELINE), "arm", ["baseline"])


def test_without_sharing_it_is_welchs_test(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spread, "SHARED_FREEDOM", 0.0)
    oracle = scipy_stats.ttest_ind(ARM, BASELINE, equal_var=False)
    found = difference([two()])
    assert found.p == pytest.approx(oracle.pvalue)
    assert found.interval(0.95) == pytest.approx(tuple(oracle.confidence_interval(0.95)))


def test_with_sharing_alone_it_is_students_test(monkeypatch: pytest.MonkeyPatch) -> None:
    """Degrees of freedom are at most those of all runs, however much the shared variance counts."""
    monkeypatch.setattr(spread, "SHARED_FREEDOM", 1e12)
    oracle = scipy_stats.ttest_ind(ARM, BASELINE, equal_var=True)
    found = difference([two()])
    assert found.p == pytest.approx(oracle.pvalue, rel=1e-6) and found.freedom == 6


def test_the_variance_between_both_ends() -> None:
    wide = [0.0, 1.0, 2.0]
    found = groups(a=wide, b=[0.0, 1.5, 3.0], baseline=[0.0, 0.5, 1.0]).variances
    shared = (1 + 2.25 + 0.25) / 3
    assert found["a"].value == pytest.approx((2 * shared + 2 * 1) / 4) and found["a"].freedom == 4
    assert found["b"].value == pytest.approx((2 * shared + 2 * 2.25) / 4)


def test_the_controls_runs_count_as_the_baselines() -> None:
    term = against(groups(arm=ARM, baseline=BASELINE, control=CONTROL), "arm", ["baseline", "control"])
    assert term.value == pytest.approx(np.mean(ARM) - np.mean(BASELINE + CONTROL))
    own = term.groups.own["baseline"]
    assert own.freedom == 6 and own.value == pytest.approx((np.var(BASELINE, ddof=1) + np.var(CONTROL, ddof=1)) / 2)
    (arm, both) = term.errors()
    assert both.value == pytest.approx(term.groups.variances["baseline"].value / 8) and arm.freedom == 5


def test_an_arm_whose_spread_stands_out_keeps_its_own() -> None:
    found = groups(arm=[0.0, 30.0, 60.0], quiet=[0.0, 1.0, 2.0], baseline=[0.0, 1.1, 2.0])
    assert found.variances["arm"] == spread.Variance(900.0, 2, stands_out=True)
    assert against(found, "arm", ["baseline"]).stands_out == ["arm"]
    assert against(found, "quiet", ["baseline"]).stands_out == []


def test_a_trend_is_the_difference_of_two_differences() -> None:
    large = against(groups(arm=ARM, baseline=BASELINE), "arm", ["baseline"])
    small = against(groups(arm=CONTROL, baseline=BASELINE), "arm", ["baseline"])
    found = difference([large, small.times(-1)])
    assert found.value == pytest.approx(np.mean(ARM) - np.mean(CONTROL))
    parts = [difference([one]).error or 0.0 for one in (large, small)]
    assert found.error == pytest.approx(math.hypot(*parts))


def test_one_run_has_no_error() -> None:
    found = difference([against(groups(arm=[1.0], baseline=BASELINE), "arm", ["baseline"])])
    assert found.error is None and found.value == pytest.approx(1 - np.mean(BASELINE))


def test_a_control_with_one_run_left_takes_no_verdict_from_the_arms() -> None:
    found = groups(arm=ARM, baseline=BASELINE, control=CONTROL[:1])
    one = difference([against(found, "arm", ["baseline", "control"])])
    assert one.error is not None and one.value == pytest.approx(np.mean(ARM) - np.mean(BASELINE + CONTROL[:1]))
    sketch = groups(arm=ARM[:1], baseline=BASELINE[:1], control=CONTROL[:1])
    assert difference([against(sketch, "arm", ["baseline", "control"])]).error is None
