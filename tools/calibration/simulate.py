"""Check the statistics by simulated studies in which the truth is known: nothing changed, or a change of a known size.

The studies go through `verdicts.compare` as real ones do: arms that share the baseline's seeds, a control that does
not, primary metrics and others, all metrics correlated. What is counted: studies with any false verdict, planted
changes that are found, intervals that hold the truth.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any, Literal, get_args

import numpy as np
from scipy import special

from tintype.rng import stream_key
from tintype.runtime.files import write_json, write_text
from tintype.study import spread, stats
from tintype.study.analysis import AnalysisSettings
from tintype.study.fallen import fallen_runs
from tintype.study.groups import MetricGroups
from tintype.study.pairs import Key, Pair
from tintype.study.results import Comparison, MetricInfo
from tintype.study.shares import confidence_of, weights_of
from tintype.study.spread import Groups, against
from tintype.study.verdicts import compare
from tools.calibration import figure

Shape = Literal["normal", "skewed", "differing", "skewed and differing", "unequal", "skewed and unequal"]
SHAPES: tuple[Shape, ...] = get_args(Shape)
STUDIES = 1_000
PRIMARY, OTHER = 2, 7
_ARMS = 2
_ALIKE = 0.6
_SKEW = 0.75
_WIDER = 3.0
_SAME_PLAN = {"control": "baseline"}
_DIFFERING = 0.5
"""Standard deviation over arms of the logarithm of their spread."""
_SHARED = AnalysisSettings()
_STUDENT = AnalysisSettings(method="paired")
_PERMUTATION = AnalysisSettings(test="permutation")
_BOOTSTRAP = AnalysisSettings(interval="bootstrap")


@dataclass(frozen=True)
class Cell:
    """A kind of study. `pairing` is the correlation of an arm with the baseline at the same seed."""

    seeds: int
    shape: Shape = "normal"
    pairing: float = 0.4
    arms: int = _ARMS

    @property
    def key(self) -> int:
        """A stream of random numbers of its own, whichever cells are simulated beside it."""
        return stream_key(0, f"calibration/{self.seeds}/{self.shape}/{self.pairing}/{self.arms}") & ((1 << 63) - 1)


@dataclass(frozen=True)
class FalseVerdicts:
    """Shares of studies without any true difference that give a verdict, by the metrics that it is on."""

    primary: float
    other: float
    either: float


METRICS = [f"primary {index}" for index in range(PRIMARY)] + [f"other {index}" for index in range(OTHER)]
_MEANINGS = dict.fromkeys(METRICS, MetricInfo(name="", label="", direction="lower", definition=""))
_PRIMARY_METRICS = METRICS[:PRIMARY]


def drawn(cell: Cell, studies: int, effect: float = 0.0, metrics: int = len(METRICS)) -> Iterator[list[Groups]]:
    """Studies as the values of each metric: the baseline's, the control's, then the arms'.

    `effect` is added to the first arm's first metric, and nothing else differs.
    """
    generator = np.random.default_rng(cell.key)
    names = ["baseline", "control", *(f"arm {index}" for index in range(cell.arms))]
    for _ in range(studies):
        own = _noise(generator, (cell.arms + 2, cell.seeds, metrics))
        shared, apart = _noise(generator, (cell.seeds, metrics)), _noise(generator, (cell.seeds, metrics))
        of_seed = np.stack([shared, apart, *[shared] * cell.arms])
        values = math.sqrt(cell.pairing) * of_seed + math.sqrt(1 - cell.pairing) * own
        if "skewed" in cell.shape:
            values = _standardised_lognormal(values)
        if "unequal" in cell.shape:
            values[2] *= _WIDER
        if "differing" in cell.shape:
            values[2:] *= np.exp(_DIFFERING * generator.normal(size=(cell.arms, 1, 1)))
        values[2, :, 0] += effect
        yield [
            Groups({name: dict(enumerate(values[arm, :, m].tolist())) for arm, name in enumerate(names)}, _SAME_PLAN)
            for m in range(metrics)
        ]


def simulated(cell: Cell, studies: int, effect: float = 0.0, metrics: int = len(METRICS)) -> Iterator[dict[Key, Pair]]:
    """Studies as `compare` takes them, without the search for runs that fell off."""
    for groups in drawn(cell, studies, effect, metrics):
        yield {
            (arm, metric): replace(pair, terms=(against(of, arm, list(of.values)[: 2 if pair.shared_seeds else 1]),))
            for metric, of in zip(METRICS, groups, strict=False)
            for arm, pair in _pairs(of).items()
        }


def _pairs(groups: Groups) -> dict[str, Pair]:
    """Pair the values of each arm and of the control with the baseline's."""
    baseline, *others = groups.values
    old = list(groups.values[baseline].values())
    return {arm: Pair(list(groups.values[arm].values()), old, arm != "control", True) for arm in others}


@dataclass(frozen=True)
class Falls:
    """Studies without any true difference, with the search for runs that fell off."""

    seeds: int
    shape: Shape
    unstable: float
    """The share of studies in which any arm is unstable on some metric."""
    false_verdicts: float
    without_search: float
    """The share of studies with a false verdict where no run is said to have fallen off."""


def falls(cell: Cell, studies: int) -> Falls:
    unstable = wrong = 0
    for groups in drawn(cell, studies):
        found: dict[Key, Pair] = {}
        for metric, of in zip(METRICS, groups, strict=True):
            fallen = {arm: some for arm in of.values if (some := fallen_runs(of, arm, "lower"))}
            healthy = MetricGroups(of.without(fallen), False, ("baseline", "control"), fallen)
            found |= {(arm, metric): healthy.compared(pair, arm) for arm, pair in _pairs(of).items()}
        rows = compare(found, _MEANINGS, _PRIMARY_METRICS, _SHARED)
        unstable += any(row.verdict == "unstable" for row in rows.values())
        wrong += any(map(_found, rows.values()))
    without = false_verdicts(cell, _SHARED, studies).either
    return Falls(cell.seeds, cell.shape, unstable / studies, wrong / studies, without)


def _noise(generator: np.random.Generator, shape: tuple[int, ...]) -> stats.Array:
    """Standard normal values whose last axis, the metrics, is correlated: most metrics look at the same images."""
    common = generator.normal(size=(*shape[:-1], 1))
    return math.sqrt(_ALIKE) * common + math.sqrt(1 - _ALIKE) * generator.normal(size=shape)


def _standardised_lognormal(
    values: stats.Array,
) -> stats.Array:
    """Draw numbers of mean zero, deviation one and skewness 3.3, like a distance that is large now and then."""
    mean = math.exp(_SKEW**2 / 2)
    return (np.exp(_SKEW * values) - mean) / (mean * math.sqrt(math.expm1(_SKEW**2)))


def _found(row: Comparison) -> bool:
    return row.verdict in ("better", "worse")


def false_verdicts(cell: Cell, analysis: AnalysisSettings, studies: int) -> FalseVerdicts:
    counts = np.zeros(3)
    for pairs in simulated(cell, studies):
        rows = compare(pairs, _MEANINGS, _PRIMARY_METRICS, analysis)
        primary = any(_found(row) for (_, metric), row in rows.items() if metric in _PRIMARY_METRICS)
        other = any(_found(row) for (_, metric), row in rows.items() if metric not in _PRIMARY_METRICS)
        counts += primary, other, primary or other
    return FalseVerdicts(*(float(count) / studies for count in counts))


def planted_effect(cell: Cell, analysis: AnalysisSettings) -> float | None:
    """The smallest detectable difference that a study states, at the true spread instead of the measured one."""
    arms = ["control", *(f"arm {index}" for index in range(cell.arms))]
    weights = weights_of([(arm, metric) for arm in arms for metric in METRICS], _PRIMARY_METRICS)
    confidence = confidence_of(weights["arm 0", METRICS[0]])
    if analysis.method == "shared":
        return stats.detectable_in_errors(_shared_freedom(cell), confidence) * math.sqrt(1.5 / cell.seeds)
    if analysis.test == "permutation":
        reach = stats.permutation_detectable(cell.seeds, True, confidence)
    else:
        reach = stats.detectable_in_errors(cell.seeds - 1, confidence)
    return None if reach is None else reach * math.sqrt(2 * (1 - cell.pairing) / cell.seeds)


def _shared_freedom(cell: Cell) -> float:
    """Degrees of freedom of an arm against the baseline and its control, where all variances are one."""
    arm, both = 1 / cell.seeds, 0.5 / cell.seeds
    own = cell.seeds - 1 + spread.SHARED_FREEDOM, 2 * (cell.seeds - 1) + spread.SHARED_FREEDOM
    freedom = (arm + both) ** 2 / (arm**2 / own[0] + both**2 / own[1])
    return min(freedom, (cell.arms + 2) * (cell.seeds - 1))


def _name(analysis: AnalysisSettings) -> str:
    return "shared" if analysis.method == "shared" else analysis.test


def methods(studies: int) -> Iterator[dict[str, Any]]:
    """Both methods on studies of five arms: false verdicts, and how often changes of some sizes are found.

    Sizes are in standard deviations of single runs, which no seed ties to the baseline's.
    """
    for seeds in (3, 5, 8, 16):
        for analysis in (_STUDENT, _SHARED):
            cell = Cell(seeds, pairing=0.0, arms=5)
            found = {f"{size:g}": _found_of(cell, analysis, studies, size) for size in (1.0, 1.5, 2.0, 3.0)}
            wrong = {shape: false_verdicts(replace(cell, shape=shape), analysis, studies).either for shape in SHAPES}
            yield {"method": analysis.method, "seeds": seeds, "false_verdicts": wrong, "found": found}


def _found_of(cell: Cell, analysis: AnalysisSettings, studies: int, effect: float) -> float:
    rows = (compare(pairs, _MEANINGS, _PRIMARY_METRICS, analysis) for pairs in simulated(cell, studies, effect))
    return fmean(one["arm 0", METRICS[0]].verdict == "worse" for one in rows)


def share_found(cell: Cell, analysis: AnalysisSettings, studies: int) -> float | None:
    """How many studies find the planted effect; 80% is what they say. None where they say that none can be found."""
    effect = planted_effect(cell, analysis)
    if effect is None:
        return None
    rows = (compare(pairs, _MEANINGS, _PRIMARY_METRICS, analysis) for pairs in simulated(cell, studies, effect))
    return fmean(one["arm 0", METRICS[0]].verdict == "worse" for one in rows)


def coverage(cell: Cell, studies: int) -> dict[str, float]:
    """How many 95% intervals on the primary metrics hold the true difference, which is zero."""
    held: dict[str, list[bool]] = {}
    for pairs in simulated(cell, studies, metrics=PRIMARY):
        for key, row in compare(pairs, _MEANINGS, _PRIMARY_METRICS, _STUDENT).items():
            held.setdefault(str(row.interval), []).append(_holds_zero((row.low, row.high)))
            if pairs[key].shared_seeds:
                held.setdefault("BCa", []).append(_holds_zero(bca_interval(row.differences, stats.CONFIDENCE)))
        if cell.seeds >= stats.BOOTSTRAP_SEEDS:
            for row in compare(pairs, _MEANINGS, _PRIMARY_METRICS, _BOOTSTRAP).values():
                held.setdefault("bootstrap", []).append(_holds_zero((row.low, row.high)))
    return {name: fmean(values) for name, values in held.items()}


def bca_interval(differences: Sequence[float], confidence: float) -> tuple[float, float]:
    """Return the bias-corrected and accelerated bootstrap of the mean (Efron 1987, with the jackknife's acceleration).

    Studies do not offer it: with few seeds it covers the truth much less often than it says, as `coverage` shows.
    """
    values = np.asarray(differences, float)
    centred = values - values.mean()
    if not centred.any():
        return float(values[0]), float(values[0])
    shift = stats.resample_weights(len(values), 0, stats.RESAMPLES // 2) @ centred
    below = ((shift < 0).mean() + (shift <= 0).mean()) / 2
    bias, acceleration = special.ndtri(below), (centred**3).sum() / (6 * (centred**2).sum() ** 1.5)
    moved = bias + special.ndtri([(1 - confidence) / 2, (1 + confidence) / 2])
    low, high = np.quantile(shift, special.ndtr(bias + moved / (1 - acceleration * moved)))
    return float(values.mean() + low), float(values.mean() + high)


def _holds_zero(interval: tuple[float | None, float | None]) -> bool:
    low, high = interval
    return low is not None and high is not None and low <= 0 <= high


def tolerance(share: float, count: int) -> float:
    """Three standard errors of a share that is counted in simulated studies."""
    return 3 * math.sqrt(share * (1 - share) / count)


def calibrate(
    studies: int = STUDIES, on_cell: Callable[[str, int, int], None] = lambda name, done, total: None
) -> dict[str, Any]:
    """All numbers of docs/calibration.json. By default it takes two to three minutes on one core."""
    found: dict[str, Any] = {
        "studies": studies,
        "arms": _ARMS,
        "metrics": {"primary": PRIMARY, "other": OTHER, "correlation": _ALIKE},
        "tolerance": {"0.05": tolerance(0.05, studies), "0.8": tolerance(0.8, studies)},
        "false_verdicts": [],
        "power": [],
        "coverage": [],
    }
    errors, powers = list(_false_verdict_cells()), list(_power_cells())
    covered = [Cell(seeds, shape) for shape in SHAPES if "differing" not in shape for seeds in (3, 5, 8, 12)]
    total = len(errors) + len(powers) + len(covered)
    number = iter(range(total))
    for cell, analysis in errors:
        on_cell(f"false verdicts, {_name(analysis)}, {cell.shape}, {cell.seeds} seeds", next(number), total)
        rates = asdict(false_verdicts(cell, analysis, studies))
        found["false_verdicts"].append({"test": _name(analysis), **asdict(cell), **rates})
    for cell, analysis in powers:
        on_cell(f"power, {_name(analysis)}, {cell.seeds} seeds", next(number), total)
        share = share_found(cell, analysis, studies)
        found["power"].append({"test": _name(analysis), **asdict(cell), "found": share})
    for cell in covered:
        on_cell(f"coverage, {cell.shape}, {cell.seeds} seeds", next(number), total)
        found["coverage"].append({**asdict(cell), **coverage(cell, studies)})
    found["methods"] = list(methods(studies // 2))
    found["falls"] = [
        asdict(falls(Cell(seeds, shape, pairing=0.0, arms=5), studies)) for shape in SHAPES for seeds in (3, 8, 16)
    ]
    on_cell("", total, total)
    return found


def _false_verdict_cells() -> Iterator[tuple[Cell, AnalysisSettings]]:
    for shape in SHAPES:
        yield from ((Cell(seeds, shape, r), _SHARED) for r in (0.0, 0.4, 0.8) for seeds in (3, 5, 8))
        yield from ((Cell(seeds, shape, r), _STUDENT) for r in (0.0, 0.4, 0.8) for seeds in (3, 5, 8))
    yield from ((Cell(seeds, arms=6), _STUDENT) for seeds in (3, 5, 8))
    yield from ((Cell(12, shape), _PERMUTATION) for shape in SHAPES if "differing" not in shape)


def _power_cells() -> Iterator[tuple[Cell, AnalysisSettings]]:
    yield from ((Cell(seeds, pairing=0.0), _SHARED) for seeds in (3, 5, 8))
    yield from ((Cell(seeds, pairing=r), _STUDENT) for r in (0.0, 0.4, 0.8) for seeds in (3, 5, 8))
    yield from ((Cell(seeds), _PERMUTATION) for seeds in (3, 5, 8, 10, 12))


def write_calibration(folder: Path, found: dict[str, Any]) -> Sequence[Path]:
    """Write `calibration.json` and `images/calibration.svg` into the folder; return both paths."""
    numbers, drawing = folder / "calibration.json", folder / "images" / "calibration.svg"
    drawing.parent.mkdir(parents=True, exist_ok=True)
    write_json(numbers, found)
    write_text(drawing, figure.draw(found))
    return numbers, drawing
