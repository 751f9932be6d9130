"""The metrics on features against slow, plain forms of their definitions, and against what is known of them.

N: fake images, M: real images, F: size of a feature vector.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import pytest
import torch
from scipy import linalg
from scipy.spatial.distance import cdist

from tintype.errors import UserError
from tintype.metrics import pair as pair_module
from tintype.metrics import prdc
from tintype.metrics.metric import Measured
from tintype.metrics.pair import FeaturePair, Reference
from tintype.metrics.table import FEATURE_METRICS

Array = npt.NDArray[np.float64]
DEVICES = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]
KINDS = tuple(FEATURE_METRICS)


def features(count: int, size: int, seed: int, mean: float = 0.0, std: float = 1.0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return mean + std * torch.randn(count, size, dtype=torch.float64, generator=generator)


def measure(kind: str, fake: torch.Tensor, real: torch.Tensor | Reference) -> Measured:
    return FEATURE_METRICS[kind].measure(FeaturePair(fake, real))


def values(fake: torch.Tensor, real: torch.Tensor | Reference) -> dict[str, float]:
    pair = FeaturePair(fake, real)
    return {kind: metric.measure(pair).value for kind, metric in FEATURE_METRICS.items()}


# --- slow forms -------------------------------------------------------------------------------------------------------


def naive_fd(x: Array, y: Array) -> float:
    s_x, s_y = np.atleast_2d(np.cov(x.T)), np.atleast_2d(np.cov(y.T))
    root = linalg.sqrtm(s_x @ s_y).real
    return float(((x.mean(0) - y.mean(0)) ** 2).sum() + np.trace(s_x) + np.trace(s_y) - 2 * np.trace(root))


def naive_unbiased(k_xx: Array, k_yy: Array, k_xy: Array) -> float:
    n, m = k_xy.shape
    own_x = sum(k_xx[i, j] for i in range(n) for j in range(n) if i != j) / (n * (n - 1))
    own_y = sum(k_yy[i, j] for i in range(m) for j in range(m) if i != j) / (m * (m - 1))
    return float(own_x + own_y - 2 * k_xy.mean())


def naive_kid(x: Array, y: Array) -> float:
    a, b, c = (np.array([[(p @ q / x.shape[1] + 1) ** 3 for q in v] for p in u]) for u, v in ((x, x), (y, y), (x, y)))
    return naive_unbiased(a, b, c)


def naive_mmd(x: Array, y: Array) -> float:
    apart = np.sort(cdist(y, y)[np.triu_indices(len(y), 1)])
    sigma = apart[(len(apart) - 1) // 2]
    a, b, c = (np.exp(-(cdist(u, v) ** 2) / (2 * sigma**2)) for u, v in ((x, x), (y, y), (x, y)))
    return 1000 * naive_unbiased(a, b, c)


def unit_kernels(x: Array, y: Array) -> tuple[Array, Array, Array]:
    x, y = x / np.linalg.norm(x, axis=1, keepdims=True), y / np.linalg.norm(y, axis=1, keepdims=True)
    gamma = 1 / (2 * 10**2)
    k_xx, k_yy, k_xy = (np.exp(-gamma * cdist(u, v) ** 2) for u, v in ((x, x), (y, y), (x, y)))
    return k_xx, k_yy, k_xy


def naive_published(x: Array, y: Array) -> float:
    k_xx, k_yy, k_xy = unit_kernels(x, y)
    return float(1000 * (k_xx.mean() + k_yy.mean() - 2 * k_xy.mean()))


def naive_unit_unbiased(x: Array, y: Array) -> float:
    return 1000 * naive_unbiased(*unit_kernels(x, y))


def radii(x: Array, k: int) -> Array:
    return np.asarray(np.sort(cdist(x, x), axis=1)[:, k])  # the nearest is the image itself


def naive_precision(x: Array, y: Array) -> float:
    return float((cdist(y, x) <= radii(y, 3)[:, None]).any(0).mean())


def naive_recall(x: Array, y: Array) -> float:
    return float((cdist(y, x) <= radii(x, 3)[None]).any(1).mean())


def naive_density(x: Array, y: Array) -> float:
    return float((cdist(y, x) < radii(y, 5)[:, None]).sum(0).mean() / 5)


def naive_coverage(x: Array, y: Array) -> float:
    return float((cdist(y, x).min(1) < radii(y, 5)).mean())


NAIVE = {
    "fd": naive_fd,
    "kid": naive_kid,
    "mmd": naive_mmd,
    "mmd_published": naive_published,
    "mmd_unbiased": naive_unit_unbiased,
    "precision": naive_precision,
    "recall": naive_recall,
    "density": naive_density,
    "coverage": naive_coverage,
}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", NAIVE)
def test_equals_the_definition(kind: str, device: str) -> None:
    real = features(90, 5, 0) @ torch.diag(torch.arange(1.0, 6).double()) + 2
    fake = features(70, 5, 1, 0.4, 1.3) @ features(5, 5, 2) + 2
    found = measure(kind, fake.to(device), real.to(device)).value
    assert found == pytest.approx(NAIVE[kind](fake.numpy(), real.numpy()), rel=1e-9)


# --- what holds for all -----------------------------------------------------------------------------------------------


def test_every_metric_says_what_it_is() -> None:
    for kind, metric in FEATURE_METRICS.items():
        assert metric.name == kind and metric.label and len(metric.definition) > 40
    higher = {kind for kind, metric in FEATURE_METRICS.items() if metric.direction == "higher"}
    assert higher == {"precision", "recall", "density", "coverage"}


def test_blocks_order_and_input_precision_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    real, fake = features(120, 6, 0).float(), features(100, 6, 1, 0.2).float()
    whole = values(fake.double(), Reference(real.double()))
    monkeypatch.setitem(pair_module._BLOCK_NUMBERS, "cpu", 7 * len(fake))
    assert values(fake, Reference(real)) == pytest.approx(whole, rel=1e-12)
    order = torch.randperm(100, generator=torch.Generator().manual_seed(0))
    assert values(fake[order], real[torch.arange(119, -1, -1)]) == pytest.approx(whole, rel=1e-11)


@pytest.mark.parametrize("kind", KINDS)
def test_errors_and_notes_do_not_depend_on_the_order_of_the_images(kind: str) -> None:
    """The groups of the jackknife, the parts of fd_inf and copies were taken by the place of an image in the set."""
    real, fake = features(120, 6, 0), features(100, 6, 1, 0.2).round(decimals=1)
    fake[40:60] = fake[:20]
    copy = torch.cat([torch.arange(40), torch.arange(20), torch.arange(40, 80)])
    for copy_N in (None, copy):
        first = FEATURE_METRICS[kind].measure(FeaturePair(fake, real, copy_N=copy_N))
        for seed in range(3):
            order = torch.randperm(100, generator=torch.Generator().manual_seed(seed))
            turned = None if copy_N is None else 79 - copy_N[order]
            found = FEATURE_METRICS[kind].measure(FeaturePair(fake[order], real.flip(0), copy_N=turned))
            assert found.value == pytest.approx(first.value, rel=1e-9) and found.warnings == first.warnings
            assert found.error == pytest.approx(first.error, rel=1e-9) and found.method == first.method


def test_the_kernel_width_of_a_large_reference_does_not_depend_on_its_order(monkeypatch: pytest.MonkeyPatch) -> None:
    real = features(90, 3, 0)
    exact = Reference(real).sigma2
    monkeypatch.setattr("tintype.metrics.pair.MEDIAN_IMAGES", 30)
    found = Reference(real).sigma2
    order = torch.randperm(90, generator=torch.Generator().manual_seed(0))
    assert found == pytest.approx(Reference(real[order]).sigma2, rel=1e-12) and found != exact
    assert found == pytest.approx(exact, rel=0.3)


ERRORS_OF_COPIES = ("fd", "fd_inf", "kid", "mmd", "mmd_published", "mmd_unbiased", "precision", "density", "coverage")


@pytest.mark.parametrize("kind", ERRORS_OF_COPIES)
def test_copies_of_images_do_not_shrink_the_error(kind: str) -> None:
    """Every image is there three times: the error stays that of the set without copies, up to one part in its size.

    An error that took the copies for images of their own would be smaller by the root of three. Recall is left out:
    copies shrink the balls of the fake images, so its value is another one.
    """
    real, fake = Reference(features(300, 8, 0)), features(200, 8, 1, 0.4, 0.8)
    alone = FEATURE_METRICS[kind].measure(FeaturePair(fake, real))
    three = fake.repeat(3, 1)
    counted = FEATURE_METRICS[kind].measure(FeaturePair(three, real, copy_N=torch.arange(200).repeat(3)))
    naive = FEATURE_METRICS[kind].measure(FeaturePair(three, real))
    assert alone.error is not None and counted.error is not None and naive.error is not None
    assert counted.error == pytest.approx(alone.error, rel=0.05)
    assert naive.error < 0.65 * alone.error
    if kind == "fd_inf":
        assert counted.value == pytest.approx(alone.value, rel=0.05)


def test_the_error_of_images_of_which_some_are_copies_is_the_spread_over_sets() -> None:
    """Half of the images are there four times: the stated error against the spread over independent sets."""
    reference, copy_N = Reference(features(300, 4, 0)), torch.cat([torch.arange(60), torch.arange(30).repeat(3)])
    for kind in ("fd", "kid", "precision"):
        found = []
        for seed in range(60):
            fake = features(60, 4, 1 + seed, 0.5, 0.8)[copy_N]
            found.append(FEATURE_METRICS[kind].measure(FeaturePair(fake, reference, copy_N=copy_N)))
        true = float(torch.tensor([one.value for one in found], dtype=torch.float64).std())
        stated = math.sqrt(sum((one.error or 0) ** 2 for one in found) / len(found))
        assert 0.75 < stated / true < 1.3, f"{kind}: {stated / true:.2f}"


@pytest.mark.parametrize("kind", KINDS)
def test_one_reference_serves_many_sets(kind: str) -> None:
    real = features(80, 4, 0)
    shared = Reference(real)
    for seed in (1, 2):
        fake = features(60, 4, seed, 0.3)
        assert measure(kind, fake, shared) == measure(kind, fake, real)


def test_equal_sets() -> None:
    real = features(200, 6, 0)
    found = values(real.clone(), real)
    assert found["fd"] == pytest.approx(0, abs=1e-9)
    assert found["mmd_published"] == pytest.approx(0, abs=1e-12)
    assert found["kid"] < 0 and found["mmd"] < 0 and found["mmd_unbiased"] < 0
    assert (found["precision"], found["recall"], found["coverage"]) == (1, 1, 1)
    assert found["density"] == 1, "a ball holds its own image and the k - 1 that are nearer than its edge"


@pytest.mark.parametrize("block_rows", [3, 1000])
def test_ties_and_repeated_images(block_rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a grid of whole numbers nearly all distances are ties, and here the naive form makes no rounding errors."""
    generator = torch.Generator().manual_seed(0)
    real = torch.randint(0, 4, (60, 2), generator=generator).double()
    fake = torch.randint(1, 5, (60, 2), generator=generator).double()
    monkeypatch.setitem(pair_module._BLOCK_NUMBERS, "cpu", block_rows * len(real))
    pair = FeaturePair(fake, Reference(real))
    for kind in ("precision", "recall", "density", "coverage"):
        assert FEATURE_METRICS[kind].measure(pair).value == pytest.approx(NAIVE[kind](fake.numpy(), real.numpy())), kind


# --- refusals ---------------------------------------------------------------------------------------------------------


def test_bad_features_are_refused() -> None:
    good, bad = features(20, 3, 0), features(20, 3, 1)
    bad[7, 1] = float("nan")
    with pytest.raises(UserError, match=r"1 of the 20 fake images.*row 7"):
        FeaturePair(bad, good)
    with pytest.raises(UserError, match=r"real images.*row 7"):
        FeaturePair(good, bad)
    with pytest.raises(UserError, match="same encoder"):
        FeaturePair(good, features(20, 4, 0))
    with pytest.raises(UserError, match="at least 2 fake"):
        FeaturePair(good[:1], good)
    with pytest.raises(UserError, match="must have the shape"):
        FeaturePair(good[0], good)


def test_too_few_images_for_a_metric_are_refused() -> None:
    real = features(20, 3, 0)
    for kind, count in (("precision", 3), ("recall", 3), ("density", 5), ("coverage", 5)):
        with pytest.raises(UserError, match=f"at least {count + 1} fake"):
            measure(kind, real[:count], real)
        with pytest.raises(UserError, match=f"at least {count + 1} real"):
            measure(kind, real, real[:count])
    with pytest.raises(UserError, match="quarters"):
        measure("fd_inf", real[:7], real)


def test_two_images_are_enough_for_the_distances() -> None:
    for kind in ("fd", "kid", "mmd", "mmd_published", "mmd_unbiased"):
        found = measure(kind, features(2, 3, 1), features(2, 3, 0))
        assert math.isfinite(found.value) and found.error is None


def test_features_without_a_scale_are_refused() -> None:
    real = features(20, 3, 0)
    with pytest.raises(UserError, match="kernel width"):
        measure("mmd", real, torch.ones(20, 3))
    zero = real.clone()
    zero[4] = 0
    for kind in ("mmd_published", "mmd_unbiased"):
        with pytest.raises(UserError, match="fake image 4 are all zero"):
            measure(kind, zero, real)
    assert math.isfinite(measure("kid", zero, torch.ones(20, 3)).value), "others do not mind"


# --- Fréchet distance -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("n", "m"), [(30, 200), (200, 30), (30, 25), (25, 30), (90, 90)])
def test_fd_with_few_images_equals_the_roots_of_both_covariances(n: int, m: int) -> None:
    """Sum of the singular values of S1^½ S2^½: well defined also where a root of the product is not.

    The bound: 60 roots of eigenvalues that are about float64's eps are 60 × 1.5e-8.
    """
    fake, real = features(n, 60, 1, 0.2), features(m, 60, 0)

    def root(x: torch.Tensor) -> torch.Tensor:
        value, vector = torch.linalg.eigh(torch.cov(x.T))
        square: torch.Tensor = (vector * value.clamp_min(0).sqrt()) @ vector.T
        return square

    nuclear = torch.linalg.svdvals(root(fake) @ root(real)).sum()
    expected = (fake.mean(0) - real.mean(0)).square().sum() + fake.var(0).sum() + real.var(0).sum() - 2 * nuclear
    assert measure("fd", fake, real).value == pytest.approx(float(expected), rel=1e-6)


def test_fd_of_features_that_are_not_independent() -> None:
    """Columns that are constant or copies: the reference has no Cholesky factor."""
    real, fake = features(100, 6, 0), features(120, 6, 1, 0.3)
    expected = measure("fd", fake, real).value

    def wider(x: torch.Tensor) -> torch.Tensor:
        return torch.cat([x, torch.full((len(x), 2), 3.0).double()], 1)

    assert measure("fd", wider(fake), wider(real)).value == pytest.approx(expected, rel=1e-6)
    doubled = measure("fd", fake.repeat(1, 2), real.repeat(1, 2)).value
    assert doubled == pytest.approx(2 * expected, rel=1e-6)


def test_fd_is_symmetric() -> None:
    first, second = features(50, 20, 0), features(40, 20, 1)
    assert measure("fd", first, second).value == pytest.approx(measure("fd", second, first).value, rel=1e-9)


def test_fd_influence_is_the_limit_of_leaving_an_image_out() -> None:
    fake, real = features(400, 5, 1, 0.3, 1.2), features(300, 5, 0)
    pair = FeaturePair(fake, real)
    rows = torch.arange(400)
    left_out = torch.tensor([pair.frechet_of(rows[rows != i]) for i in range(400)], dtype=torch.float64)
    jackknife = math.sqrt(float((left_out - left_out.mean()).square().sum()) * 399 / 400)
    assert measure("fd", fake, real).error == pytest.approx(jackknife, rel=0.03)
    single = (left_out.mean() - left_out) * 399
    assert float(torch.corrcoef(torch.stack([single, pair.frechet_fit.influence_N]))[0, 1]) > 0.999


def test_fd_shrinks_with_the_number_of_images_and_fd_inf_is_nearer_to_zero() -> None:
    real = Reference(features(20_000, 8, 0))
    mean = {}
    for n in (100, 200, 400):
        pairs = [FeaturePair(features(n, 8, 1 + seed), real) for seed in range(25)]
        mean[n] = sum(FEATURE_METRICS["fd"].measure(pair).value for pair in pairs) / 25
        inf = sum(FEATURE_METRICS["fd_inf"].measure(pair).value for pair in pairs) / 25
        assert abs(inf) < 0.25 * mean[n]
        bias = sum(pair.frechet_fit.bias for pair in pairs) / 25
        assert bias == pytest.approx(mean[n], rel=0.1), "the bias that the warning states"
    assert mean[100] / mean[200] == pytest.approx(2, rel=0.15)
    assert mean[200] / mean[400] == pytest.approx(2, rel=0.15)


def test_fd_inf_is_the_distance_of_infinitely_many_images() -> None:
    """The oracle: the Gaussian itself, with its true mean and covariance, against the reference's."""
    real, scale = features(400, 6, 0), torch.tensor([0.6, 0.8, 1.0, 1.0, 1.2, 1.5]).double()
    reference, count = Reference(real), 60
    draws = [FeaturePair(0.3 + scale * features(120, 6, 1 + seed), reference) for seed in range(count)]
    y, cov = real.numpy(), np.diag(scale.square().numpy())
    root = linalg.sqrtm(cov @ np.cov(y.T)).real
    expected = float(((0.3 - y.mean(0)) ** 2).sum() + np.trace(cov) + np.trace(np.cov(y.T)) - 2 * np.trace(root))
    for kind, right in (("fd_inf", True), ("fd", False)):
        found = torch.tensor([FEATURE_METRICS[kind].measure(pair).value for pair in draws], dtype=torch.float64)
        error = float(found.std()) / math.sqrt(count)
        assert (abs(float(found.mean()) - expected) < 4 * error) == right, kind


@pytest.mark.parametrize("heavy", [False, True])
def test_the_bias_of_fd_is_what_finite_sets_add_to_the_distance_of_their_distributions(heavy: bool) -> None:
    """The oracle: both distributions' true means and covariances. Heavy rows have lengths of their own, kurtosis 6."""
    scale, count = torch.tensor([0.3, 0.6, 0.9, 1.0, 1.2, 1.5]).double(), 80

    def rows(n: int, seed: int) -> torch.Tensor:
        length = torch.where(features(n, 1, 1000 + seed) > 0, math.sqrt(2), 0.0) if heavy else 1.0
        return length * features(n, 6, seed)

    truth = 6 * 0.2**2 + float((1 - scale).square().sum())
    pairs = [FeaturePair(0.2 + scale * rows(200, 2 * seed), rows(300, 2 * seed + 1)) for seed in range(count)]
    found = [FEATURE_METRICS["fd"].measure(pair) for pair in pairs]
    bias = torch.tensor([one.bias for one in found], dtype=torch.float64)
    excess = torch.tensor([one.value for one in found], dtype=torch.float64) - truth
    error = float((excess - bias).std()) / math.sqrt(count)
    assert float(excess.mean()) > 6 * error, "there is a bias to be found"
    assert abs(float((excess - bias).mean())) < 3 * error + float(excess.mean()) * 6 / 200, "to first order in 1/N"
    assert float(bias.std()) < 0.3 * float(bias.mean()), "known better than the distance"


@pytest.mark.parametrize(("per_feature", "low", "high"), [(2, 0.7, 0.85), (8, 0.9, 1.0)])
def test_the_bias_of_fd_is_found_up_to_an_order_of_features_over_images(
    per_feature: int, low: float, high: float
) -> None:
    """The true distance is zero, and all directions are alike, which is the hardest case."""
    count = 16 * per_feature
    pairs = [FeaturePair(features(count, 16, 2 * s), features(4 * count, 16, 2 * s + 1)) for s in range(50)]
    assert low < sum(pair.frechet_bias for pair in pairs) / sum(pair.frechet_of(slice(None)) for pair in pairs) < high


def test_the_bias_of_fd_in_one_dimension() -> None:
    """There the distance is (m_x - m_y)² + (s_x - s_y)², and the mean of s is s (1 - (kurtosis - 1) / 8N)."""
    fake, real = features(500, 1, 0, std=2.0), features(300, 1, 1)
    expected = 0.0
    for x in (fake[:, 0], real[:, 0]):
        kurtosis = float((x - x.mean()).pow(4).mean() / x.var() ** 2)
        expected += float(x.var() + fake.std() * real.std() * (kurtosis - 1) / 4) / len(x)
    assert measure("fd", fake, real).bias == pytest.approx(expected, rel=0.01)


def test_no_bias_of_fd_is_given_for_few_images_or_copies() -> None:
    real = features(100, 5, 0)
    assert measure("fd", features(10, 5, 1), real).bias is not None
    assert measure("fd", features(9, 5, 1), real).bias is None and measure("fd", real, features(9, 5, 1)).bias is None
    copied = FeaturePair(features(50, 5, 1).repeat(2, 1), real, torch.arange(50).repeat(2))
    assert FEATURE_METRICS["fd"].measure(copied).bias is None


def test_fd_warnings() -> None:
    few = measure("fd", features(20, 30, 1), features(50, 30, 0))
    assert "20 fake images give no full covariance of 30" in few.warnings[0]
    assert "groups" in few.method and few.error is not None
    both = measure("fd", features(20, 30, 1), features(25, 30, 0))
    assert "20 fake and 25 real" in both.warnings[0]
    near = measure("fd", features(500, 5, 1), features(500, 5, 0))
    assert "perfect images" in near.warnings[0]
    assert measure("fd", features(500, 5, 1, mean=2), features(500, 5, 0)).warnings == ()
    assert "more than 120" in measure("fd_inf", features(120, 30, 1), features(50, 30, 0)).warnings[0]
    assert measure("fd_inf", features(121, 30, 1), features(50, 30, 0)).warnings == ()


# --- discrepancies ----------------------------------------------------------------------------------------------------


def unit_cloud(count: int, size: int, seed: int, spread: float = 0.4) -> torch.Tensor:
    """Unit vectors around one direction, as embeddings of images are."""
    x = spread / math.sqrt(size) * features(count, size, seed)
    x[:, 0] += 1
    unit: torch.Tensor = x / x.norm(dim=1, keepdim=True)
    return unit


def test_published_mmd_is_biased_as_expected() -> None:
    """Unit vectors of variance v: two sets of n from one distribution are 2 v / n apart in mean, times 10.

    With directions all over the sphere, v = 1, that is 0.2 at n = 100 and 0.02 at n = 1000.
    """
    for n, expected in ((100, 0.2), (1000, 0.02)):
        first, second = features(n, 512, 1), features(n, 512, 2)
        found = measure("mmd_published", first, second)
        assert found.value == pytest.approx(expected, rel=0.1)
        assert "bias of this estimate" in found.warnings[0]
        assert abs(measure("mmd_unbiased", first, second).value) < 0.15 * expected


def test_published_mmd_is_ten_times_the_squared_distance_of_the_means() -> None:
    first, second = unit_cloud(500, 64, 1), unit_cloud(500, 64, 2)
    second = second.clone()
    second[:, 1] += 0.14
    second /= second.norm(dim=1, keepdim=True)
    expected = 10 * float((first.mean(0) - second.mean(0)).square().sum())
    found = measure("mmd_published", first, second)
    assert found.value == pytest.approx(expected, rel=0.02) and found.warnings == ()


def test_published_mmd_is_blind_to_diversity() -> None:
    """Equal means, one set in a plane and one all over the sphere: only the others see it."""
    generator = torch.Generator().manual_seed(0)
    angle = 2 * math.pi * torch.rand(1000, generator=generator, dtype=torch.float64)
    flat = torch.zeros(1000, 100).double()
    flat[:, 0], flat[:, 1] = angle.cos(), angle.sin()
    full = features(1000, 100, 1)
    full /= full.norm(dim=1, keepdim=True)
    found = values(flat, full)
    assert abs(found["mmd_unbiased"]) < 0.02 and found["mmd_published"] < 0.04
    assert found["fd"] > 1 and found["mmd"] > 10 and found["recall"] < 0.1


def test_published_mmd_of_nearly_equal_sets_keeps_its_digits() -> None:
    """Two images each, a small angle apart: by hand to first order in the angle's square."""
    angle = 1e-5
    first = torch.tensor([[1.0, 0.0], [1.0, 0.0]]).double()
    second = torch.tensor([[math.cos(angle), math.sin(angle)]] * 2).double()
    expected = 1000 * 2 * -math.expm1(-((2 * math.sin(angle / 2)) ** 2) / 200)
    assert measure("mmd_published", first, second).value == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("kind", ["kid", "mmd", "mmd_unbiased"])
def test_unbiased_discrepancies_are_zero_in_the_mean(kind: str) -> None:
    found = torch.tensor([measure(kind, features(20, 4, 2 * i), features(25, 4, 2 * i + 1)).value for i in range(150)])
    assert abs(float(found.mean())) < 3.5 * float(found.std()) / math.sqrt(150)
    assert found.min() < 0 < found.max()


@pytest.mark.parametrize("kind", ["kid", "mmd", "mmd_published", "mmd_unbiased"])
def test_jackknife_of_sums_equals_leaving_each_image_out(kind: str) -> None:
    fake, real = features(30, 4, 1, 0.3), features(25, 4, 0)
    rows = torch.arange(30)
    left_out = torch.tensor([measure(kind, fake[rows != i], real).value for i in range(30)], dtype=torch.float64)
    expected = math.sqrt(float((left_out - left_out.mean()).square().sum()) * 29 / 30)
    assert measure(kind, fake, real).error == pytest.approx(expected, rel=1e-9)


# --- precision, recall, density, coverage -----------------------------------------------------------------------------


def test_neighbours_tell_quality_from_diversity() -> None:
    real = features(300, 2, 0)
    collapsed = values(0.05 * features(300, 2, 1), real)
    scattered = values(6 * features(300, 2, 2), real)
    assert collapsed["precision"] > 0.95 and collapsed["recall"] < 0.2 and collapsed["coverage"] < 0.3
    assert scattered["precision"] < 0.5 and scattered["recall"] > 0.8 and scattered["density"] < 0.3


def test_groups_left_out_of_recall_and_coverage() -> None:
    """The left-out values, found from neighbours that were kept, against sets that really lack the group."""
    fake, real = features(100, 3, 1, 0.4), features(80, 3, 0)
    pair = FeaturePair(fake, real)
    assert pair.group is not None
    for group in range(10):
        rest = FeaturePair(fake[pair.group != group], real).membership
        assert float(pair.membership.recalled_left_out_G[group]) == pytest.approx(rest.recalled)
        assert float(pair.membership.covered_left_out_G[group]) == pytest.approx(rest.covered)


def test_a_ball_whose_known_neighbours_are_all_left_out_has_the_farthest_ones_radius() -> None:
    """Copies of an image are in one group, and can be all the neighbours that are known of another image."""
    index = torch.tensor([[1, 2, 3], [2, 3, 0], [1, 3, 0], [1, 2, 0]])
    distance2 = torch.tensor([[4.0, 5.0, 6.0], [0.0, 0.0, 4.0], [0.0, 0.0, 5.0], [0.0, 0.0, 6.0]])
    without = prdc.Neighbours(distance2, index).radius2_without(2, torch.tensor([0, 1, 1, 1]), 1)
    assert without.tolist() == [6, -1, -1, -1]


@pytest.mark.parametrize("kind", ["precision", "recall", "density", "coverage"])
def test_neighbour_warnings(kind: str) -> None:
    real = features(401, 2, 0)
    unequal = measure(kind, features(200, 2, 1), real).warnings
    assert "200 fake and 401 real" in unequal[0] and "200 fake images are few" in unequal[1]
    assert len(measure(kind, features(201, 2, 1), real).warnings) == 1


# --- errors -----------------------------------------------------------------------------------------------------------


def test_errors_are_the_spread_over_other_images() -> None:
    """One reference, many independent sets of a model that is off: the stated errors against the true spread.

    Leaving out groups overstates the errors of recall and coverage, where one image can do the work of another: here
    by a fifth, and by half for a perfect model.
    """
    reference = Reference(features(500, 16, 0))
    draws = [FeaturePair(features(300, 16, 1 + seed, 0.3, 0.85), reference) for seed in range(100)]
    for kind, metric in FEATURE_METRICS.items():
        found = [metric.measure(pair) for pair in draws]
        true = float(torch.tensor([one.value for one in found], dtype=torch.float64).std())
        stated = math.sqrt(sum((one.error or 0) ** 2 for one in found) / len(found))
        low, high = (0.9, 1.45) if kind in ("recall", "coverage") else (0.8, 1.25)
        assert low < stated / true < high, f"{kind}: {stated / true:.2f}"


def test_error_of_fd_with_few_images() -> None:
    reference = Reference(features(150, 40, 0))
    found = [measure("fd", features(60, 40, 1 + seed, 0.3, 0.85), reference) for seed in range(80)]
    true = float(torch.tensor([one.value for one in found], dtype=torch.float64).std())
    stated = math.sqrt(sum((one.error or 0) ** 2 for one in found) / len(found))
    assert stated == pytest.approx(true, rel=0.3)
