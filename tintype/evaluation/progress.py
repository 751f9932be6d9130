"""Progress of an evaluation, measured in images."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tintype.runtime.dist import current


@dataclass(frozen=True)
class Scoring:
    """Progress: the images of the current stage, and the finished share of the evaluation."""

    doing: str
    done: float
    total: int | None
    share: float


OnScoring = Callable[[Scoring], None]


class Counter:
    """Counts each image once per sampler step, and once per encoder that reads it.

    `work` is the final count of the whole evaluation, or 0 to report only the current stage.
    """

    def __init__(self, work: int, on_progress: OnScoring) -> None:
        self._work, self._on_progress = work, on_progress
        self._worked, self._ranks = 0, current().size

    def begin(self, doing: str, total: int | None = None) -> None:
        self._doing, self._total, self._done = doing, total, 0.0
        self._report()

    def count(self, images: int, steps: int = 1) -> None:
        """Count one of the `steps` of each image. All ranks are assumed to progress at the same speed."""
        self._worked = min(self._worked + images * self._ranks, self._work)
        self._done += images * self._ranks / steps
        self._report()

    def _report(self) -> None:
        share = self._worked / self._work if self._work else 1.0
        done = self._done if self._total is None else min(self._done, self._total)
        self._on_progress(Scoring(self._doing, done, self._total, share))
