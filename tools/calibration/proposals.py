"""Check `tintype propose` by simulated chains: how often a chain of changes without effect has a false `keep`.

Chains go through `propose.judge` and `ledger.level_of` like real proposals. All proposals of a chain are compared with
the same runs of the baseline, as in a study's folder. Values are normal, or drawn with replacement from the runs of a
bank of real seeds. The bank's runs are then the truth, and each drawn arm is a change without effect.

`python -m tools.calibration.proposals` writes docs/proposals.json, with the figures of docs/agents.md.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from tintype.rng import stream_key
from tintype.runtime.files import write_json
from tintype.study.analysis import AnalysisSettings
from tintype.study.ledger import level_of
from tintype.study.propose import LOOKS, judge, looks_at, planned_shares
from tintype.study.results import MetricInfo, Role, Run
from tintype.study.stats.cells import RAW, Scale
from tools.calibration.bank import Bank, read_bank

CHAINS, LENGTH, TRIES = 1_000, 100, 1_000
SEEDS = 8
"""Runs of the baseline and the control at the first proposal."""
EFFECTS = (1.0, 2.0, 3.0)
POSITIONS = (1, 10, 50)
BANK = Path("studies/2026-11-17_bank-mini")
Level = Callable[[int], float]
"""The level of a proposal by its number."""


@dataclass(frozen=True)
class Source:
    """Runs of one plan to draw from, and the metrics of proposals."""

    name: str
    runs: tuple[Run, ...]
    """Drawn with replacement; normal values if empty."""
    metrics: dict[str, MetricInfo]
    deviation: float
    """Spread of single runs in the first metric, on the scale of comparison."""
    scale: Scale

    def draw(self, count: int, generator: np.random.Generator, effect: float = 0.0) -> list[Run]:
        """Draw runs with the seeds 0, 1, …; `effect` makes their first metric better, in deviations of single runs."""
        if self.runs:
            drawn = [dict(self.runs[i].metrics) for i in generator.integers(len(self.runs), size=count)]
        else:
            values = generator.normal(size=(count, len(self.metrics))).tolist()
            drawn = [dict(zip(self.metrics, row, strict=True)) for row in values]
        first, meaning = next(iter(self.metrics.items()))
        shift = effect * self.deviation * (1 if meaning.direction == "higher" else -1)
        for one in drawn:
            one[first] = self.scale.value(self.scale.place(one[first]) + shift)
        return [Run(seed=i, hash=str(i), folder="", state="done", metrics=one) for i, one in enumerate(drawn)]


def normal() -> Source:
    names = ("first", "second")
    infos = {name: MetricInfo(name=name, label=name, direction="lower", definition="") for name in names}
    return Source("normal", (), infos, 1.0, RAW)


def of_bank(bank: Bank, first: str) -> Source:
    """Return the baseline's runs of a bank, with this primary metric as the first."""
    names = [first, *(name for name in bank.primary if name != first)]
    infos = {name: bank.metrics[name] for name in names}
    return Source(first, bank.baseline, infos, bank.deviation(first), bank.scale(first))


@dataclass(frozen=True)
class Asked:
    """One proposal: whether it was kept, and its number of seeds."""

    kept: bool
    seeds: int


@dataclass(frozen=True)
class Standing:
    """The runs of a study with which all proposals of a chain are compared."""

    baseline: list[Run]
    control: list[Run]


def standing(source: Source, generator: np.random.Generator) -> Standing:
    return Standing(source.draw(LOOKS.most, generator), source.draw(SEEDS, generator))


def ask(source: Source, study: Standing, arm: Sequence[Run], level: float) -> Asked:
    """Test a proposal look by look."""
    looks = planned_shares(looks_at(LOOKS, range(LOOKS.most), range(SEEDS)))
    for look, share in looks:
        runs: dict[Role, list[Run]] = {
            "baseline": [study.baseline[seed] for seed in look.baseline],
            "control": study.control,
            "arm": [arm[seed] for seed in look.arm],
        }
        last = look is looks[-1][0]
        found = judge(runs, source.metrics, AnalysisSettings(), share * level, LOOKS.most, last)
        if found.answer != "more seeds needed":
            return Asked(found.answer == "keep", len(look.arm))
    raise AssertionError("the last look always answers")


def _generator(name: str) -> np.random.Generator:
    return np.random.default_rng(stream_key(0, f"proposals/{name}") & ((1 << 63) - 1))


def false_keeps(source: Source, chains: int, length: int, level: Level = level_of) -> tuple[float, float]:
    """Return the share of chains without any gain that have a `keep`, and the mean seeds of a proposal."""
    generator = _generator(f"{source.name}/{length}")
    studies = [standing(source, generator) for _ in range(chains)]
    kept, seeds = [False] * chains, 0
    for number in range(1, length + 1):  # all chains side by side: equal levels make the statistics' cache serve
        for index, study in enumerate(studies):
            found = ask(source, study, source.draw(LOOKS.most, generator), level(number))
            kept[index] |= found.kept
            seeds += found.seeds
    return sum(kept) / chains, seeds / (chains * length)


@dataclass(frozen=True)
class Power:
    """How often a true gain is kept, and its number of seeds."""

    position: int
    effect: float
    kept: float
    seeds: float


def power(source: Source, position: int, effect: float, tries: int, level: Level = level_of) -> Power:
    generator = _generator(f"{source.name}/power/{position}/{effect}")
    found = []
    for _ in range(tries):
        study = standing(source, generator)
        found.append(ask(source, study, source.draw(LOOKS.most, generator, effect), level(position)))
    return Power(position, effect, sum(one.kept for one in found) / tries, sum(one.seeds for one in found) / tries)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.calibration.proposals")
    parser.add_argument("--bank", type=Path, default=BANK, help="folder of a study with many seeds of one baseline")
    parser.add_argument("--out", type=Path, default=Path("docs/proposals.json"))
    parser.add_argument("--chains", type=int, default=CHAINS)
    parser.add_argument("--tries", type=int, default=TRIES)
    options = parser.parse_args()
    bank = read_bank([options.bank])
    rows = []
    for source in (normal(), *(of_bank(bank, name) for name in bank.primary)):
        wrong, seeds = false_keeps(source, options.chains, LENGTH)
        free, _ = false_keeps(source, max(1, options.chains // 10), LENGTH, lambda number: 0.05)
        powers = [power(source, position, effect, options.tries) for position in POSITIONS for effect in EFFECTS]
        rows.append(
            {
                "source": source.name,
                "false_keep": wrong,
                "seeds": seeds,
                "uncharged": free,
                "power": [asdict(one) for one in powers],
            }
        )
        print(rows[-1], flush=True)
    found = {
        "bank": options.bank.name,
        "chains": options.chains,
        "uncharged_chains": max(1, options.chains // 10),
        "length": LENGTH,
        "tries": options.tries,
        "baseline_seeds": SEEDS,
        "looks": list(LOOKS.counts),
        "bank_runs": len(bank.baseline),
        "rows": rows,
    }
    write_json(options.out, found)


if __name__ == "__main__":
    main()
