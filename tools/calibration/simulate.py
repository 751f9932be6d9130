"""Check the statistics by simulated studies with a known truth: no change, or a change of a known size.

The studies go through `verdicts.tested_row` like real ones. They have arms that share the baseline's seeds, a control
with other seeds, primary metrics and others, and correlated metrics. The counts are of studies with any false verdict,
and of planted changes that are found.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any, Literal, get_args

import numpy as np

from tintype.rng import stream_key
from tintype.runtime.files import write_json, write_text
from tintype.study.analysis import DEFAULT
from tintype.study.contrasts import Asked
from tintype.study.results import Comparison, MetricInfo
from tintype.study.stats.cells import Array, Cells, with_alike
from tintype.study.stats.collapse import collapse_p, collapsed_runs
from tintype.study.stats.contrast import Key, against
from tintype.study.stats.estimate import Estimate, detectable_in_errors, planned_widening
from tintype.study.stats.family import UNSTABLE, confidence_of, weights_of
from tintype.study.stats.pairing import correlations, estimate_arm
from tintype.study.stats.spread import planned_error
from tintype.study.verdicts import Matched, tested_row
from tools.calibration import figure

Shape = Literal[
    "normal", "t3", "collapsing", "skewed", "differing", "skewed and differing",
    "unequal", "slightly skewed and unequal", "skewed and unequal",
]  # fmt: skip
SHAPES: tuple[Shape, ...] = get_args(Shape)
STUDIES = 1_000
PRIMARY, OTHER = 2, 7
_ARMS = 2
_ALIKE = 0.6
_SKEW, _SLIGHT = 0.75, 0.35
"""Deviations of logarithms: skewness 3.3 and 1.1."""
_FALL, _FALLS = 8.0, 0.05
"""Deviations by which a collapsed run is worse, and the share of such runs."""
_WIDER = 3.0
SAME_PLAN = {"control": "baseline"}
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
        """A stream of random numbers of its own, independent of the other simulated cells."""
        return stream_key(0, f"calibration/{self.seeds}/{self.shape}/{self.pairing}/{self.arms}") & ((1 << 63) - 1)


FALSE_VERDICT_CELLS = [Cell(seeds, shape, r) for shape in SHAPES for r in (0.0, 0.4, 0.8) for seeds in (3, 5, 8)]
FALL_SHAPES: tuple[Shape, ...] = ("normal", "collapsing", "skewed")
"""Shapes of studies in which all arms collapse alike."""
POWER_CELLS = [Cell(seeds, pairing=0.0) for seeds in (3, 5, 8)]


@dataclass(frozen=True)
class FalseVerdicts:
    """Shares of studies without any true difference that give a verdict, by the kind of metric."""

    primary: float
    other: float
    either: float


METRICS = [f"primary {index}" for index in range(PRIMARY)] + [f"other {index}" for index in range(OTHER)]
_MEANING = MetricInfo(name="", label="", direction="lower", definition="")
_PRIMARY_METRICS = METRICS[:PRIMARY]


def drawn(cell: Cell, studies: int, effect: float = 0.0, metrics: int = len(METRICS)) -> Iterator[dict[str, Cells]]:
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
        values = _with_shape(cell, generator, values)
        if "unequal" in cell.shape:
            values[2] *= _WIDER
        if "differing" in cell.shape:
            values[2:] *= np.exp(_DIFFERING * generator.normal(size=(cell.arms, 1, 1)))
        values[2, :, 0] += effect
        yield {
            metric: cells_of({name: values[arm, :, m].tolist() for arm, name in enumerate(names)})
            for m, metric in enumerate(METRICS[:metrics])
        }


def cells_of(values: Mapping[str, Sequence[float]]) -> Cells:
    """Return the cells of a simulated study, whose seeds are 0, 1, …"""
    starts = {"control": 1_000}
    return Cells({name: dict(enumerate(of, starts.get(name, 0))) for name, of in values.items()}, plans=SAME_PLAN)


def key_of(arm: str, metric: str) -> Key:
    return Key(arm, metric, "", "control" if arm == "control" else "arm")


def estimates_of(
    sheets: Mapping[str, Cells],
    primary: Collection[str],
    family: Sequence[Key] = (),
    share: float = 1.0,
    arms: Sequence[str] = (),
) -> dict[Key, tuple[Cells, Estimate]]:
    """Estimate the arms of a simulated study; by default all, including the control, on all metrics."""
    sheets = with_alike(sheets)
    names = arms or [arm for arm in next(iter(sheets.values())).values if arm != "baseline"]
    keys = [key_of(arm, metric) for metric in sheets for arm in names]
    weights = weights_of(family or keys, primary)
    pairs = {arm: correlations(sheets, arm, "baseline") if arm != "control" else {} for arm in names}
    found = {}
    for key in keys:
        cells, level = sheets[key.metric], confidence_of(share * weights[key])
        found[key] = cells, estimate_arm(cells, key.arm, "baseline", level, pairs[key.arm].get(key.metric))
    return found


def rows_of(
    sheets: Mapping[str, Cells],
    primary: Collection[str],
    family: Sequence[Key] = (),
    share: float = 1.0,
    arms: Sequence[str] = (),
) -> dict[Key, Comparison]:
    """Compare the arms of a simulated study as `estimates_of` estimates them."""
    rows = {}
    for key, (cells, found) in estimates_of(sheets, primary, family, share, arms).items():
        asked = Asked(key, against(key.arm, "baseline"), {}, ("baseline", "control"))
        matched = Matched([], list(cells.values[key.arm].values()), True, "incomplete", "", False)
        rows[key] = tested_row(asked, matched, found, cells, _MEANING, DEFAULT.margin_of(key.metric))
    return rows


def _is_found(found: Estimate) -> bool:
    return found.interval is not None and found.says(0.0) in ("above", "below")


@dataclass(frozen=True)
class Falls:
    """Studies without any true difference, with the search for collapsed runs."""

    seeds: int
    shape: Shape
    unstable: float
    """The share of studies in which any arm is unstable on some metric."""
    false_verdicts: float
    without_search: float
    """The share of studies with a false verdict in which no run counts as collapsed."""


def falls(cell: Cell, studies: int) -> Falls:
    unstable = wrong = 0
    for sheets in drawn(cell, studies):
        healthy, names = dict[str, Cells](), list(next(iter(sheets.values())).values)
        for metric, cells in sheets.items():
            collapsed = {arm: some for arm in names if (some := collapsed_runs(cells, arm, "lower"))}
            healthy[metric] = replace(cells.without(collapsed), collapsed=collapsed)
        seeds = {arm: {s for m in _PRIMARY_METRICS for s in healthy[m].collapsed.get(arm, ())} for arm in names}
        of_baseline = len(seeds["baseline"]) + len(seeds["control"])
        chances = [collapse_p(len(seeds[arm]), cell.seeds, of_baseline, 2 * cell.seeds) for arm in names[2:]]
        unstable += min(chances) < UNSTABLE / (len(names) - 1)
        wrong += any(_is_found(found) for _, found in estimates_of(healthy, _PRIMARY_METRICS).values())
    without = false_verdicts(cell, studies).either
    return Falls(cell.seeds, cell.shape, unstable / studies, wrong / studies, without)


def shaped(cell: Cell, generator: np.random.Generator, shape: tuple[int, int, int]) -> Array:
    """Return independent runs of the baseline, by set, seed and metric, whose noise has the shape of the cell's."""
    return _with_shape(cell, generator, _noise(generator, shape))


def _with_shape(cell: Cell, generator: np.random.Generator, values: Array) -> Array:
    """Give normal values, by set, seed and metric, the tails of the cell's shape."""
    if cell.shape == "t3":
        values = values * np.sqrt(1 / generator.chisquare(3, size=(*values.shape[:2], 1)))
    if cell.shape == "collapsing":
        values = values + _FALL * (generator.random((*values.shape[:2], 1)) < _FALLS)
    if "skewed" in cell.shape:
        values = _standardised_lognormal(values, _SLIGHT if "slightly" in cell.shape else _SKEW)
    return values


def _noise(generator: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Draw standard normal values whose last axis, the metrics, is correlated: most metrics see the same images."""
    common = generator.normal(size=(*shape[:-1], 1))
    return math.sqrt(_ALIKE) * common + math.sqrt(1 - _ALIKE) * generator.normal(size=shape)


def _standardised_lognormal(values: Array, skew: float) -> Array:
    """Return values of mean zero, deviation one and a long upper tail, like a distance that is sometimes large."""
    mean = math.exp(skew**2 / 2)
    found: Array = (np.exp(skew * values) - mean) / (mean * math.sqrt(math.expm1(skew**2)))
    return found


def false_verdicts(cell: Cell, studies: int) -> FalseVerdicts:
    counts = np.zeros(3)
    for sheets in drawn(cell, studies):
        metrics = {key.metric for key, (_, one) in estimates_of(sheets, _PRIMARY_METRICS).items() if _is_found(one)}
        primary, other = bool(metrics & set(_PRIMARY_METRICS)), bool(metrics - set(_PRIMARY_METRICS))
        counts += primary, other, primary or other
    return FalseVerdicts(*(float(count) / studies for count in counts))


def planted_effect(cell: Cell) -> float:
    """The smallest detectable difference in a study's report, at the true spread instead of the measured one."""
    arms = ["control", *(f"arm {index}" for index in range(cell.arms))]
    weights = weights_of([key_of(arm, metric) for arm in arms for metric in METRICS], _PRIMARY_METRICS)
    confidence = confidence_of(weights[key_of("arm 0", METRICS[0])])
    error = planned_error(cell.seeds, cell.arms, control=True)
    wide = planned_widening(cell.seeds, cell.arms, True, confidence)
    return wide * detectable_in_errors(error.freedom, confidence) * math.sqrt(error.value)


def five_arms(studies: int) -> Iterator[dict[str, Any]]:
    """Studies of five arms: false verdicts, and how often changes of some sizes are found.

    Sizes are in standard deviations of single runs, without pairing by seed.
    """
    for seeds in (3, 5, 8):
        cell = Cell(seeds, pairing=0.0, arms=5)
        found = {f"{size:g}": share_found(cell, studies, size) for size in (1.0, 1.5, 2.0, 3.0)}
        wrong = {shape: false_verdicts(replace(cell, shape=shape), studies).either for shape in SHAPES}
        yield {"seeds": seeds, "false_verdicts": wrong, "found": found}


def share_found(cell: Cell, studies: int, effect: float) -> float:
    """Return how many studies find an effect of this size."""
    key = key_of("arm 0", METRICS[0])
    found = (estimates_of(sheets, _PRIMARY_METRICS)[key][1] for sheets in drawn(cell, studies, effect))
    return fmean(_is_found(one) and one.value > 0 for one in found)


def tolerance(share: float, count: int) -> float:
    """Three standard errors of a share counted in simulated studies."""
    return 3 * math.sqrt(share * (1 - share) / count)


def calibrate(
    studies: int = STUDIES, on_cell: Callable[[str, int, int], None] = lambda name, done, total: None
) -> dict[str, Any]:
    """All numbers of docs/calibration.json. The default takes two to three minutes on one core."""
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
        asdict(falls(Cell(seeds, shape, pairing=0.0, arms=5), studies // 2))
        for shape in FALL_SHAPES
        for seeds in (5, 8)
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
