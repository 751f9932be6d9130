"""Simulated studies that stored runs serve: the level holds where these differ, since they are checked."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tintype.study.verdicts import STORED
from tools.calibration import stored
from tools.calibration.simulate import Cell, tolerance

STUDIES = 60
CELL = Cell(5, pairing=0.0, arms=5)


@pytest.mark.parametrize("bias", [0.0, 1.0])
def test_studies_with_stored_runs_keep_their_level(bias: float) -> None:
    found = stored.measure_one(CELL, STUDIES, bias)
    assert found["false"] <= 0.05 + tolerance(0.05, STUDIES)
    assert (found["serves"] > 0.7) == (bias == 0)


def test_without_the_check_they_would_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored, "agrees", lambda cells, found: True)
    assert stored.measure_one(CELL, STUDIES // 2, 1.0)["false"] > 0.3


def test_stored_runs_are_left_out_of_metrics_in_which_they_differ() -> None:
    (sheets,) = stored.with_stored(replace(CELL, arms=2), 1, bias=50.0)
    known, agreed = stored.checked(sheets)
    assert agreed == 0 and not any(STORED in cells.values or cells.stored for cells in known.values())
