"""The error of sampling of a difference: of paired images where there are numbers of single images."""

from __future__ import annotations

import math
from statistics import fmean, stdev

import pytest

from tintype.study.compare import _sampling_error
from tintype.study.results import Run


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
