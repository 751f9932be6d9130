"""Times of metrics."""

from __future__ import annotations

import torch

from tintype.bench.metrics import time_feature_metrics
from tintype.metrics.table import FEATURE_METRICS


def test_speed_names_every_metric() -> None:
    assert set(time_feature_metrics(40, 4, torch.device("cpu"))) == {"reference", *FEATURE_METRICS, "total"}
