"""Cases of which `make test` takes some, and `make test-slow` the others."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

import pytest
from _pytest.mark.structures import ParameterSet

T = TypeVar("T")


def third(cases: Sequence[T]) -> list[ParameterSet]:
    """Return the cases as parameters of a test: every third for `make test`, the others marked as slow."""
    some = cases[::3]
    return slow_unless(lambda case: case in some, cases)


def slow_unless(chosen: Callable[[T], bool], cases: Iterable[T]) -> list[ParameterSet]:
    """Return the cases as parameters of a test, marked as slow where they are not chosen for `make test`."""
    return [pytest.param(case, marks=() if chosen(case) else pytest.mark.slow) for case in cases]
