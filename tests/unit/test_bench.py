from __future__ import annotations

from tests.tiny import tiny_plan
from tintype.bench import measure


def test_the_bench_reports_speeds_and_a_split_that_adds_up() -> None:
    result = measure(tiny_plan(), steps=2)
    assert result["train_images_per_s"] > 0 and result["sample_images_per_s_at_10_steps"] > 0
    assert set(result["render_images_per_s_at_64_px"]) == {"render", "photo"}
    assert 0.5 < sum(result["time_split"].values()) <= 1.0


def test_the_bench_measures_a_plan_with_a_teacher() -> None:
    assert measure(tiny_plan(techniques=["repa:teacher=scenes,hidden=8"]), steps=1)["time_split"]["teacher"] > 0
