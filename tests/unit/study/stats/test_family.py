"""The family: shares of a study's error among its comparisons and its looks, and the error that they keep."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tests.unit.study.stats.named_cells import cells
from tintype.study.stats.contrast import Key, against
from tintype.study.stats.estimate import CONFIDENCE, estimate
from tintype.study.stats.family import (
    Counts,
    confidence_of,
    counts_of,
    planned_shares,
    unplanned_shares,
    weights_of,
)


def test_primary_comparisons_share_four_fifths_whatever_the_order() -> None:
    names = [("a", "other"), ("a", "first"), ("b", "other"), ("b", "first"), ("a", "third")]
    keys = [Key(*name) for name in names]
    for some in (keys, keys[::-1]):
        weights = weights_of(some, {"first"})
        assert counts_of(some, {"first"}) == Counts(2, 3)
        assert weights[Key("a", "first")] == weights[Key("b", "first")] == pytest.approx(0.4)
        assert weights[Key("a", "third")] == pytest.approx(0.2 / 3)
        assert sum(weights.values()) == pytest.approx(1)
    assert set(weights_of(keys, {"first", "other", "third"}).values()) == set(weights_of(keys, ()).values()) == {0.2}


def test_keys_of_every_kind_and_resolution_count() -> None:
    keys = [Key("a", "m", where, kind) for where in ("few", "many") for kind in ("arm", "trend", "interaction")]
    assert counts_of(keys, ["m"]) == Counts(6, 0) and Counts(6, 2).all == 8
    assert list(weights_of(keys, ["m"])) == keys


def test_a_share_of_the_error_is_a_level() -> None:
    assert confidence_of(1.0) == CONFIDENCE and confidence_of(0.5) == 0.975
    assert confidence_of(0.8 / 3) == round(1 - 0.04 / 3, 12)


def test_the_shares_of_looks_sum_to_at_most_one() -> None:
    assert planned_shares([4, 12, 16]) == [4 / 32, 12 / 32, 16 / 32]
    assert unplanned_shares(3) == pytest.approx([0.8, 0.1, 0.05]) and unplanned_shares(0) == []
    many = unplanned_shares(40)
    assert math.fsum(many) < 1 and min(many) > 0


def test_false_verdicts_in_simulated_null_studies_stay_under_five_percent() -> None:
    """Three arms and two metrics without any effect, three seeds: a verdict in at most 5% of studies."""
    draw, studies, wrong = np.random.default_rng(1), 400, 0
    keys = [Key(arm, metric) for metric in "mn" for arm in "abc"]
    weights = weights_of(keys, ["m"])
    for _ in range(studies):
        values = {
            metric: cells(**{arm: draw.normal(10, 1, 3).tolist() for arm in ("baseline", *"abc")}) for metric in "mn"
        }
        found = {
            key: estimate(values[key.metric], against(key.arm, "baseline"), confidence_of(weights[key])).interval
            for key in keys
        }
        wrong += any(interval is not None and not interval[0] <= 0 <= interval[1] for interval in found.values())
    assert wrong <= 0.05 * studies + 3 * (studies * 0.05 * 0.95) ** 0.5
