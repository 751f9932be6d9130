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
    TRAINING_METRICS,
)

EVERY: list[AnyMetric] = [
    *SCENE_METRICS["long"],
    *TEXT_METRICS,
    *FEATURE_METRICS.values(),
    *TRAINING_METRICS.values(),
    *HELD_OUT_METRICS,
    *LOG_METRICS,
    *PAIR_METRICS,
]


def test_names_differ() -> None:
    assert len({metric.name for metric in EVERY}) == len(EVERY)


@pytest.mark.parametrize("metric", EVERY, ids=lambda metric: metric.name)
def test_a_metric_defines_itself_and_is_documented(metric: AnyMetric) -> None:
    assert len(metric.define("long")) > 40 and "{" not in metric.define("long")
    low, high = metric.range
    assert low is None or high is None or low < high
    text = (Path(__file__).parents[3] / "docs" / "metrics.md").read_text(encoding="utf-8")
    assert f"`{metric.name}`" in text
