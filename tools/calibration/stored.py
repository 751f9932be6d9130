"""Check studies with stored runs of the baseline: false verdicts, also with biased stored runs, and power.

`python -m tools.calibration.stored` writes docs/stored.json. Studies have five arms and a control, as in
`tools.calibration`; each has `RUNS` stored runs. A bias moves all stored runs in every metric, by this many deviations
of single runs. It represents differences that plan, protocol and `NUMERICS` do not show.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from tintype.rng import stream_key
from tintype.runtime.files import write_json
from tintype.study.bank import LEVEL, against_stored, agrees
from tintype.study.stats.cells import Cells
from tintype.study.verdicts import STORED
from tools.calibration.simulate import METRICS, PRIMARY, Cell, Shape, drawn, estimates_of, key_of, shaped

RUNS = 64
SEEDS = (3, 5, 8)
SHAPES: tuple[Shape, ...] = ("normal", "t3", "skewed", "differing")
BIASES = (0.25, 0.5, 1.0, 2.0)
EFFECTS = (1.0, 1.5, 2.0)
STUDIES = 1_000
_ARMS = [f"arm {index}" for index in range(5)]
_KEY = key_of("arm 0", METRICS[0])


def with_stored(
    cell: Cell, studies: int, bias: float = 0.0, effect: float = 0.0, runs: int = RUNS, control: bool = True
) -> Iterator[dict[str, Cells]]:
    """Draw studies with stored runs of the baseline in each metric; none where `runs` is zero."""
    generator = np.random.default_rng(stream_key(0, f"stored/{cell.key}/{bias}/{effect}") & ((1 << 63) - 1))
    for sheets in drawn(cell, studies, effect):
        values = shaped(cell, generator, (1, runs, len(METRICS)))[0] + bias
        plans = dict.fromkeys([*(["control"] if control else []), *([STORED] if runs else [])], "baseline")
        for m, (metric, cells) in enumerate(sheets.items()):
            own = {arm: of for arm, of in cells.values.items() if control or arm != "control"}
            stored = {STORED: dict(enumerate(values[:, m].tolist()))} if runs else {}
            sheets[metric] = Cells({**own, **stored}, plans=plans, stored=runs)
        yield sheets


def checked(sheets: dict[str, Cells], level: float = LEVEL) -> tuple[dict[str, Cells], int]:
    """Return the cells, without stored runs if they do not agree, and the number of metrics in which they do."""
    found, agreed = dict[str, Cells](), 0
    for metric, cells in sheets.items():
        if STORED not in cells.values:
            found[metric] = cells
        elif agrees(cells, against_stored(cells, level)):
            found[metric], agreed = cells, agreed + 1
        else:
            own = {arm: of for arm, of in cells.values.items() if arm != STORED}
            plans = {arm: plan for arm, plan in cells.plans.items() if arm != STORED}
            found[metric] = replace(cells, values=own, plans=plans, stored=0)
    return found, agreed


def measure_one(
    cell: Cell,
    studies: int,
    bias: float = 0.0,
    effect: float = 0.0,
    runs: int = RUNS,
    control: bool = True,
    level: float = LEVEL,
) -> dict[str, float]:
    """Return the shares of studies with a false verdict and that find the effect, and of metrics with stored runs."""
    names = [*(["control"] if control else []), *_ARMS]
    wrong = found = agreed = 0
    for sheets in with_stored(cell, studies, bias, effect, runs, control):
        known, count = checked(sheets, level)
        agreed += count
        rows = {key: one for key, (_, one) in estimates_of(known, METRICS[:PRIMARY], arms=names).items()}
        said = {key for key, one in rows.items() if one.interval and one.says(0.0) in ("above", "below")}
        wrong += bool(said - {_KEY} if effect else said)
        found += _KEY in said and rows[_KEY].value > 0
    return {"false": wrong / studies, "found": found / studies, "serves": agreed / studies / len(METRICS)}


def measure(studies: int = STUDIES) -> dict[str, Any]:
    """Return the numbers of docs/stored.json."""
    rows = []
    for seeds in SEEDS:
        cell = Cell(seeds, pairing=0.0, arms=len(_ARMS))
        shapes = {shape: measure_one(replace(cell, shape=shape), studies) for shape in SHAPES}
        biases = {f"{bias:g}": measure_one(cell, studies, bias) for bias in BIASES}
        alone = {f"{bias:g}": measure_one(cell, studies, bias, control=False) for bias in (0.0, *BIASES)}
        finds = {
            f"{effect:g}": {
                name: measure_one(cell, studies // 2, effect=effect, runs=runs)["found"]
                for name, runs in (("with", RUNS), ("without", 0))
            }
            for effect in EFFECTS
        }
        rows.append({"seeds": seeds, "shapes": shapes, "biases": biases, "without_control": alone, "finds": finds})
    return {"studies": studies, "runs": RUNS, "level": LEVEL, "rows": rows}


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.calibration.stored")
    parser.add_argument("--out", type=Path, default=Path("docs/stored.json"))
    parser.add_argument("--studies", type=int, default=STUDIES)
    options = parser.parse_args(argv)
    write_json(options.out, measure(options.studies))
    print(options.out)


if __name__ == "__main__":
    main()
