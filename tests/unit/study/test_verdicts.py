"""Which analyses a study may ask for, and how the report describes them."""

from __future__ import annotations

import pytest

from tintype.study.verdicts import AnalysisSettings, check_seeds, describe_method


def _analysed(seeds: int, arms: int, primary: int, others: int, **analysis: str) -> None:
    check_seeds(seeds, arms, primary, others, AnalysisSettings.model_validate(analysis))


def test_a_permutation_test_is_refused_just_below_the_seeds_that_it_asks_for() -> None:
    """One arm and one metric: 2 of 2^n patterns must be below 5%."""
    with pytest.raises(ValueError, match=r"3 seeds can never give a verdict. It knows 8 patterns .* 0\.25.* Give 6"):
        _analysed(3, 1, 1, 0, test="permutation")
    with pytest.raises(ValueError, match="5 seeds can never give a verdict"):
        _analysed(5, 1, 1, 0, test="permutation")
    _analysed(6, 1, 1, 0, test="permutation")
    with pytest.raises(ValueError, match="no number of seeds can"):
        _analysed(12, 500, 2, 0, test="permutation")


def test_a_sketch_is_not_analysed_so_it_is_not_refused() -> None:
    _analysed(1, 3, 2, 7, test="permutation", interval="bootstrap")
    _analysed(5, 3, 2, 7, interval="bootstrap")


def test_the_method_says_what_was_done() -> None:
    usual = describe_method(3, 3, True, ["accuracy"], 8, AnalysisSettings())
    for words in (
        "95% Student interval (2 degrees",
        "Welch's",
        "all 27 comparisons",
        "3 on the primary",
        "share 4%",
        "metrics 1%",
    ):
        assert words in usual
    chosen = AnalysisSettings(test="permutation", interval="bootstrap")
    other = describe_method(10, 3, True, ["accuracy"], 8, chosen)
    for words in ("all 1,024 patterns", "percentile-t", "label permutation", "cannot reach a verdict on the other"):
        assert words in other
    assert "Student" not in other
    condition = "at most 5%, as long as values over seeds scatter about symmetrically, or about alike in all arms"
    assert condition in usual and condition in other
    assert "sketch" in describe_method(1, 3, True, ["accuracy"], 8, chosen)
    assert "share" not in describe_method(3, 2, False, ["accuracy"], 0, AnalysisSettings())
