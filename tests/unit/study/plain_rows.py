"""Comparisons of plain values: arms named in a test, without a study's file."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from tintype.study.analysis import DEFAULT, AnalysisSettings
from tintype.study.compare import compare
from tintype.study.contrasts import Asked, own_key
from tintype.study.results import Comparison, MetricInfo, Role, Run
from tintype.study.stats.contrast import Key, against


def runs_of(values: Sequence[float], first_seed: int = 0, metric: str = "m") -> list[Run]:
    """Return a finished run for each value."""
    return [
        Run(seed=seed, hash=str(seed), folder="", state="done", metrics={metric: value})
        for seed, value in enumerate(values, first_seed)
    ]


def roles_of(arms: Collection[str]) -> dict[str, Role]:
    """Return the arms by role, the baseline's first. Those called baseline and control are so."""
    roles: dict[str, Role] = {"baseline": "baseline", "control": "control"}
    return {name: roles.get(name, "arm") for name in sorted(arms, key=lambda name: name != "baseline")}


def asked_arm(name: str, metric: str = "m") -> Asked:
    """Return the comparison of an arm or the control with the baseline."""
    key = own_key(name, "control" if name == "control" else "arm", "", metric)
    return Asked(key, against(name, "baseline"), {name: "", "baseline": "baseline"}, ["baseline", "control"])


def rows_of(
    runs: Mapping[str, list[Run]],
    meaning: MetricInfo,
    asked: Sequence[Asked] | None = None,
    family: Collection[Key] | None = None,
    share: float = 1.0,
    analysis: AnalysisSettings = DEFAULT,
) -> dict[str, Comparison]:
    """Compare every arm with the baseline, or what is asked, by the name of the arm."""
    some = [asked_arm(name, meaning.name) for name in runs if name != "baseline"] if asked is None else asked
    wanted = {one.key: one for one in some}
    metrics, keys = {meaning.name: meaning}, wanted if family is None else family
    rows = compare({"": roles_of(runs)}, runs, metrics, wanted, [meaning.name], keys, share, analysis)
    return {key.arm: row for key, row in rows.items()}
