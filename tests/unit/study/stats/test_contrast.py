"""Contrasts: the weights of an arm against the baseline, and their shares among the runs of a plan."""

from __future__ import annotations

import pytest

from tests.unit.study.stats.named_cells import cells
from tintype.study.stats.contrast import Contrast, Key, against


def test_the_baselines_weight_is_shared_by_all_runs_of_its_plan() -> None:
    found = against("arm", "baseline").over_plans(cells(arm=[1.0] * 4, baseline=[1.0] * 3, control=[1.0]))
    assert found.weights == {"arm": 1.0, "baseline": -0.75, "control": -0.25}
    assert found.reference == {"baseline": 0.75, "control": 0.25}
    assert next(iter(found.weights)) == "arm"


def test_the_control_is_compared_with_the_baselines_own_runs() -> None:
    values = cells(control=[1.0] * 3, baseline=[1.0] * 3)
    assert against("control", "baseline").over_plans(values) == against("control", "baseline")


def test_a_control_that_lost_all_runs_has_no_share() -> None:
    values = cells(arm=[1.0], baseline=[1.0], control=[])
    assert against("arm", "baseline").over_plans(values) == against("arm", "baseline")


def test_weights_sum_to_what_they_did() -> None:
    values = cells(a=[1.0], b=[1.0] * 2, both=[1.0] * 3, baseline=[1.0] * 5, control=[1.0] * 2)
    found = Contrast({"both": 1.0, "a": -1.0, "b": -1.0, "baseline": 1.0}, {"baseline": 1.0}).over_plans(values)
    assert sum(found.weights.values()) == pytest.approx(0) and sum(found.reference.values()) == pytest.approx(1)


def test_a_factor_changes_the_weights_and_not_the_reference() -> None:
    assert against("arm", "baseline").times(-2) == Contrast({"arm": -2.0, "baseline": 2.0}, {"baseline": 1.0})


def test_a_key_without_resolution_and_kind_is_that_of_an_arm() -> None:
    assert Key("arm", "m") == Key("arm", "m", "", "arm") != Key("arm", "m", "", "trend")
