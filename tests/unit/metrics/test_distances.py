from __future__ import annotations

import math

import pytest
import torch
from scipy import linalg, stats

from tintype.metrics.frechet import FrechetDistance, frechet, moments
from tintype.metrics.mmd import GaussianMMD, KernelDistance
from tintype.metrics.precision_recall import Precision, Recall


def features(count: int, size: int, seed: int, mean: float = 0.0, std: float = 1.0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return mean + std * torch.randn(count, size, dtype=torch.float64, generator=generator)


def test_frechet_of_known_gaussians() -> None:
    """Commuting covariances: |m1 - m2|² + Σ (√a - √b)²."""
    a, b = torch.tensor([1.0, 4.0, 9.0]).double(), torch.tensor([4.0, 4.0, 1.0]).double()
    mean = torch.tensor([1.0, 0.0, -2.0]).double()
    distance = frechet(mean, torch.diag(a), torch.zeros(3).double(), torch.diag(b))
    assert distance == pytest.approx(5 + 1 + 0 + 4)


def test_frechet_equals_the_general_matrix_root() -> None:
    first, second = features(200, 6, 0) @ torch.diag(torch.arange(1.0, 7).double()), features(300, 6, 1, 0.3, 2.0)
    (m1, s1), (m2, s2) = moments(first), moments(second)
    root = linalg.sqrtm((s1 @ s2).numpy()).real
    expected = float((m1 - m2).square().sum()) + float(s1.trace() + s2.trace()) - 2 * root.trace()
    assert FrechetDistance("fd")(first, second) == pytest.approx(expected, rel=1e-9)


def test_frechet_is_symmetric_and_zero_for_equal_sets() -> None:
    first, second = features(50, 20, 0), features(40, 20, 1)
    distance = FrechetDistance("fd")
    assert distance(first, second) == pytest.approx(distance(second, first), rel=1e-9)
    assert distance(first, first) == pytest.approx(0, abs=1e-9)


def test_frechet_survives_fewer_images_than_features() -> None:
    assert math.isfinite(FrechetDistance("fd")(features(5, 40, 0), features(5, 40, 1)))
    with pytest.raises(ValueError, match="two images"):
        moments(features(1, 4, 0))


@pytest.mark.parametrize("metric", [KernelDistance("kid"), GaussianMMD("mmd")])
def test_mmd_is_unbiased(metric: KernelDistance | GaussianMMD) -> None:
    """Over many pairs of sets of one distribution the mean is zero within its error."""
    values = [metric(features(20, 4, 2 * i), features(25, 4, 2 * i + 1)) for i in range(200)]
    assert stats.ttest_1samp(values, 0.0).pvalue > 1e-3
    assert min(values) < 0 < max(values)


@pytest.mark.parametrize("metric", [KernelDistance("kid"), GaussianMMD("mmd")])
def test_mmd_sees_a_shift_and_a_loss_of_diversity(metric: KernelDistance | GaussianMMD) -> None:
    real = features(400, 4, 0)
    same = abs(metric(features(400, 4, 1), real))
    assert metric(features(400, 4, 1, mean=0.5), real) > 5 * same
    assert metric(features(400, 4, 1, std=0.4), real) > 5 * same


def test_kid_against_its_definition_by_loops() -> None:
    x, y = features(4, 3, 0), features(5, 3, 1)

    def kernel(a: torch.Tensor, b: torch.Tensor) -> float:
        return float((a @ b / 3 + 1) ** 3)

    within_x = sum(kernel(a, b) for i, a in enumerate(x) for j, b in enumerate(x) if i != j) / 12
    within_y = sum(kernel(a, b) for i, a in enumerate(y) for j, b in enumerate(y) if i != j) / 20
    between = sum(kernel(a, b) for a in x for b in y) / 20
    assert KernelDistance("kid")(x, y) == pytest.approx(within_x + within_y - 2 * between)


def test_precision_and_recall_tell_quality_from_diversity() -> None:
    real = features(300, 2, 0)
    collapsed = 0.05 * features(300, 2, 1)
    scattered = 6 * features(300, 2, 2)
    assert Precision("p")(collapsed, real) > 0.95 and Recall("r")(collapsed, real) < 0.2
    assert Precision("p")(scattered, real) < 0.5 and Recall("r")(scattered, real) > 0.8
    assert Precision("p")(real, real) == 1.0 and Recall("r")(real, real) == 1.0
