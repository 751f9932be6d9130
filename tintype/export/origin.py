"""Where the first weights of a run came from: other runs (`lineage.json`), an imported model (`imported.json`), or
both, one after the other."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from tintype.export.public import HUB_NAME
from tintype.runtime.redact import LOCAL
from tintype.train.folder import RunFolder

_IN_CACHE = re.compile(r"models--([\w.-]+?)--([\w.-]+)/snapshots/([0-9a-f]{40})(?:/|$)", re.ASCII)
"""Where huggingface_hub keeps what it has fetched."""


Record: TypeAlias = Mapping[str, Any]
"""A record as JSON in the folder of a run has it."""


@dataclass(frozen=True)
class Origin:
    runs: tuple[Record, ...]
    """Runs that it started from, the nearest first, as `lineage.json` has them."""
    imported: Record | None
    """The imported model at the beginning, as `imported.json` has it."""

    @property
    def hub(self) -> tuple[str, str] | None:
        """Name and revision on the hub; None where what was imported lay in a folder that says nothing of it."""
        found = _IN_CACHE.search(str(self.imported["source"])) if self.imported else None
        if found is None or not HUB_NAME.fullmatch(name := f"{found[1]}/{found[2]}"):
            return None
        return name, found[3]

    @property
    def brief(self) -> str:
        if self.runs:
            return f"the weights of another run ({self.runs[0]['plan']})"
        return f"{self.hub[0]}, imported" if self.hub else "an imported model"

    def steps(self) -> list[str]:
        """Return the steps of the lineage in words, the nearest first."""
        return [*map(_run_words, self.runs), self._import_words(self.imported) if self.imported else "random weights"]

    def _import_words(self, imported: Record) -> str:
        place = f"{self.hub[0]} at {self.hub[1]}" if self.hub else LOCAL
        files = ", ".join(f"{name} {sha256}" for name, sha256 in imported["sha256"].items())
        about = imported.get("exported_from")
        run = f", an export of the run {about.get('plan')} at step {about.get('step')}" if about else ""
        return f"an imported model: {place}{run}; {imported['weights']} weights, SHA-256 of {files}"


def hub_place(path: str) -> str:
    """Return the part of a path that names a repository in the hub's cache, or ''."""
    found = _IN_CACHE.search(path)
    return path[found.start() :] if found else ""


def read_origin(folder: RunFolder) -> Origin | None:
    """Return the origin; None for a run that began with random weights."""
    runs: list[Record] = []
    found: Record | None = folder.read_record(folder.lineage_file)
    imported: Record | None = folder.read_record(folder.imported_file)
    while found:
        runs.append(found)
        imported = found.get("imported")
        found = found.get("lineage")
    return Origin(tuple(runs), imported or None) if runs or imported else None


def _run_words(run: Record) -> str:
    return (
        f"the {run['weights']} weights of the run {run['plan']}, seed {run['seed']}, at step {run['at_step']:,} of "
        f"{run['steps']:,} (SHA-256 {run['sha256']})"
    )
