"""Check the statistics by simulated studies in which the truth is known: nothing changed, or a change of a known size.

The studies go through `verdicts.compare` as real ones do: arms that share the baseline's seeds, a control that does
not, primary metrics and others, all metrics correlated. What is counted: studies with any false verdict, and planted
changes that are found.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any, Literal, get_args

import numpy as np

from tintype.rng import stream_key
from tintype.runtime.files import write_json, write_text
from tintype.study import spread, stats
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


FALSE_VERDICT_CELLS = [Cell(seeds, shape, r) for shape in SHAPES for r in (0.0, 0.4, 0.8) for seeds in (3, 5, 8)]
POWER_CELLS = [Cell(seeds, pairing=0.0) for seeds in (3, 5, 8)]


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
        rows = compare(found, _MEANINGS, _PRIMARY_METRICS)
        unstable += any(row.verdict == "unstable" for row in rows.values())
        wrong += any(map(_found, rows.values()))
    without = false_verdicts(cell, studies).either
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


def false_verdicts(cell: Cell, studies: int) -> FalseVerdicts:
    counts = np.zeros(3)
    for pairs in simulated(cell, studies):
        rows = compare(pairs, _MEANINGS, _PRIMARY_METRICS)
        primary = any(_found(row) for (_, metric), row in rows.items() if metric in _PRIMARY_METRICS)
        other = any(_found(row) for (_, metric), row in rows.items() if metric not in _PRIMARY_METRICS)
        counts += primary, other, primary or other
    return FalseVerdicts(*(float(count) / studies for count in counts))


def planted_effect(cell: Cell) -> float:
    """The smallest detectable difference that a study states, at the true spread instead of the measured one."""
    arms = ["control", *(f"arm {index}" for index in range(cell.arms))]
    weights = weights_of([(arm, metric) for arm in arms for metric in METRICS], _PRIMARY_METRICS)
    confidence = confidence_of(weights["arm 0", METRICS[0]])
    return stats.detectable_in_errors(_freedom(cell), confidence) * math.sqrt(1.5 / cell.seeds)


def _freedom(cell: Cell) -> float:
    """Degrees of freedom of an arm against the baseline and its control, where all variances are one."""
    arm, both = 1 / cell.seeds, 0.5 / cell.seeds
    own = cell.seeds - 1 + spread.SHARED_FREEDOM, 2 * (cell.seeds - 1) + spread.SHARED_FREEDOM
    freedom = (arm + both) ** 2 / (arm**2 / own[0] + both**2 / own[1])
    return min(freedom, (cell.arms + 2) * (cell.seeds - 1))


def five_arms(studies: int) -> Iterator[dict[str, Any]]:
    """Studies of five arms: false verdicts, and how often changes of some sizes are found.

    Sizes are in standard deviations of single runs, which no seed ties to the baseline's.
    """
    for seeds in (3, 5, 8, 16):
        cell = Cell(seeds, pairing=0.0, arms=5)
        found = {f"{size:g}": share_found(cell, studies, size) for size in (1.0, 1.5, 2.0, 3.0)}
        wrong = {shape: false_verdicts(replace(cell, shape=shape), studies).either for shape in SHAPES}
        yield {"seeds": seeds, "false_verdicts": wrong, "found": found}


def share_found(cell: Cell, studies: int, effect: float) -> float:
    """Return how many studies find an effect of this size."""
    rows = (compare(pairs, _MEANINGS, _PRIMARY_METRICS) for pairs in simulated(cell, studies, effect))
    return fmean(one["arm 0", METRICS[0]].verdict == "worse" for one in rows)


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
    }
    total = len(FALSE_VERDICT_CELLS) + len(POWER_CELLS)
    number = iter(range(total))
    for cell in FALSE_VERDICT_CELLS:
        on_cell(f"false verdicts, {cell.shape}, {cell.seeds} seeds", next(number), total)
        found["false_verdicts"].append({**asdict(cell), **asdict(false_verdicts(cell, studies))})
    for cell in POWER_CELLS:  # 80% is what such a study promises
        on_cell(f"power, {cell.seeds} seeds", next(number), total)
        found["power"].append({**asdict(cell), "found": share_found(cell, studies, planted_effect(cell))})
    found["five_arms"] = list(five_arms(studies // 2))
    found["falls"] = [
        asdict(falls(Cell(seeds, shape, pairing=0.0, arms=5), studies)) for shape in SHAPES for seeds in (3, 8, 16)
    ]
    on_cell("", total, total)
    return found


def write_calibration(folder: Path, found: dict[str, Any]) -> Sequence[Path]:
    """Write `calibration.json` and `images/calibration.svg` into the folder; return both paths."""
    numbers, drawing = folder / "calibration.json", folder / "images" / "calibration.svg"
    drawing.parent.mkdir(parents=True, exist_ok=True)
    write_json(numbers, found)
    write_text(drawing, figure.draw(found))
    return numbers, drawing
