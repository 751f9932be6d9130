"""The mean of several estimates: its equations, and how often it is wrong where studies do not differ."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from tintype.study.stats.between import between
from tintype.study.stats.estimate import Estimate


def estimates(values: list[float], errors: list[float]) -> list[Estimate]:
    return [
        Estimate(value, 2.0, error=error, freedom=20.0, seeds=4) for value, error in zip(values, errors, strict=True)
    ]


def test_studies_that_differ_solve_the_equation_of_paule_and_mandel() -> None:
    values, errors = [0.1, 0.9, 0.4], [0.1, 0.2, 0.15]
    found = between(estimates(values, errors))
    assert found is not None and found.deviation > 0
    weights = 1 / (np.square(errors) + found.deviation**2)
    mean = float((weights * values).sum() / weights.sum())
    assert found.estimate.value == pytest.approx(mean) and found.estimate.freedom == 2
    assert float((weights * (np.array(values) - mean) ** 2).sum()) == pytest.approx(2)
    assert found.estimate.error == pytest.approx(math.sqrt(1 / weights.sum())) and found.p < 0.01


def test_studies_that_agree_by_luck_make_no_interval_narrow() -> None:
    found = between(estimates([0.5, 0.5, 0.5], [0.1, 0.1, 0.1]))
    assert found is not None and found.deviation == 0 and found.heterogeneity == 0 and found.p == 1
    assert found.estimate.error == pytest.approx(0.1 / math.sqrt(3))


def test_one_study_and_studies_without_an_error_have_no_mean() -> None:
    one, other = estimates([0.5, 0.6], [0.1, 0.1])
    assert between([one]) is None
    assert between([one, replace(other, error=None)]) is None and between([one, replace(other, error=0.0)]) is None


@pytest.mark.parametrize("deviation", [0.0, 2.0])
def test_the_interval_holds_the_truth(deviation: float) -> None:
    draw, wrong = np.random.default_rng(0), 0
    for _ in range(400):
        values = draw.normal(size=5) * math.sqrt(1 + deviation**2)
        found = between(estimates(values.tolist(), [1.0] * 5))
        assert found is not None and found.estimate.interval is not None
        wrong += not found.estimate.interval[0] <= 0 <= found.estimate.interval[1]
    assert wrong / 400 <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / 400)
