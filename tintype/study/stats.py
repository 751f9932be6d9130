"""Comparison of an arm with the baseline over seeds.

An arm shares its seeds with the baseline, so each seed gives one difference, and their mean a Student interval with
n - 1 degrees of freedom. The control has seeds of its own, so it has no pairs and gets Welch's interval.
Permutation tests and bootstrap intervals need no normal spread, but more seeds.

P: patterns of a permutation test, or resamples of a bootstrap. N: values.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations
from statistics import fmean

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, special

CONFIDENCE = 0.95
POWER = 0.8
BOOTSTRAP_SEEDS = 5
"""With fewer, resamples without any spread are so many that the interval has no end (3 seeds) or is twice too wide."""

_QUANTILES = 2_000
_GRID = 0.02
EXACT_FLIPS = 14
_EXACT_LABELS = 20_000
_DRAWS = 10_000
RESAMPLES = 10_000
_POWER_CELLS = 2**24
_ROUNDING = 1e-12

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Difference:
    """A mean difference with its standard error and degrees of freedom; both None with one seed.

    An error that rounding alone could have made is zero (see `rounding_of`): every seed differs by the same amount, so
    the spread over seeds is not measurable. Such a difference has no p, no interval and no detectable size.
    """

    value: float
    error: float | None
    freedom: float | None

    @property
    def p(self) -> float | None:
        """Return the two-sided p of a true difference of zero; None where no spread was measured."""
        if not self.error or self.freedom is None:
            return None
        return float(2 * special.stdtr(self.freedom, -abs(self.value) / self.error))

    def interval(self, confidence: float) -> tuple[float, float] | None:
        if not self.error or self.freedom is None:
            return None
        reach = t_quantile(self.freedom, confidence) * self.error
        return self.value - reach, self.value + reach

    def detectable(self, confidence: float) -> float | None:
        """Return the smallest true difference found with a power of 80% at this error."""
        if not self.error or self.freedom is None:
            return None
        return detectable_in_errors(self.freedom, confidence) * self.error


def rounding_of(values: Iterable[float], scale: float = 0.0) -> float:
    """Return how large an error between these values can come from rounding alone.

    `scale` is for values that were made from larger ones: a logarithm is as wrong as its ratio, however small it is.
    """
    return _ROUNDING * max(scale, float(max(map(abs, values))))


def paired(new: Sequence[float], old: Sequence[float], scale: float = 0.0) -> Difference:
    differences = [a - b for a, b in zip(new, old, strict=True)]
    if len(differences) < 2:
        return Difference(fmean(differences), None, None)
    error = math.sqrt(variance(differences) / len(differences))
    if error <= rounding_of([*new, *old], scale):
        error = 0.0
    return Difference(fmean(differences), error, len(differences) - 1)


def unpaired(new: Sequence[float], old: Sequence[float], scale: float = 0.0) -> Difference:
    """Return Welch's difference: the spreads of the two sets may differ."""
    value = fmean(new) - fmean(old)
    if min(len(new), len(old)) < 2:
        return Difference(value, None, None)
    shares = [variance(values) / len(values) for values in (new, old)]
    total = sum(shares)
    if math.sqrt(total) <= rounding_of([*new, *old], scale):
        return Difference(value, 0.0, len(new) + len(old) - 2)
    freedom = total**2 / sum(s**2 / (len(v) - 1) for s, v in zip(shares, (new, old), strict=True))
    return Difference(value, math.sqrt(total), freedom)


def variance(values: Sequence[float]) -> float:
    """Return the unbiased variance, in two passes. That of `statistics` is exact and much slower."""
    mean = fmean(values)
    offsets = [value - mean for value in values]
    return math.fsum(offset * offset for offset in offsets) / (len(values) - 1)  # a power would raise on overflow


def t_quantile(freedom: float, confidence: float) -> float:
    """Return the half-width of a two-sided Student interval, in standard errors."""
    return float(special.stdtrit(freedom, (1 + confidence) / 2))


def detectable_in_errors(freedom: float, confidence: float) -> float:
    """Return the true difference, in standard errors, that a two-sided t test finds with a power of 80%.

    Welch's freedom is any number: it is interpolated on a logarithmic grid, so that the cache serves.
    """
    if float(freedom).is_integer():
        return _solve_detectable(freedom, confidence)
    place = math.log(freedom) / _GRID
    below = math.floor(place)
    ends = [math.log(_solve_detectable(math.exp(_GRID * step), confidence)) for step in (below, below + 1)]
    return math.exp(ends[0] + (place - below) * (ends[1] - ends[0]))


@lru_cache(maxsize=4096)
def _solve_detectable(freedom: float, confidence: float) -> float:
    most = 2 * t_quantile(freedom, confidence) + 10
    return float(optimize.brentq(lambda shift: t_power(shift, freedom, confidence) - POWER, 0.0, most, xtol=1e-6))


def t_power(shift: float, freedom: float, confidence: float) -> float:
    """Return how often a t test finds a true difference of `shift` standard errors.

    Averages the normal tails over the quantiles of the estimated error: scipy's noncentral t fails for large shifts.
    """
    reach = t_quantile(freedom, confidence) * _estimated_errors(freedom)
    return float((special.ndtr(shift - reach) + special.ndtr(-shift - reach)).mean())


@lru_cache(maxsize=4096)
def _estimated_errors(freedom: float) -> Array:
    """Return quantiles of the estimated standard error over the true one."""
    quantiles = (np.arange(_QUANTILES) + 0.5) / _QUANTILES
    found: Array = np.sqrt(2 * special.gammaincinv(freedom / 2, quantiles) / freedom)
    return found


def corrected_for_selection(value: float, error: float, reach: float) -> float:
    """Return the most likely true difference, given that one was reported because it exceeds `reach`.

    The conditional likelihood of Zhong and Prentice 2008, at a normal spread: differences that just pass come out too
    large on average, and far ones do not.
    """
    z, limit = abs(value) / error, reach / error

    def improbable(true: float) -> float:
        passed = special.log_ndtr(true - limit), special.log_ndtr(-true - limit)
        return float((z - true) ** 2 / 2 + np.logaddexp(*passed))

    found = optimize.minimize_scalar(improbable, bounds=(0.0, z), method="bounded", options={"xatol": 1e-6})
    return math.copysign(float(found.x) * error, value)


def holm(p_values: Sequence[float], weights: Sequence[float] | None = None) -> list[float]:
    """Return Holm's adjusted p values, in the order given. A comparison's weight is its share of the allowed error.

    The weighted form (Holm 1979, section 4) takes the smallest p / weight first and tests it with the whole weight
    that is left; with equal weights it is the usual one.
    """
    shares = [1.0] * len(p_values) if weights is None else list(weights)
    order = sorted(range(len(p_values)), key=lambda index: p_values[index] / shares[index])
    adjusted = [0.0] * len(p_values)
    running = 0.0
    for rank, index in enumerate(order):
        left = math.fsum(shares[other] for other in order[rank:])
        running = max(running, min(1.0, p_values[index] * left / shares[index]))
        adjusted[index] = running
    return adjusted


def sign_flip_p(differences: Sequence[float], rounding: float = 0.0) -> float:
    """Return the two-sided p of the paired permutation test: without an effect, each difference could have either sign.

    Exact over all 2^n patterns of signs up to 14 seeds, and over 10,000 drawn ones from there on. Means that differ by
    no more than `rounding` are the same.
    """
    values = min(sorted(differences), sorted(-one for one in differences))
    return _pattern_p(np.asarray(values, float), sign_patterns(len(values)), rounding)


def label_p(new: Sequence[float], old: Sequence[float], rounding: float = 0.0) -> float:
    """Return the two-sided p of the unpaired permutation test: without an effect, labels are exchangeable.

    Exact where there are at most 20,000 ways to deal them, and over 10,000 drawn ones where there are more. Those are
    drawn by position, so the values are first put into an order that depends neither on the seeds' order nor on which
    set is the new one or on the sign.
    """
    both = [(new, old), (old, new)]
    both += [([-one for one in first], [-one for one in second]) for first, second in both]
    first, second = min((sorted(first), sorted(second)) for first, second in both)
    values = np.asarray([*first, *second], float)
    return _pattern_p(values - values.mean(), label_patterns(len(first), len(second)), rounding)


def _pattern_p(values: Array, patterns_PN: Array, rounding: float) -> float:
    """Return the share of patterns that give as large a difference as the first one, which was observed."""
    sizes = np.abs(patterns_PN @ values)
    return float((sizes >= sizes[0] - max(rounding, rounding_of(values))).mean())


@lru_cache(maxsize=16)
def sign_patterns(seeds: int) -> Array:
    """Return weights that turn differences into a mean, one row for each pattern of signs; the observed one first."""
    if seeds <= EXACT_FLIPS:
        flips = (np.arange(2**seeds)[:, None] >> np.arange(seeds)) & 1
    else:
        flips = np.random.default_rng(seeds).integers(0, 2, (_DRAWS + 1, seeds))
        flips[0] = 0
    patterns: Array = (1.0 - 2.0 * flips) / seeds
    return patterns


@lru_cache(maxsize=16)
def label_patterns(new: int, old: int) -> Array:
    """Return weights that turn values into a difference of means, one row for each labelling; the observed first."""
    count = new + old
    if math.comb(count, new) <= _EXACT_LABELS:
        chosen = np.asarray(list(combinations(range(count), new)))
    else:
        generator = np.random.default_rng([new, old])
        chosen = generator.permuted(np.tile(np.arange(count), (_DRAWS + 1, 1)), axis=1)[:, :new]
        chosen[0] = np.arange(new)
    patterns: Array = np.full((len(chosen), count), -1.0 / old)
    np.put_along_axis(patterns, chosen, 1.0 / new, axis=1)
    return patterns


def smallest_permutation_p(seeds: int, comparisons: float = 1) -> float:
    """Return the smallest corrected p that the paired permutation test can give, whatever the data.

    All differences of one sign are one pattern of 2^n, and all of the other sign another. Holm's first step multiplies
    by the number of comparisons; with weights, that is one over the comparison's share.
    """
    patterns = 2**seeds if seeds <= EXACT_FLIPS else (_DRAWS + 1) * 2
    return min(1.0, comparisons * 2 / patterns)


def seeds_for_permutation(comparisons: float, confidence: float = CONFIDENCE) -> int | None:
    """Return the fewest seeds with which the paired permutation test can give a verdict; None if no number can."""
    enough = (n for n in range(2, EXACT_FLIPS + 2) if smallest_permutation_p(n, comparisons) < 1 - confidence)
    return next(enough, None)


@lru_cache(maxsize=256)
def permutation_detectable(seeds: int, shared_seeds: bool, confidence: float) -> float | None:
    """Return the true difference, in standard errors, that a permutation test finds with a power of 80%.

    Simulated at a normal spread, as there is no formula: at a strict level the few patterns of few seeds cost much.
    None where no difference is ever found.
    """
    patterns_PN = sign_patterns(seeds) if shared_seeds else label_patterns(seeds, seeds)
    studies = min(4_000, _POWER_CELLS // len(patterns_PN))
    noise = np.random.default_rng(seeds).normal(size=(studies, patterns_PN.shape[1]))
    chance = (noise @ patterns_PN.T).astype(np.float32)
    per_effect = patterns_PN[:, :seeds].sum(axis=1).astype(np.float32)

    def power(effect: float) -> float:
        sizes = np.abs(chance + effect * per_effect)
        p_values = (sizes >= sizes[:, :1] * (1 - 1e-6)).mean(axis=1)
        return float((p_values < 1 - confidence).mean())

    error = math.sqrt((1 if shared_seeds else 2) / seeds)
    low, high = 0.0, 30 * error
    if power(high) < POWER:
        return None
    while high - low > 0.005 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if power(middle) >= POWER else (middle, high)
    return high / error


def bootstrap_interval(
    new: Sequence[float], old: Sequence[float], shared_seeds: bool, confidence: float
) -> tuple[float, float] | None:
    """Return the percentile-t interval: the quantiles of t over resamples of the seeds.

    Efron and Tibshirani 1993, chapter 12. Chosen over BCa by coverage (tools/calibration). None with fewer than five
    seeds, and where so many seeds have the same value that the interval has no end. The resamples depend on the number
    of seeds alone and the values are sorted, so the interval is a function of the values and not of their order; and
    it is mirrored when the sign or the sets are swapped (see `resample_weights`).
    """
    if len(new) < BOOTSTRAP_SEEDS:
        return None
    if shared_seeds:
        values, difference = [np.sort(np.subtract(new, old))], paired(new, old)
        weights = [resample_weights(len(new), 0, RESAMPLES // 2)]
    else:
        values, difference = [np.sort(new), -np.sort(old)], unpaired(new, old)
        first, second = (resample_weights(len(new), stream, RESAMPLES // 4) for stream in (0, 1))
        weights = [np.concatenate([first, second]), np.concatenate([second, first])]
    if not difference.error:
        return None
    found = [_resampled(*of_set) for of_set in zip(values, weights, strict=True)]
    shift, squared = (np.sum(part, axis=0) for part in zip(*found, strict=True))
    with np.errstate(divide="ignore", invalid="ignore"):  # infinite where a resample has a shift and no spread
        t = np.where(shift == 0, 0.0, shift / np.sqrt(squared))
    low, high = np.quantile(t, [(1 - confidence) / 2, (1 + confidence) / 2], method="nearest")
    if not (math.isfinite(low) and math.isfinite(high)):
        return None
    return difference.value - float(high) * difference.error, difference.value - float(low) * difference.error


def _resampled(values: Array, weights_PN: Array) -> tuple[Array, Array]:
    """Return how far each resample's mean is from the mean, and its squared standard error."""
    centred = values - values.mean()
    largest = np.abs(centred).max()
    shift = weights_PN @ centred
    spread = np.maximum(weights_PN @ centred**2 - shift**2, 0.0)
    shift[np.abs(shift) < _ROUNDING * largest] = 0.0
    spread[spread < _ROUNDING * largest**2] = 0.0
    return shift, spread / (len(values) - 1)


@lru_cache(maxsize=16)
def resample_weights(seeds: int, stream: int, draws: int) -> Array:
    """Return each seed's share of each resample: `draws` resamples, then each one reversed.

    Sorted values are reversed when their sign changes. So the resamples of both signs are the same.
    """
    generator = np.random.default_rng([seeds, stream])
    weights: Array = generator.multinomial(seeds, [1 / seeds] * seeds, draws) / seeds
    return np.concatenate([weights, weights[:, ::-1]])


def deviation_range(deviation: float, freedom: float, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Return the chi-square interval of a standard deviation with these degrees of freedom, at a normal spread."""
    tails = special.chdtri(freedom, [(1 - confidence) / 2, (1 + confidence) / 2])
    low, high = deviation * np.sqrt(freedom / tails)
    return float(low), float(high)
