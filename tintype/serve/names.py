"""Read the arm and seed of each run of a study from the study's files, to name the run."""

from __future__ import annotations

import threading
from collections import OrderedDict
from pathlib import Path

from tintype.serve.live import UNREADABLE
from tintype.study.folder import stored_study
from tintype.study.status import every_task, stamps

MOST = 400
"""Largest number of studies in the cache of run names."""
_FILES = ("study.yaml", "baseline.yaml", "baselines", "runs")
"""Files and folders that change when a study's runs change. A tuned run starts only after its values were chosen."""


class RunNames:
    """Reader of the names of a study's runs, which caches the names until the study changes."""

    def __init__(self) -> None:
        self._known: OrderedDict[Path, tuple[tuple[int, ...], dict[str, str]]] = OrderedDict()
        self._lock = threading.Lock()

    def of(self, study: Path) -> dict[str, str]:
        """Return the arm and seed of each run, by the run's hash; empty if the study cannot be read."""
        stamp = stamps([study / name for name in _FILES])
        known = self._known.get(study)
        if known is None or known[0] != stamp:
            known = stamp, _read(study)
        with self._lock:
            self._known[study] = known
            self._known.move_to_end(study)
            while len(self._known) > MOST:
                self._known.popitem(last=False)
        return known[1]


def _read(study: Path) -> dict[str, str]:
    try:
        tasks = every_task(stored_study(study), study)
    except UNREADABLE:
        return {}
    return {task.plan.hash: f"{task.arm}, seed {task.plan.seed}" for task in tasks}
