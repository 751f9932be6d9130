"""Analyses that a study may choose, and their description in the report."""

from __future__ import annotations

import pytest

from tintype.errors import UserError
from tintype.study.analysis import AnalysisSettings
from tintype.study.paired import check_seeds
from tintype.study.shares import Counts, count_comparisons
from tintype.study.verdicts import describe_method

PAIRED = AnalysisSettings(method="paired")
METRICS = ["accuracy", *map(str, range(7)), "images_per_s"]


def _analysed(seeds: int, arms: int, primary: int, others: int, **analysis: str) -> None:
    check_seeds(seeds, Counts(arms * primary, arms * others), AnalysisSettings.model_validate(analysis))


def test_a_permutation_test_is_refused_just_below_the_seeds_that_it_asks_for() -> None:
    """One arm and one metric: 2 of 2^n patterns must be below 5%."""
    with pytest.raises(UserError, match=r"3 seeds can never give a verdict. It knows 8 patterns .* 0\.25.* Give 6"):
        _analysed(3, 1, 1, 0, test="permutation")
    with pytest.raises(UserError, match="5 seeds can never give a verdict"):
        _analysed(5, 1, 1, 0, test="permutation")
    _analysed(6, 1, 1, 0, test="permutation")
    with pytest.raises(UserError, match="no number of seeds can"):
        _analysed(12, 500, 2, 0, test="permutation")


def test_a_sketch_is_not_analysed_so_it_is_not_refused() -> None:
    _analysed(1, 3, 2, 7, test="permutation", interval="bootstrap")
    _analysed(5, 3, 2, 7, interval="bootstrap")


def test_comparisons_between_resolutions_are_counted() -> None:
    """Two arms and a control, one of nine metrics is primary: at three resolutions, and then the trend of each arm."""
    assert count_comparisons(2, True, 1, METRICS[:1], METRICS, 0, PAIRED) == Counts(3, 24)
    assert count_comparisons(2, True, 3, METRICS[:1], METRICS, 0, PAIRED) == Counts(9 + 2, 72 + 2)
    assert count_comparisons(2, True, 3, METRICS[:1], METRICS) == Counts(9 + 2, 63)
    assert count_comparisons(2, False, 3, ["images_per_s"], METRICS, 0, PAIRED) == Counts(6 + 2, 48)
    text = describe_method(3, Counts(11, 74), True, ["accuracy"], PAIRED, [64, 256, 1024])
    for words in (
        "baseline of that resolution",
        "at 1,024 tokens minus log(arm / baseline) at 64",
        "all 85 comparisons",
        "the 11 comparisons on primary",
    ):
        assert words in text
    assert "those between resolutions included" in text
    assert "The control has no pairs" in text
    without = describe_method(3, Counts(8, 50), False, ["accuracy"], PAIRED, [64, 256, 1024])
    assert "at 1,024 tokens" in without and "control" not in without
    assert "tokens" not in describe_method(3, Counts(3, 24), True, ["accuracy"], PAIRED)


def test_the_method_says_that_planned_looks_stopped_an_arm_early() -> None:
    said = [describe_method(12, Counts(3, 24), False, ["accuracy"], AnalysisSettings(), (), n) for n in (4, 12)]
    assert said[0].startswith("Arms were trained with 4 to 12 seeds.")
    assert said[1].startswith("Each arm was trained with 12 seeds.")


def test_the_method_says_what_was_done() -> None:
    usual = describe_method(3, Counts(3, 24), True, ["accuracy"], PAIRED)
    for words in (
        "95% Student interval (2 degrees",
        "Welch's",
        "all 27 comparisons",
        "3 comparisons on primary",
        "share 4%",
        "metrics 1%",
    ):
        assert words in usual
    chosen = AnalysisSettings(test="permutation", interval="bootstrap")
    other = describe_method(10, Counts(3, 24), True, ["accuracy"], chosen)
    for words in ("all 1,024 patterns", "percentile-t", "label permutation", "cannot reach a verdict on the other"):
        assert words in other
    assert "Student" not in other
    condition = "at most 5%, provided that the seed spread is roughly symmetric, or roughly the same in all arms"
    assert condition in usual and condition in other
    assert "sketch" in describe_method(1, Counts(3, 24), True, ["accuracy"], chosen)
    assert "share" not in describe_method(3, Counts(2, 0), False, ["accuracy"], PAIRED)
