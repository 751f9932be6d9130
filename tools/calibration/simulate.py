"""Check the statistics by simulated studies with a known truth: no change, or a change of a known size.

The studies are compared like real ones. They have arms that share the baseline's seeds, a control with other seeds,
primary metrics and others, and correlated metrics. Collapsed runs are searched for and left out. The counts are of
studies with any false verdict, and of planted changes that are found.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from statistics import fmean
from typing import Any, Literal, get_args

import numpy as np
from scipy import stats

from tintype.rng import stream_key
from tintype.runtime.files import write_json, write_text
from tintype.study.analysis import DEFAULT
from tintype.study.contrasts import Asked
from tintype.study.results import Comparison, MetricInfo
from tintype.study.stats.cells import LOG, PAD, RAW, Array, Cells, Scale, with_alike
from tintype.study.stats.collapse import collapse_p, collapsed_runs
from tintype.study.stats.contrast import Key, against
from tintype.study.stats.estimate import Estimate, detectable_in_errors, planned_widening
from tintype.study.stats.family import UNSTABLE, confidence_of, weights_of
from tintype.study.stats.pairing import correlations, estimate_arm
from tintype.study.stats.spread import planned_error
from tintype.study.verdicts import Matched, tested_row
from tools.calibration import figure

Shape = Literal[
    "normal", "t3", "collapsing", "shares", "relative", "skewed", "differing", "skewed and differing",
    "unequal", "slightly skewed and unequal", "skewed and unequal",
]  # fmt: skip
SHAPES: tuple[Shape, ...] = get_args(Shape)
STUDIES = 4_000
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
_RARE = 3.0, 97.0
"""Beta distribution of a share: mean 3%, deviation 1.7%. Every second metric is one minus it."""
_RELATIVE = 0.15
"""Deviation of a distance in shares of its mean; its logarithm is compared."""
_SCALES: Mapping[str, Scale] = {"shares": Scale("logit", PAD), "relative": LOG}
_MANY_ARMS = 12


USUAL_PAIRING = 0.4


@dataclass(frozen=True)
class Cell:
    """A kind of study. `pairing` is the correlation of an arm with the baseline at the same seed."""

    seeds: int
    shape: Shape = "normal"
    pairing: float = USUAL_PAIRING
    arms: int = _ARMS

    @property
    def key(self) -> int:
        """A stream of random numbers of its own, independent of the other simulated cells."""
        return stream_key(0, f"calibration/{self.seeds}/{self.shape}/{self.pairing}/{self.arms}") & ((1 << 63) - 1)


FALSE_VERDICT_CELLS = [
    Cell(seeds, shape, r) for shape in SHAPES for r in (0.0, USUAL_PAIRING, 0.8) for seeds in (3, 5, 8)
]
MANY_SHAPES: tuple[Shape, ...] = ("normal", "t3", "differing")
"""Shapes of studies of many arms."""
SIZES = (1.0, 1.5, 2.0, 3.0)
"""Sizes of planted effects, in standard deviations of single runs without pairing by seed."""
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
        scale = _SCALES.get(cell.shape, RAW)
        yield {
            metric: cells_of({name: values[arm, :, m].tolist() for arm, name in enumerate(names)}, scale)
            for m, metric in enumerate(METRICS[:metrics])
        }


def cells_of(values: Mapping[str, Sequence[float]], scale: Scale = RAW) -> Cells:
    """Return the cells of a simulated study, whose seeds are 0, 1, …; the values are on the scale."""
    by_seed = {name: dict(enumerate(of, 1_000 if name == "control" else 0)) for name, of in values.items()}
    return Cells(by_seed, scale, SAME_PLAN)


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


def without_collapsed(sheets: Mapping[str, Cells]) -> dict[str, Cells]:
    """Return the cells without collapsed runs. Each metric is searched for them, as in real studies."""
    healthy = dict[str, Cells]()
    for metric, cells in sheets.items():
        collapsed = {arm: some for arm in cells.values if (some := collapsed_runs(cells, arm, "lower"))}
        healthy[metric] = replace(cells.without(collapsed), collapsed=collapsed)
    return healthy


def falls(cell: Cell, studies: int) -> Falls:
    unstable = wrong = without = 0
    for sheets in drawn(cell, studies):
        healthy, names = without_collapsed(sheets), list(next(iter(sheets.values())).values)
        seeds = {arm: {s for m in _PRIMARY_METRICS for s in healthy[m].collapsed.get(arm, ())} for arm in names}
        of_baseline = len(seeds["baseline"]) + len(seeds["control"])
        chances = [collapse_p(len(seeds[arm]), cell.seeds, of_baseline, 2 * cell.seeds) for arm in names[2:]]
        unstable += min(chances) < UNSTABLE / (len(names) - 1)
        wrong += any(_is_found(found) for _, found in estimates_of(healthy, _PRIMARY_METRICS).values())
        without += any(_is_found(found) for _, found in estimates_of(sheets, _PRIMARY_METRICS).values())
    return Falls(cell.seeds, cell.shape, unstable / studies, wrong / studies, without / studies)


def shaped(cell: Cell, generator: np.random.Generator, shape: tuple[int, int, int]) -> Array:
    """Return independent runs of the baseline, by set, seed and metric, whose noise has the shape of the cell's."""
    return _with_shape(cell, generator, _noise(generator, shape))


def _with_shape(cell: Cell, generator: np.random.Generator, values: Array) -> Array:
    """Give normal values, by set, seed and metric, the tails of the cell's shape."""
    if cell.shape == "t3":
        values = values * np.sqrt(1 / generator.chisquare(3, size=(*values.shape[:2], 1)))
    if cell.shape == "collapsing":
        values = values + _FALL * (generator.random((*values.shape[:2], 1)) < _FALLS)
    if cell.shape == "shares":
        values = _rare_shares(values)
    if cell.shape == "relative":
        values = np.log(np.maximum(1 + _RELATIVE * values, _RELATIVE))
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


def _rare_shares(values: Array) -> Array:
    """Return shares near zero, and in every second metric near one, on their scale, for standard normal values."""
    rare = stats.beta.ppf(stats.norm.cdf(values), *_RARE)
    rare[..., 1::2] = 1 - rare[..., 1::2]
    found: Array = np.vectorize(_SCALES["shares"].place)(rare)
    return found


def false_verdicts(cell: Cell, studies: int) -> FalseVerdicts:
    counts = np.zeros(3)
    for sheets in map(without_collapsed, drawn(cell, studies)):
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


def share_found(cell: Cell, studies: int, effect: float) -> float:
    """Return how many studies find an effect of this size."""
    key = key_of("arm 0", METRICS[0])
    drawn_studies = map(without_collapsed, drawn(cell, studies, effect))
    found = (estimates_of(sheets, _PRIMARY_METRICS)[key][1] for sheets in drawn_studies)
    return fmean(_is_found(one) and one.value > 0 for one in found)


def tolerance(share: float, count: int) -> float:
    """Three standard errors of a share counted in simulated studies."""
    return 3 * math.sqrt(share * (1 - share) / count)


def fewer(studies: int) -> int:
    """Return how many studies the rows beside the main ones have."""
    return max(1, studies // 4)


@dataclass(frozen=True)
class Task:
    """Simulated studies of one kind, and what is counted in them."""

    part: Literal["false verdicts", "found", "falls"]
    cell: Cell
    studies: int
    effect: float = 0.0

    @property
    def name(self) -> str:
        cell = self.cell
        kind = f"{cell.shape}, {cell.arms} arms, {cell.seeds} seeds, pairing {cell.pairing:g}, effect {self.effect:.6g}"
        return f"{self.part}, {kind}, {self.studies} studies"

    def measure(self) -> dict[str, Any]:
        if self.part == "false verdicts":
            return asdict(false_verdicts(self.cell, self.studies))
        if self.part == "falls":
            return asdict(falls(self.cell, self.studies))
        return {"found": share_found(self.cell, self.studies, self.effect)}


def calibrate(
    studies: int = STUDIES,
    rows: Path | None = None,
    jobs: int = 1,
    on_row: Callable[[str, int, int], None] = lambda name, done, total: None,
) -> dict[str, Any]:
    """Return all numbers of docs/calibration.json. The default takes an hour on one core.

    Finished rows are appended to the file `rows`, and those that are in it are not simulated again. `jobs` is the
    number of processes.
    """
    some = fewer(studies)
    false = {one: Task("false verdicts", one, _studies_of(one, studies)) for one in FALSE_VERDICT_CELLS}
    power = {one: Task("found", one, some, planted_effect(one)) for one in POWER_CELLS}  # a study promises 80%
    five = [Cell(seeds, pairing=0.0, arms=5) for seeds in (3, 5, 8)]
    many = Cell(4, pairing=0.0, arms=_MANY_ARMS)
    shaped = {
        one: {shape: Task("false verdicts", replace(one, shape=shape), studies) for shape in SHAPES} for one in five
    }
    sized = {one: {f"{size:g}": Task("found", one, some, size) for size in SIZES} for one in five}
    crowded = {shape: Task("false verdicts", replace(many, shape=shape), some) for shape in MANY_SHAPES}
    fallen = [Task("falls", replace(one, shape=shape), studies) for shape in FALL_SHAPES for one in five[1:]]
    inner = [
        *(task for of in shaped.values() for task in of.values()),
        *(t for of in sized.values() for t in of.values()),
    ]
    tasks = [*false.values(), *power.values(), *inner, *crowded.values(), *fallen]
    found = _measured(tasks, rows, jobs, on_row)

    def either(of: Mapping[Shape, Task]) -> dict[Shape, float]:
        return {shape: found[task.name]["either"] for shape, task in of.items()}

    return {
        "studies": studies,
        "arms": _ARMS,
        "metrics": {"primary": PRIMARY, "other": OTHER, "correlation": _ALIKE},
        "tolerance": {"0.05": tolerance(0.05, studies), "0.8": tolerance(0.8, some)},
        "false_verdicts": [{**asdict(one), "studies": task.studies, **found[task.name]} for one, task in false.items()],
        "power": [{**asdict(one), **found[task.name]} for one, task in power.items()],
        "five_arms": [
            {
                "seeds": one.seeds,
                "false_verdicts": either(shaped[one]),
                "found": {size: found[task.name]["found"] for size, task in sized[one].items()},
            }
            for one in five
        ],
        "many_arms": {"seeds": many.seeds, "arms": many.arms, "studies": some, "false_verdicts": either(crowded)},
        "falls": [found[task.name] for task in fallen],
    }


def _studies_of(cell: Cell, studies: int) -> int:
    return studies if cell.pairing == USUAL_PAIRING else fewer(studies)


def _measured(
    tasks: Sequence[Task], rows: Path | None, jobs: int, on_row: Callable[[str, int, int], None]
) -> dict[str, dict[str, Any]]:
    """Return the result of each task by its name; read and append the finished ones in the file `rows`."""
    found: dict[str, dict[str, Any]] = {}
    if rows is not None and rows.exists():
        found = {one["name"]: one["result"] for one in map(json.loads, rows.read_text().splitlines())}
    missing = [task for task in tasks if task.name not in found]

    def keep(task: Task, result: dict[str, Any]) -> None:
        found[task.name] = result
        if rows is not None:
            with rows.open("a") as file:
                file.write(json.dumps({"name": task.name, "result": result}) + "\n")
        on_row(task.name, sum(one.name in found for one in tasks), len(tasks))

    if jobs == 1:
        for task in missing:
            keep(task, task.measure())
        return found
    with ProcessPoolExecutor(jobs, get_context("spawn")) as pool:
        waiting = {pool.submit(task.measure): task for task in missing}
        for future in as_completed(waiting):
            keep(waiting[future], future.result())
    return found


def write_calibration(folder: Path, found: dict[str, Any]) -> Sequence[Path]:
    """Write `calibration.json` and `images/calibration.svg` into the folder; return both paths."""
    numbers, drawing = folder / "calibration.json", folder / "images" / "calibration.svg"
    drawing.parent.mkdir(parents=True, exist_ok=True)
    write_json(numbers, found)
    write_text(drawing, figure.draw(found))
    return numbers, drawing
