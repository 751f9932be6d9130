"""Implement `tintype bench --metrics`: measure the seconds of each metric on features of several sizes."""

from __future__ import annotations

import torch
from torch import Tensor

from tintype.bench.run import OnPart
from tintype.metrics.pair import FeaturePair, Reference
from tintype.metrics.table import FEATURE_METRICS
from tintype.runtime.clock import synchronized_s

IMAGES, SIZES = 10_000, (768, 1024, 2048)


def measure_metrics(device: torch.device, on_part: OnPart) -> dict[str, dict[str, float]]:
    """Return the seconds of each metric, for each size of the feature vector."""

    def at(size: int, before: int) -> dict[str, float]:
        return time_feature_metrics(
            IMAGES, size, device, lambda part, done, total: on_part(part, before * total + done, len(SIZES) * total)
        )

    return {f"seconds, {IMAGES:,} × {size}": at(size, before) for before, size in enumerate(SIZES)}


def time_feature_metrics(
    n: int, f: int, device: torch.device, on_part: OnPart = lambda part, done, total: None
) -> dict[str, float]:
    """Return the seconds of each metric with its error, on n fake and n real images of f features.

    Shared work that depends only on the real images is timed as `reference`. Other shared work is timed with the first
    metric that needs it.
    """
    total = 1 + len(FEATURE_METRICS)
    on_part(f"reference, {f} features", 0, total)
    real_MF, fake_NF = _features(n, f, device, 0), _features(n, f, device, 1) + 0.1
    seconds: dict[str, float] = {}
    torch.linalg.eigh(torch.eye(8, dtype=torch.float64, device=device))  # the library's own start is not a metric's
    began = synchronized_s(device)
    reference = Reference(real_MF)
    _ = reference.spread, reference.sigma2, reference.own
    seconds["reference"] = synchronized_s(device) - began
    pair = FeaturePair(fake_NF, reference)
    for done, (kind, metric) in enumerate(FEATURE_METRICS.items(), 1):
        on_part(f"{kind}, {f} features", done, total)
        began = synchronized_s(device)
        metric.measure(pair)
        seconds[kind] = synchronized_s(device) - began
    on_part("", total, total)
    seconds["total"] = sum(seconds.values())
    return seconds


def _features(count: int, size: int, device: torch.device, seed: int) -> Tensor:
    """Return Gaussian features whose variances decay like those of real encoders."""
    generator = torch.Generator().manual_seed(seed)
    scale_F = torch.arange(1, size + 1) ** -0.5
    return (torch.randn(count, size, generator=generator) * scale_F).to(device)
