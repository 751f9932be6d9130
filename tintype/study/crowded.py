"""Crowded runs wait in the queue and resume, after memory ran out beside other runs or the GPU failed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from tintype.runtime.files import finite
from tintype.runtime.leases import Claim, Leases
from tintype.study.results import Crowded
from tintype.study.worker import LEASES

STATE: Final = "crowded"
"""State in the claim of an attempt that ran out of memory beside other runs, or that lost its GPU."""


def times_crowded(claims: Iterable[Claim]) -> int:
    """Return how many attempts at a run ended in the state `crowded`."""
    return sum((claim.ended or {}).get("state") == STATE for claim in claims)


def read_crowded(out: Path) -> list[Crowded]:
    """Return the crowded runs of a study, sorted by arm and seed; none if the folder has no leases."""
    leases, found = Leases(out / LEASES), Counter[tuple[str, int]]()
    for name in leases.disk.names(leases.folder):
        for claim in leases.history(name):
            if count := times_crowded([claim]):
                found[str(claim.about.get("arm", "")), int(finite(claim.about.get("seed")) or 0)] += count
    return [Crowded(arm=arm, seed=seed, times=times) for (arm, seed), times in sorted(found.items())]
