"""Check the verdicts on resampled real runs, with their skew, their outliers and their correlations over metrics.

A bank is one or more studies with many seeds of one baseline. `python -m tools.calibration.bank STUDY_DIR …` draws
small studies from its runs and sends them through the code of real studies:
- studies whose arms are all runs of the baseline: any verdict of better or worse is false;
- the same with one arm moved by a known size: how often it is found;
- studies of the bank's arms: how many comparisons are decided, and whether the runs that were not drawn agree.

Runs are drawn without replacement, so the bank's number of runs limits the number of arms.
"""

from __future__ import annotations

import argparse
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, stdev

import numpy as np

from tintype.errors import UserError
from tintype.rng import stream_key
from tintype.runtime.files import write_json
from tintype.study.compare import compare
from tintype.study.contrasts import Asked
from tintype.study.results import SPEED, Comparison, MetricInfo, Role, Run, StudyResults, read_results_file
from tintype.study.stats.cells import Scale, scale_for
from tintype.study.stats.contrast import Key, against
from tools.calibration.simulate import key_of

SEEDS = (3, 5, 8, 16)
EFFECTS = (1.0, 1.5, 2.0)
MOST_ARMS = 5
STUDIES = 1_000
_CLAIMED = ("better", "worse")
_BASELINES = ("baseline", "control")
Sets = Mapping[str, Sequence[Run]]
"""The runs of a drawn study by the arm's label; the baseline first, the control second if there is one."""


@dataclass(frozen=True)
class Bank:
    """Runs of one baseline, and of arms against it."""

    baseline: tuple[Run, ...]
    arms: Mapping[str, tuple[Run, ...]]
    metrics: Mapping[str, MetricInfo]
    primary: tuple[str, ...]

    def scale(self, metric: str) -> Scale:
        """Return the scale on which runs are compared."""
        info = self.metrics[metric]
        return scale_for(info.scale or "raw", [[run.metrics[metric] for run in self.baseline]], info.pad)

    def deviation(self, metric: str) -> float:
        """Return the seed spread of the baseline on the scale."""
        return stdev(self.scale(metric).place(run.metrics[metric]) for run in self.baseline)


def read_bank(folders: Sequence[Path]) -> Bank:
    """Join the runs of studies of one baseline by one protocol. The control's runs are the baseline's."""
    studies = [read_results_file(folder / "results.json") for folder in folders]
    _check_alike(studies, folders)
    baseline = [run for one in studies for arm in one.arms if arm.role != "arm" for run in arm.runs]
    arms: dict[str, list[Run]] = {}
    for one in studies:
        for arm in one.arms:
            if arm.role == "arm":
                arms.setdefault(arm.name, []).extend(arm.runs)
    whole = {metric.name: metric for metric in studies[0].metrics if metric.name != SPEED}
    return Bank(
        baseline=_distinct(baseline),
        arms={name: _distinct(runs) for name, runs in arms.items()},
        metrics=whole,
        primary=tuple(name for name, metric in whole.items() if metric.primary),
    )


def _check_alike(studies: Sequence[StudyResults], folders: Sequence[Path]) -> None:
    for study, folder in zip(studies[1:], folders[1:], strict=True):
        if study.protocol != studies[0].protocol or _without_seed(study) != _without_seed(studies[0]):
            raise UserError(f"{folder} has another baseline or protocol than {folders[0]}; give studies of one")


def _without_seed(study: StudyResults) -> list[str]:
    return [line for line in study.resolution.plan.splitlines() if not line.startswith("seed:")]


def _distinct(runs: Sequence[Run]) -> tuple[Run, ...]:
    """Return the finished runs, each once, in the order of their seeds."""
    return tuple(sorted({run.hash: run for run in runs if run.state == "done"}.values(), key=lambda run: run.seed))


def verdicts(
    bank: Bank, sets: Sets, planned: Collection[Key] | None = None, share: float = 1.0
) -> dict[Key, Comparison]:
    """Compare the arms of a drawn study as in a real one, at a look with this `share` of the error."""
    roles: dict[str, Role] = {label: "control" if label == "control" else "arm" for label in sets}
    roles["baseline"] = "baseline"
    keys = [key_of(label, name) for label in sets if label != "baseline" for name in bank.metrics]
    asked = [
        Asked(key, against(key.arm, "baseline"), {key.arm: "", "baseline": "baseline"}, _BASELINES) for key in keys
    ]
    wanted = {one.key: one for one in asked if planned is None or one.key in planned}
    runs = {label: list(of) for label, of in sets.items()}
    return compare({"": roles}, runs, bank.metrics, wanted, bank.primary, planned or keys, share)


def null_studies(bank: Bank, seeds: int, studies: int, effect: float = 0.0) -> Iterator[dict[str, list[Run]]]:
    """Draw studies whose arms are runs of the baseline; `effect` moves the first arm's first primary metric."""
    names = ["baseline", "control", *(f"arm {index}" for index in range(MOST_ARMS))][: len(bank.baseline) // seeds]
    if "control" in names and "arm 0" not in names:
        names = ["baseline", "arm 0"]
    generator = np.random.default_rng(stream_key(0, f"bank/{seeds}") & ((1 << 63) - 1))
    for _ in range(studies):
        drawn = generator.permutation(len(bank.baseline))[: len(names) * seeds].reshape(len(names), seeds)
        sets = {name: _numbered([bank.baseline[i] for i in row]) for name, row in zip(names, drawn, strict=True)}
        if effect:
            sets["arm 0"] = [_moved(bank, run, bank.primary[0], effect) for run in sets["arm 0"]]
        yield sets


def _numbered(runs: Sequence[Run]) -> list[Run]:
    """Give the runs the seeds 0, 1, …, so that those of two sets are pairs."""
    return [run.model_copy(update={"seed": seed}) for seed, run in enumerate(runs)]


def _moved(bank: Bank, run: Run, metric: str, effect: float) -> Run:
    """Change a metric of a run for the worse, by this many deviations of single runs."""
    shift = effect * bank.deviation(metric) * (-1 if bank.metrics[metric].direction == "higher" else 1)
    scale = bank.scale(metric)
    changed = scale.value(scale.place(run.metrics[metric]) + shift)
    return run.model_copy(update={"metrics": {**run.metrics, metric: changed}})


@dataclass(frozen=True)
class Null:
    """Studies of the baseline's runs alone."""

    seeds: int
    arms: int
    false_verdicts: float
    """The share of studies with any verdict of better or worse."""
    unstable: float
    """The share of studies with any collapsed run."""
    covered: float
    """The share of intervals on the primary metrics that contain zero."""
    found: dict[str, float]
    """How often a change for the worse is found, by its size in deviations."""


def null(bank: Bank, seeds: int, studies: int) -> Null:
    wrong = fell = arms = 0
    held: list[bool] = []
    for sets in null_studies(bank, seeds, studies):
        rows = verdicts(bank, sets)
        arms = sum(label not in ("baseline", "control") for label in sets)
        wrong += any(row.verdict in _CLAIMED for row in rows.values())
        fell += any(row.verdict == "unstable" for row in rows.values())
        held += [
            row.low <= 0 <= row.high
            for key, row in rows.items()
            if key.metric in bank.primary and row.low is not None and row.high is not None
        ]
    found = {f"{effect:g}": _share_found(bank, seeds, studies, effect) for effect in EFFECTS}
    return Null(seeds, arms, wrong / studies, fell / studies, fmean(held), found)


def _share_found(bank: Bank, seeds: int, studies: int, effect: float) -> float:
    drawn = null_studies(bank, seeds, studies, effect)
    rows = (verdicts(bank, sets)[key_of("arm 0", bank.primary[0])] for sets in drawn)
    return fmean(row.verdict == "worse" for row in rows)


@dataclass(frozen=True)
class Real:
    """Studies of the bank's arms, and whether the runs that were not drawn agree."""

    seeds: int
    decided: float
    """The share of comparisons on primary metrics with a verdict other than undecided."""
    claims: int
    """Verdicts of better or worse on any metric."""
    holds: float | None
    """The share of them whose direction the other runs confirm, by an interval that excludes zero.

    If some of the other runs collapsed, it is the interval of the rest.
    """
    opposite: float | None
    """The share of them that the other runs contradict, by an interval on the other side of zero."""


def real(bank: Bank, seeds: int, studies: int) -> Real:
    """Draw studies of all arms with the same seeds, and compare each verdict with the seeds that were not drawn."""
    whole = {"baseline": bank.baseline, **bank.arms}
    shared = sorted(set.intersection(*({run.seed for run in runs} for runs in whole.values())))
    generator = np.random.default_rng(stream_key(0, f"bank/real/{seeds}") & ((1 << 63) - 1))
    decided: list[bool] = []
    outcomes: list[str] = []
    for _ in range(studies):
        drawn = {shared[i] for i in generator.permutation(len(shared))[:seeds]}
        rows = verdicts(bank, {name: [r for r in runs if r.seed in drawn] for name, runs in whole.items()})
        decided += [row.verdict != "undecided" for key, row in rows.items() if key.metric in bank.primary]
        claims = {key: row for key, row in rows.items() if row.verdict in _CLAIMED}
        rest = {name: [r for r in runs if r.seed not in drawn] for name, runs in whole.items()}
        fresh = verdicts(bank, rest, claims) if claims else {}
        outcomes += [_outcome(row, fresh[key]) for key, row in claims.items()]
    shares = [outcomes.count(name) / len(outcomes) if outcomes else None for name in ("holds", "opposite")]
    return Real(seeds, fmean(decided), len(outcomes), *shares)


def _outcome(row: Comparison, fresh: Comparison) -> str:
    if fresh.low is None or fresh.high is None or fresh.low <= 0 <= fresh.high:
        return "open"
    return "holds" if (fresh.difference > 0) == (row.difference > 0) else "opposite"


def measure(bank: Bank, studies: int = STUDIES) -> dict[str, object]:
    """Return the numbers of docs/bank.json."""
    fewest = min(len({run.seed for run in runs}) for runs in bank.arms.values())
    return {
        "studies": studies,
        "runs": {"baseline": len(bank.baseline), **{name: len(runs) for name, runs in bank.arms.items()}},
        "metrics": list(bank.metrics),
        "primary": list(bank.primary),
        "null": [asdict(null(bank, seeds, studies)) for seeds in SEEDS if 2 * seeds <= len(bank.baseline)],
        "real": [asdict(real(bank, seeds, studies)) for seeds in SEEDS if 2 * seeds <= fewest],
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.calibration.bank")
    parser.add_argument("bank", type=Path, nargs="+", help="folders of studies of one baseline, with many seeds")
    parser.add_argument("--out", type=Path, default=Path("docs/bank.json"))
    parser.add_argument("--studies", type=int, default=STUDIES, help="studies that are drawn for each row")
    options = parser.parse_args()
    found = {"bank": [folder.name for folder in options.bank], **measure(read_bank(options.bank), options.studies)}
    write_json(options.out, found)
    print(options.out)


if __name__ == "__main__":
    main()
