"""The count of promises: what docs/reliability.md says was tried."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fault.promises import Promise

ROOT = Path(__file__).parents[2]


def test_a_broken_try_fails_its_test() -> None:
    promise = Promise(full=False)
    promise.count(True, "one")
    promise.judge()
    promise.count(False, "two")
    with pytest.raises(AssertionError, match="1 of 2 did not hold: two"):
        promise.judge()


def test_a_control_that_cannot_fail_fails_its_test() -> None:
    promise = Promise(full=False, control="checksums off")
    promise.count(True, "one")
    with pytest.raises(AssertionError, match="1 tries held with checksums off"):
        promise.judge()
    promise.count(False, "two")
    promise.judge()


def test_the_short_form_spreads_its_tries() -> None:
    assert Promise(full=False).choose(range(100), 4) == [0, 25, 50, 75]
    assert Promise(full=False).choose(range(3), 4) == [0, 1, 2]
    assert Promise(full=True).choose(range(100), 4) == list(range(100))
