"""Define and replay the interim analyses (looks) of a study, each with its seeds and its share of the error.

Reading a study's results, adding seeds and reading the results again gives a second chance for a false verdict. So each
interim analysis has its own share of the study's error of 5%, and all shares sum to at most one. By Bonferroni's
inequality, the study's error then stays within 5%, for any dependence between the interim analyses. A study with
planned interim analyses (`seeds: {first: 4, most: 16}`) divides all of its error among them, in proportion to their
seeds. A study with fixed seeds spends 80% of its error at its first analysis. Each later analysis, which was not
planned, gets half of the remaining error. The page docs/statistics.md compares several ways to divide the error.

The share of an interim analysis is divided among a family of comparisons, which is recorded with the analysis and never
shrinks. Otherwise a user could remove all but the best arms and test the remaining arms at a higher level. If arms are
added on seeds of an earlier analysis, they form another analysis with a separate family. So earlier verdicts never
change.

A verdict is a pure function of the runs and the interim analyses, since the first analysis that decides a comparison is
final.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Annotated

from pydantic import Field, ValidationError, model_validator

from tintype.runtime.files import damaged, read_checked, write_checked
from tintype.settings import Settings
from tintype.study.results import Comparison, LookInfo, SeedSet
from tintype.study.stats.contrast import Key, Kind
from tintype.study.stats.family import planned_shares, unplanned_shares

CONTROL_OFFSET = 1_000
"""Distance between the first seeds of the control and the arms if interim analyses are planned."""
LOOKS_FILE = "looks.json"
"""File in a study's folder with the seeds and the family of each past interim analysis, oldest first."""
DECIDED = ("better", "worse", "same", "unstable")
"""Verdicts that are final after an interim analysis; "unstable" is final only if the arm's own runs collapsed."""


class SeedPlan(Settings):
    """Seeds that planned interim analyses add to arms that are still undecided."""

    first: Annotated[int, Field(ge=2)] = Field(
        description="Number of seeds of every arm at the first look (planned reading)"
    )
    most: Annotated[int, Field(ge=2, le=CONTROL_OFFSET)] = Field(
        description="Number of seeds of an arm at the last look (planned reading)"
    )
    start: Annotated[int, Field(ge=0)] = Field(0, description="First seed; the other seeds are the next whole numbers")
    looks: tuple[int, ...] = Field(
        (), description="Number of seeds at each look; by default it doubles from `first` up to `most`"
    )
    control: bool = Field(
        True,
        description=f"Whether to run the A/A control (the baseline with other seeds), with seeds from "
        f"start + {CONTROL_OFFSET}",
    )

    @model_validator(mode="after")
    def _in_order(self) -> SeedPlan:
        if self.first > self.most:
            raise ValueError(f"first is {self.first} and most is {self.most}, but first must not be larger than most")
        if self.looks and (self.looks[0] != self.first or self.looks[-1] != self.most):
            raise ValueError(f"looks must begin with first ({self.first}) and end with most ({self.most})")
        if list(self.looks) != sorted(set(self.looks)):
            raise ValueError("looks must increase: give each number of seeds once, in ascending order")
        return self

    @property
    def counts(self) -> tuple[int, ...]:
        """Return the number of seeds at each interim analysis."""
        if self.looks:
            return self.looks
        counts = [self.first]
        while counts[-1] < self.most:
            counts.append(min(2 * counts[-1], self.most))
        return tuple(counts)

    @property
    def seeds(self) -> tuple[int, ...]:
        """Return all seeds that an arm can get."""
        return tuple(range(self.start, self.start + self.most))

    @property
    def control_seeds(self) -> tuple[int, ...]:
        return tuple(seed + CONTROL_OFFSET for seed in self.seeds) if self.control else ()


@dataclass(frozen=True)
class Look:
    """The seeds that are compared together, and the share of the study's error for this comparison."""

    seeds: tuple[int, ...]
    control_seeds: tuple[int, ...]
    share: float

    @property
    def read(self) -> SeedSet:
        return SeedSet(seeds=list(self.seeds), control_seeds=list(self.control_seeds))


def planned_looks(plan: SeedPlan) -> list[Look]:
    """Return the interim analyses of a study that plans them."""
    shares = planned_shares(plan.counts)
    return [
        Look(plan.seeds[:count], plan.control_seeds[:count], share)
        for count, share in zip(plan.counts, shares, strict=True)
    ]


def unplanned_looks(read: Sequence[SeedSet]) -> list[Look]:
    """Return the interim analyses of a study with fixed seeds, oldest first."""
    shares = unplanned_shares(len(read))
    return [Look(tuple(one.seeds), tuple(one.control_seeds), share) for one, share in zip(read, shares, strict=True)]


class FamilyRow(Settings):
    """The comparisons of one arm, trend or factor in the family of an interim analysis."""

    arm: str
    resolution: str = ""
    kind: Kind = "arm"
    metrics: list[str]

    @property
    def keys(self) -> list[Key]:
        return [Key(self.arm, metric, self.resolution, self.kind) for metric in self.metrics]


class MadeLook(SeedSet):
    """An interim analysis of a study, with its seeds, and with the comparisons that share its error."""

    family: list[FamilyRow]

    @property
    def keys(self) -> list[Key]:
        return [key for row in self.family for key in row.keys]

    @classmethod
    def of(cls, seeds: SeedSet, keys: Iterable[Key]) -> MadeLook:
        rows: dict[Key, list[str]] = {}
        for key in keys:
            rows.setdefault(key._replace(metric=""), []).append(key.metric)
        family = [FamilyRow(arm=one.arm, resolution=one.resolution, kind=one.kind, metrics=rows[one]) for one in rows]
        return cls(seeds=seeds.seeds, control_seeds=seeds.control_seeds, family=family)


def every_key(read: Iterable[MadeLook], planned: Iterable[Key]) -> list[Key]:
    """Return the comparisons that the study plans at present, and the comparisons of all its interim analyses."""
    return list(dict.fromkeys([*planned, *(key for one in read for key in one.keys)]))


def with_look(read: Sequence[MadeLook], seeds: SeedSet, planned: Sequence[Key]) -> list[MadeLook]:
    """Add an interim analysis; the list is unchanged if its seeds were read before and no comparison is new.

    The new family has all present and past comparisons, except those already read on these seeds.
    """
    same = [one for one in read if (one.seeds, one.control_seeds) == (seeds.seeds, seeds.control_seeds)]
    paid = {key for one in same for key in one.keys}
    if same and paid.issuperset(planned):
        return list(read)
    return [*read, MadeLook.of(seeds, (key for key in every_key(read, planned) if key not in paid))]


def is_decided(row: Comparison) -> bool:
    """Return whether a verdict is final. A verdict that is open because of collapsed baseline runs is not final."""
    return row.verdict in DECIDED and (row.verdict != "unstable" or bool(row.collapsed))


def replay(rows_of_looks: Iterable[Mapping[Key, Comparison]]) -> dict[Key, Comparison]:
    """Return each comparison as of the first interim analysis that decided it; undecided ones, as of the last."""
    found: dict[Key, Comparison] = {}
    last: dict[Key, Comparison] = {}
    for number, rows in enumerate(rows_of_looks, 1):
        for key, row in rows.items():
            last[key] = row.model_copy(update={"look": number})
            if key not in found or not is_decided(found[key]):
                found[key] = last[key]
    return {key: _with_later_collapses(row, last[key]) for key, row in found.items()}


def _with_later_collapses(row: Comparison, last: Comparison) -> Comparison:
    """Return a row with the collapsed runs that only the last analysis found; they do not affect the verdict."""
    later = [seed for seed in last.collapsed if seed not in row.collapsed]
    of_baseline = [seed for seed in last.baseline_collapsed if seed not in row.baseline_collapsed]
    return row.model_copy(update={"collapsed_later": later, "baseline_collapsed_later": of_baseline})


def describe_looks(looks: Sequence[LookInfo], planned: bool) -> str:
    """Describe how the error is divided among interim analyses, in a sentence for the report's method."""
    if planned:
        shares = [f"{100 * look.share:.0f}%" for look in looks]
        counts = [str(len(look.seeds)) for look in looks]
        return (
            f"Looks were planned at {_listed(counts)} seeds, with {_listed(shares)} of the error: each look compares "
            "the first seeds alone, and the first that decides a comparison decides it for good. After a look, arms "
            "that are decided or have nothing in sight stop, which makes no verdict."
        )
    spent = [f"{100 * look.share:.3g}%" for look in looks]
    first = f"The first look at the study spends {spent[0]} of the error"
    later = (
        f"; {_listed(spent[1:])} went to later looks with other seeds or more arms, and a verdict that a look has "
        "reached stays"
        if spent[1:]
        else "; the rest is kept for looks with more seeds"
    )
    return f"{first}{later}."


def listed_seeds(seeds: Sequence[int]) -> str:
    """Format seeds on one line; four or more consecutive seeds are written as "0 to 31"."""
    words, start = list[str](), 0
    for end in range(1, len(seeds) + 1):
        if end == len(seeds) or seeds[end] != seeds[end - 1] + 1:
            some = seeds[start:end]
            words += [f"{some[0]} to {some[-1]}"] if len(some) > 3 else map(str, some)
            start = end
    return ", ".join(words)


def _listed(words: Sequence[str]) -> str:
    return " and ".join([", ".join(words[:-1]), words[-1]]) if len(words) > 1 else "".join(words)


def read_looks(out: Path) -> list[MadeLook] | None:
    """Return each past interim analysis of a study; None if no analysis was recorded."""
    file = out / LOOKS_FILE
    if not file.exists():
        return None
    remake = f"remove it and run `tintype report {quote(str(out))}`: the looks of the last report are taken"
    try:
        return [MadeLook.model_validate(one) for one in read_checked(file, remake)["looks"]]
    except (ValidationError, KeyError, TypeError) as error:
        raise damaged(file, f"{type(error).__name__}: {' '.join(str(error).split())}", remake) from None


def record_looks(read: Sequence[MadeLook], out: Path) -> None:
    write_checked(out / LOOKS_FILE, {"looks": [one.model_dump() for one in read]})
