"""Cases of which `make test` takes some, and `make test-slow` the others."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

import pytest
from _pytest.mark.structures import ParameterSet

T = TypeVar("T")


def slow_unless(chosen: Callable[[T], bool], cases: Iterable[T]) -> list[ParameterSet]:
    """Return the cases as parameters of a test, marked as slow where they are not chosen for `make test`."""
    return [pytest.param(case, marks=() if chosen(case) else pytest.mark.slow) for case in cases]
