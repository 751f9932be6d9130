"""The packaged studies of single techniques on one GPU: each arm is one decision."""

from __future__ import annotations

import pytest

from tintype.study.study import load_study

SEEDS = [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("name", "sections"),
    [("dispersive-mini", {"losses"}), ("prediction-mini", {"objective", "weighting"}), ("muon-mini", {"optimizer"})],
)
def test_arms_differ_in_their_seam_alone_and_have_five_seeds(name: str, sections: set[str]) -> None:
    study = load_study(name)
    for arm in study.arms:
        changed = {key.split(".")[0] for key in arm.changes}
        assert arm.role != "arm" or (changed and changed <= sections)
        assert arm.role == "control" or [plan.seed for plan in arm.plans] == SEEDS


def test_small_images_first_are_as_many_or_as_many_tokens() -> None:
    baseline, _, few, many = (arm.plans[0] for arm in load_study("stages-mini").arms)
    assert [one.train.images_before(500) for one in (baseline, few, many)] == [64_000, 64_000, 160_000]
    tokens = [
        [(one.size_px_at(step) // 4) ** 2 * one.train.batch_at(step) for step in (249, 250)] for one in (few, many)
    ]
    assert tokens == [[8_192, 32_768], [32_768, 32_768]]
    assert load_study("stages-mini").settings.evaluation.staged


def test_the_grid_has_each_prediction_with_each_loss_once() -> None:
    cells = [
        (plan.objective.kind, plan.weighting.model_dump()["space"] if plan.weighting else "velocity")
        for plan in (arm.plans[0] for arm in load_study("prediction-mini").arms if arm.role != "control")
    ]
    predictions, losses = ("velocity", "x-prediction", "epsilon-prediction"), ("velocity", "x", "epsilon")
    assert sorted(cells) == sorted((one, other) for one in predictions for other in losses)


def test_the_familys_arms_are_muons() -> None:
    found = {
        arm.label: arm.plans[0].optimizer.model_dump() for arm in load_study("muon-mini").arms if arm.role == "arm"
    }
    assert {one["kind"] for one in found.values()} == {"muon"}
    assert [one["row_decay"] is not None for one in found.values()] == [False, True, False, False, False]
    assert [one["cautious"] for one in found.values()] == [False, False, False, False, True]
    assert found["muon, polar express"]["iteration"] == "polar-express"
