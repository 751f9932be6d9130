"""Cases of which `make test` takes an even spread, and `make test-slow` the others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import pytest
from _pytest.mark.structures import ParameterSet

T = TypeVar("T")


def spread(cases: Sequence[T], every: int, start: int = 0) -> list[ParameterSet]:
    """Mark all cases as slow but each `every`-th, from the one at `start`."""
    return [pytest.param(case, marks=() if i % every == start else pytest.mark.slow) for i, case in enumerate(cases)]
