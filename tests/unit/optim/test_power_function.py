"""The mathematics of power-function averages, against closed forms and brute force in float64."""

from __future__ import annotations

import math
from decimal import Decimal, localcontext

import numpy as np
import pytest
import torch
from scipy.integrate import quad

from tintype.optim.power_ema import share
from tintype.optim.power_function import LONGEST, Profile, exponent, fit, products

LENGTHS = [0.001, 0.02, 0.05, 0.10, 0.2, 0.28]


@pytest.mark.parametrize("length", LENGTHS)
def test_the_exponent_is_the_largest_root_and_gives_the_length_back(length: float) -> None:
    roots = np.roots([1, 7, 16 - length**-2, 12 - length**-2])
    gamma = exponent(length)
    assert gamma == pytest.approx(max(roots[np.abs(roots.imag) < 1e-9].real), rel=1e-9)
    assert math.sqrt((gamma + 1) / ((gamma + 2) ** 2 * (gamma + 3))) == pytest.approx(length, rel=1e-13)


def test_the_published_exponents_and_the_plain_mean() -> None:
    assert exponent(0.05) == pytest.approx(16.97, abs=5e-3) and exponent(0.10) == pytest.approx(6.94, abs=5e-3)
    assert exponent(LONGEST * (1 - 1e-9)) == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("length", [0.0, -0.1, LONGEST, 1.0, math.nan])
def test_a_length_outside_its_range_is_refused(length: float) -> None:
    with pytest.raises(ValueError, match=r"between 0 and 0\.2887"):
        exponent(length)


@pytest.mark.parametrize("updates", [1, 2, 3, 1000, 10**7])
@pytest.mark.parametrize("length", [0.02, 0.10])
def test_the_share_of_an_update_against_fifty_digits(length: float, updates: int) -> None:
    with localcontext() as context:
        context.prec = 50
        kept = (1 - 1 / Decimal(updates)) ** (Decimal(exponent(length)) + 1)
        expected = float(1 - kept)
    assert float(share(length, torch.tensor(updates))) == pytest.approx(expected, rel=1e-14)


def explicit_weights(length: float, count: int) -> np.ndarray:
    """Return the share of each update in the average: its own share, times what every later update keeps."""
    shares = np.array([float(share(length, torch.tensor(t))) for t in range(1, count + 1)])
    kept_later: np.ndarray = np.append(np.cumprod((1 - shares)[:0:-1])[::-1], 1.0)
    weights: np.ndarray = shares * kept_later
    return weights


@pytest.mark.parametrize("length", [0.05, 0.10, 0.25])
def test_the_recursion_is_the_explicit_sum_and_the_integral_of_the_profile(length: float) -> None:
    values = np.random.default_rng(0).normal(size=500)
    average = 0.0
    for t, value in enumerate(values, start=1):
        average += float(share(length, torch.tensor(t))) * (value - average)
    weights = explicit_weights(length, len(values))
    power = np.arange(len(values) + 1, dtype=np.float64) ** (exponent(length) + 1)
    assert weights.sum() == pytest.approx(1, abs=1e-12)
    assert average == pytest.approx(float(weights @ values), abs=1e-12)
    np.testing.assert_allclose(weights, np.diff(power) / power[-1], atol=1e-13)


@pytest.mark.parametrize("length", [0.05, 0.10])
def test_more_steps_approach_the_profile(length: float) -> None:
    """On the trajectory u², u the share of the training, the average is (γ + 1) / (γ + 3); its width is the length."""
    gamma = exponent(length)
    errors = []
    for count in (100, 400, 1600):
        u, weights = np.arange(1, count + 1) / count, explicit_weights(length, count)
        errors.append(abs(weights @ u**2 - (gamma + 1) / (gamma + 3)))
    assert errors[-1] < 1e-3
    np.testing.assert_allclose(np.divide(errors[:-1], errors[1:]), 4, rtol=0.05)
    mean = weights @ u
    assert math.sqrt(weights @ (u - mean) ** 2) == pytest.approx(length, rel=1e-4)


def profile(one: Profile, t: float) -> float:
    gamma = exponent(one.length)
    return (gamma + 1) * (t / one.updates) ** gamma / one.updates if t <= one.updates else 0.0


@pytest.mark.parametrize("first", [Profile(0.05, 100), Profile(0.2, 40)])
@pytest.mark.parametrize("second", [Profile(0.05, 100), Profile(0.1, 100), Profile(0.1, 60)])
def test_products_against_quadrature(first: Profile, second: Profile) -> None:
    end = min(first.updates, second.updates)
    expected, _ = quad(lambda t: profile(first, t) * profile(second, t), 0, end, epsabs=1e-13)
    assert products([first], [second])[0, 0] == pytest.approx(expected, rel=1e-9)
    assert products([second], [first])[0, 0] == pytest.approx(expected, rel=1e-9)


def stored(count: int, *lengths: float) -> list[Profile]:
    return [Profile(length, 1000 * (index + 1) // count) for index in range(count) for length in lengths]


@pytest.mark.parametrize("length", [0.03, 0.08, 0.2])
def test_the_residual_is_that_of_the_fitted_profile(length: float) -> None:
    basis, wanted = stored(8, 0.05, 0.10), Profile(length, 1000)
    mixture = fit(basis, wanted)
    assert sum(mixture.weights) == pytest.approx(1, abs=1e-12)
    times = (np.arange(20_000) + 0.5) / 20
    target = np.array([profile(wanted, t) for t in times])
    fitted = sum(
        weight * np.array([profile(one, t) for t in times]) for weight, one in zip(mixture.weights, basis, strict=True)
    )
    missed = np.linalg.norm(fitted - target) / np.linalg.norm(target)
    assert mixture.residual == pytest.approx(missed, rel=0.02)


@pytest.mark.parametrize("length", [0.02, 0.08, 0.2])
def test_more_snapshots_miss_less(length: float) -> None:
    residuals = [fit(stored(count, 0.05, 0.10), Profile(length, 1000)).residual for count in (4, 8, 16, 32)]
    assert residuals == sorted(residuals, reverse=True) and residuals[-1] < 0.2 * residuals[0]


def test_no_other_weights_fit_better() -> None:
    basis, wanted = stored(4, 0.05, 0.10), Profile(0.07, 1000)
    weights = np.array(fit(basis, wanted).weights)
    gram, product = products(basis, basis), products(basis, [wanted])[:, 0]

    def error(candidate: np.ndarray) -> float:
        return float(candidate @ gram @ candidate - 2 * candidate @ product)

    generator = np.random.default_rng(0)
    for _ in range(50):
        change = generator.normal(size=len(weights)) * 0.05
        assert error(weights + change - change.mean()) > error(weights)


def test_a_stored_profile_is_returned_as_it_is() -> None:
    basis = stored(16, 0.05, 0.10)
    mixture = fit(basis, Profile(0.10, 1000))
    assert mixture.residual == 0 and mixture.weights == (*[0.0] * 31, 1.0)


def test_a_profile_that_is_stored_twice_does_no_harm() -> None:
    """As when every step between two snapshots was skipped."""
    basis = stored(8, 0.05, 0.10)
    once, twice = fit(basis, Profile(0.07, 1000)), fit([*basis, *basis[-2:]], Profile(0.07, 1000))
    assert twice.residual == pytest.approx(once.residual, rel=1e-3)
    assert max(map(abs, twice.weights)) < 10
