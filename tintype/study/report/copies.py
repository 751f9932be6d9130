"""Format near-copies of training images as text, for the page and the Markdown."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tintype.evaluation.results import ALL_SCALES, Copies, CopyPair
from tintype.metrics.memorisation import Rate
from tintype.page import numerals
from tintype.study.numbers import titled
from tintype.study.results import Arm, StudyResults

LEAD = (
    "Every run was asked with captions of its training images, and as often with captions of images like those that "
    "it never saw. The figures are shares of near-copies on training captions minus those on unseen ones: of any "
    "training image, and of the caption's own. In brackets is the 95% interval over captions; a run has copies where "
    "one lies above 0."
)
PAIRS_LEAD = (
    "The nearest pairs of each arm's first run: the sample left, the training image that is nearest to it right. A "
    "model that follows captions comes near images that it never saw too, so read them beside the table."
)
HEADS = ["Arm", "Seed", "Encoder", "Found", "Any image", "Own image", "By guidance: any, own", "Unlike the data"]


@dataclass(frozen=True)
class Shown:
    """A near-copy in a run of an arm, and the training image that it resembles."""

    arm: Arm
    number: int
    pair: CopyPair

    @property
    def title(self) -> str:
        """The alternative text by which a page identifies the image."""
        return f"{self.arm.label}, nearest pair {self.number}"

    @property
    def words(self) -> str:
        whose = "the caption's own image" if self.pair.own else "another caption's image"
        kind = "a near-copy of" if self.pair.counts else "no near-copy, nearest to"
        distance = numerals.significant(self.pair.distance, 2)
        return f"{kind} {whose}; guidance {self.pair.guidance:g}, relative distance {distance}"


def rows(results: StudyResults) -> list[list[str]]:
    """Return a row for each run and encoder; empty if the study did not search for copies."""
    return [
        [titled(arm) if not arm.resolution else arm.label, str(run.seed), encoder, *_cells(copies)]
        for arm in results.arms
        for run in arm.runs
        for encoder, copies in run.copies.items()
    ]


def _cells(copies: Copies) -> list[str]:
    scales = [scale for scale in copies.any if scale != ALL_SCALES]
    by_scale = "; ".join(f"{scale}: {_share(copies.any[scale])}, {_share(copies.own[scale])}" for scale in scales)
    whole = [f"{_share(rates[ALL_SCALES])} {_interval(rates[ALL_SCALES])}" for rates in (copies.any, copies.own)]
    return [copies.words, *whole, by_scale, numerals.share(copies.unlike)]


def _share(rate: Rate) -> str:
    return numerals.fixed(rate.difference, 2, signed=True)


def _interval(rate: Rate) -> str:
    return numerals.interval(rate.low, rate.high, 2)


def pairs(results: StudyResults) -> Iterator[Shown]:
    """Yield the nearest pairs for the first run of each arm that has pairs, with the run's first encoder."""
    for arm in results.arms:
        known = (copies for run in arm.runs for copies in run.copies.values() if copies.pairs)
        for copies in list(known)[:1]:
            yield from (Shown(arm, number, pair) for number, pair in enumerate(copies.pairs, 1))
