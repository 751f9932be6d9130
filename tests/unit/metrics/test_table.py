"""The registry of metrics: each one describes itself, and the documentation names it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tintype.metrics.metric import AnyMetric
from tintype.metrics.table import (
    FEATURE_METRICS,
    HELD_OUT_METRICS,
    LOG_METRICS,
    PAIR_METRICS,
    SCENE_METRICS,
    TEXT_METRICS,
)

BY_NEED: dict[str, tuple[AnyMetric, ...]] = {
    "scenes": SCENE_METRICS,
    "captions": TEXT_METRICS,
    "features": tuple(FEATURE_METRICS.values()),
    "held-out images": HELD_OUT_METRICS,
    "log": LOG_METRICS,
    "pixels": PAIR_METRICS,
}
EVERY = [metric for metrics in BY_NEED.values() for metric in metrics]


def test_names_differ() -> None:
    assert len({metric.name for metric in EVERY}) == len(EVERY)


@pytest.mark.parametrize(("needs", "metrics"), BY_NEED.items())
def test_a_metric_is_listed_by_what_it_needs(needs: str, metrics: tuple[AnyMetric, ...]) -> None:
    assert {metric.needs for metric in metrics} == {needs}


@pytest.mark.parametrize("metric", EVERY, ids=lambda metric: metric.name)
def test_a_metric_defines_itself_and_is_documented(metric: AnyMetric) -> None:
    assert len(metric.define("long")) > 40 and "{" not in metric.define("long")
    low, high = metric.range
    assert low is None or high is None or low < high
    text = (Path(__file__).parents[3] / "docs" / "metrics.md").read_text(encoding="utf-8")
    assert f"`{metric.name}`" in text
