"""Read runs of another study from its results, as stored baseline runs, for a replication, or for pooling.

A run of another study belongs to an arm if their plans with the run's seed have the same hash; names may differ. The
other study must have the same protocol, the same `NUMERICS` and the same frozen networks.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from pydantic import ValidationError

from tintype.errors import UserError
from tintype.evaluation.protocol import Protocol
from tintype.study.results import Run, StudyResults, read_results_file
from tintype.study.runs import Metrics, identities_of
from tintype.study.study import Study, reseeded
from tintype.study.version import FIRST_NUMERICS, read_version

RESULTS = "results.json"


@dataclass(frozen=True)
class StoredStudy:
    """A study with a report, in the study's folder."""

    folder: Path
    results: StudyResults
    title: str = ""
    """The study's name, even if another study's folder has the same name."""

    @property
    def name(self) -> str:
        return self.title or name_of(self.folder)

    @cached_property
    def numerics(self) -> int:
        """Return the `NUMERICS` of the version that began the study."""
        recorded = self.results.numerics or read_version(self.folder).get("numerics")
        return recorded if isinstance(recorded, int) else FIRST_NUMERICS

    @cached_property
    def protocol(self) -> str:
        """Return the hash of the study's protocol; empty if this version cannot read the protocol."""
        try:
            found = Protocol.model_validate_json(json.dumps(self.results.protocol))
            return found.with_prompts_in(self.folder).hash
        except (ValidationError, UserError, OSError):  # of an earlier version, of a plugin, or without a prompt file
            return ""

    @cached_property
    def runs(self) -> list[Run]:
        """Return every run of the study exactly once."""
        every = (run for arm in self.results.arms for run in arm.runs if run.state != "missing")
        return list({run.hash: run for run in every}.values())


def read_stored(path: Path) -> StoredStudy:
    """Read a study, given its folder or its results.json."""
    file = path if path.is_file() else path / RESULTS
    if not file.is_file():
        raise UserError(f"{path} has no {RESULTS}", f"give the folder of a study that has a report, or its {RESULTS}")
    return StoredStudy(file.parent, read_results_file(file))


def name_of(path: Path) -> str:
    """Return the name of a study's folder, given the folder or its results.json."""
    return (path.parent if path.name == RESULTS else path).resolve().name


def why_apart(other: StoredStudy, protocol: str, numerics: int) -> str:
    """Return the reason why a study's runs cannot be used with this protocol and `NUMERICS`; empty if they can."""
    if not other.protocol:
        return f"the protocol of {other.name} is of another version, or its prompt files are not there"
    if other.protocol != protocol:
        return f"{other.name} was scored by another protocol ({other.protocol}, here it is {protocol})"
    if other.numerics != numerics:
        return f"the training of {other.name} computed other numbers (NUMERICS {other.numerics}, here it is {numerics})"
    return ""


def identities(runs: Iterable[Run]) -> dict[str, str]:
    """Return the SHA-256 of each frozen network that runs read, by the network's name and settings."""
    found = [one for run in runs for one in identities_of(run)]
    return {f"{part} {settings}".strip(): identity for part, settings, identity, _ in found if identity}


def other_networks(mine: Mapping[str, str], theirs: Mapping[str, str]) -> list[str]:
    """List the frozen networks whose weights differ between the two studies."""
    return sorted(
        part.partition(" {")[0].partition(" [")[0] for part in mine if mine[part] != theirs.get(part, mine[part])
    )


def runs_like(study: Study, other: StoredStudy, metrics: Metrics) -> dict[str, list[Run]]:
    """Return another study's runs with an arm's plan except for the seed, by the arm's label.

    The control's runs count as the baseline's. Values are left out if `metrics` defines their metric differently.
    """
    seeds = sorted({run.seed for run in other.runs})
    known = {plan.hash: (arm.label, plan.seed) for arm in reseeded(study, seeds).arms for plan in arm.plans}
    theirs = {info.name: info for info in other.results.metrics}
    alike = {
        name
        for name, info in metrics.items()
        if name in theirs and (info.revision, info.direction) == (theirs[name].revision, theirs[name].direction)
    }
    found: dict[str, list[Run]] = {}
    for run in other.runs:
        if run.hash not in known:
            continue
        label, seed = known[run.hash]
        if run.seed != seed:
            raise UserError(
                f"{other.folder / RESULTS}: the run {run.hash} has the seed {run.seed}, but its hash belongs to "
                f"the seed {seed}, so the file was changed by hand",
                "use an unchanged file that tintype wrote",
            )
        values = {name: value for name, value in run.metrics.items() if name in alike}
        found.setdefault(label, []).append(run.model_copy(update={"metrics": values}))
    return {label: sorted(some, key=lambda run: run.seed) for label, some in found.items()}
