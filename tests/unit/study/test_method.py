"""The number of comparisons of a study, and the method in words."""

from __future__ import annotations

from tintype.study.contrasts import count_comparisons
from tintype.study.method import method_words
from tintype.study.stats.family import Counts

METRICS = ["accuracy", *map(str, range(7)), "images_per_s"]


def test_comparisons_between_resolutions_are_counted() -> None:
    """Two arms and a control, one of nine metrics is primary: at three resolutions, and then the trend of each arm.

    The throughput is not tested.
    """
    assert count_comparisons(2, True, 1, METRICS[:1], METRICS) == Counts(3, 21)
    assert count_comparisons(2, True, 3, METRICS[:1], METRICS) == Counts(9 + 2, 63)
    assert count_comparisons(2, False, 3, ["images_per_s"], METRICS) == Counts(0, 48)
    text = method_words(3, Counts(11, 63), True, ["accuracy"], tokens=[64, 256, 1024])
    for words in (
        "baseline of that resolution",
        "at 1,024 tokens minus log(arm / baseline) at 64",
        "All 74 intervals",
        "the 11 on primary metrics",
    ):
        assert words in text
    assert "those between resolutions included" in text
    assert "The control has no such comparison" in text
    without = method_words(3, Counts(8, 42), False, ["accuracy"], tokens=[64, 256, 1024])
    assert "at 1,024 tokens" in without and "control" not in without
    assert "tokens" not in method_words(3, Counts(3, 21), True, ["accuracy"])


def test_the_method_says_that_planned_looks_stopped_an_arm_early() -> None:
    said = [method_words(12, Counts(3, 24), False, ["accuracy"], fewest=n) for n in (4, 12)]
    assert said[0].startswith("Arms were trained with 4 to 12 seeds.")
    assert said[1].startswith("Each arm was trained with 12 seeds.")


def test_the_method_says_what_was_done() -> None:
    usual = method_words(3, Counts(3, 24), True, ["accuracy"])
    for words in (
        "All 27 intervals",
        "the 3 on primary metrics (accuracy) share 4% of error",
        "metrics 1%",
        "same plan",
    ):
        assert words in usual
    assert "sketch" in method_words(1, Counts(3, 24), True, ["accuracy"])
    assert "share 4%" not in method_words(3, Counts(2, 0), False, ["accuracy"])
