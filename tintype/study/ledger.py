"""Record the proposals to a study in a ledger, with the error that each proposal may spend, and its answer.

If many changes are tested one after another, some changes win by chance. So all proposals to a study share one error of
5%. In a chain of any length, the probability of keeping any useless change is at most 5%. Proposal number i may spend
5% · 10 / ((9 + i)(10 + i)), which is its level; all levels sum to 5%. So the bound of 5% holds by Bonferroni's
inequality, although all proposals use the same baseline runs. A proposal spends its level when it begins, whether it
wins, loses or is interrupted.

Lines are only added to the ledger, never removed. Each line has the hash of the line before it. A second file contains
the number of lines and the hash of the last line. So a changed, removed or moved line and a truncated ledger are
detected.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from tintype.runtime.files import append_line, checksum_of, damaged, flush, read_checked, read_lines, write_checked

FOLDER = "proposals"
"""Subfolder of a study's folder with the ledger and the plans of kept proposals."""
ERROR = 0.05
"""The probability of any false `keep` in a chain of proposals."""
FLATNESS = 10
"""Constant that sets how slowly the levels fall; a larger value lowers early levels and raises late ones."""
_LEDGER, _HEAD = "ledger.jsonl", "head.json"
_REMEDY = (
    "put the ledger back from a copy. Without it nobody knows what the proposals have spent, so no other is judged "
    "here; begin a new study with fresh seeds"
)


def level_of(number: int) -> float:
    """Return the fraction of the error that the proposal with this number, from 1 on, may spend."""
    return ERROR * FLATNESS / ((FLATNESS + number - 1) * (FLATNESS + number))


def left_after(number: int) -> float:
    """Return the fraction of the error that all proposals after this number may spend together."""
    return ERROR * FLATNESS / (FLATNESS + number)


class _Entry(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")


class LookSeeds(_Entry):
    """Seeds that one interim analysis of a proposal compares."""

    arm: tuple[int, ...]
    baseline: tuple[int, ...]
    """Seeds of the arm, chosen from the seeds of the study at the first proposal."""


class Begun(_Entry):
    """First line of a ledger, which fixes the reference of all proposals before the first result."""

    kind: Literal["begun"] = "begun"
    baseline: str
    """Hash of the baseline's plan with seed 0."""
    metric: str
    """The metric in which a proposal must be better."""
    others: tuple[str, ...]
    """Metrics in which a proposal must not be worse."""
    looks: tuple[LookSeeds, ...]
    control: tuple[int, ...]
    """Seeds of the control's runs, which have the baseline's plan and count as baseline runs."""


class Charged(_Entry):
    """A proposal that has begun and has therefore spent its level."""

    kind: Literal["charged"] = "charged"
    number: int
    name: str
    set: tuple[str, ...]
    techniques: tuple[str, ...]
    plan: str
    """Hash of the proposal's plan with seed 0."""
    level: float
    date: str


class Answered(_Entry):
    """The final answer to a proposal."""

    kind: Literal["answered"] = "answered"
    number: int
    answer: Literal["keep", "drop"]
    reason: str
    seeds: int
    """Seeds of the arm that were compared."""
    comparisons: dict[str, dict[str, Any]]
    """The comparison with the baseline for each metric, in the format of results.json."""


Entry = Annotated[Begun | Charged | Answered, Field(discriminator="kind")]
_ENTRIES: TypeAdapter[Begun | Charged | Answered] = TypeAdapter(Entry)


@dataclass(frozen=True)
class Ledger:
    """The lines of a ledger, oldest first, and the hash of the last line."""

    folder: Path
    entries: tuple[Begun | Charged | Answered, ...] = ()
    hash: str = ""

    @property
    def begun(self) -> Begun | None:
        return next((one for one in self.entries if isinstance(one, Begun)), None)

    @property
    def charged(self) -> list[Charged]:
        return [one for one in self.entries if isinstance(one, Charged)]

    def answer_to(self, number: int) -> Answered | None:
        return next((one for one in self.entries if isinstance(one, Answered) and one.number == number), None)

    def by_plan(self, plan: str) -> Charged | None:
        """Return the proposal with this plan, even under another name."""
        return next((one for one in self.charged if one.plan == plan), None)

    def by_name(self, name: str) -> Charged | None:
        return next((one for one in self.charged if one.name == name), None)

    def begin(self, begun: Begun) -> Ledger:
        """Write the first line unless the ledger has one, and return the ledger."""
        return self if self.begun is not None else self._with(begun)

    def charge(self, entry: Charged) -> Ledger:
        """Write one more proposal with its date, and return the ledger."""
        return self._with(entry.model_copy(update={"date": datetime.now(UTC).isoformat(timespec="seconds")}))

    def record(self, answered: Answered) -> Ledger:
        return self._with(answered)

    def _with(self, entry: Begun | Charged | Answered) -> Ledger:
        """Append a line, then its number and hash to the second file. A kill between the two loses nothing."""
        self.folder.mkdir(parents=True, exist_ok=True)
        line = {**entry.model_dump(mode="json"), "previous": self.hash}
        append_line(self.folder / _LEDGER, line)
        flush(self.folder / _LEDGER)
        made = Ledger(self.folder, (*self.entries, entry), checksum_of(line))
        write_checked(self.folder / _HEAD, {"lines": len(made.entries), "hash": made.hash})
        return made


def read_ledger(out: Path, vouched: bool = False) -> Ledger:
    """Return the ledger; raise `DamagedFileError` if it was changed. `vouched`: proposals are known to exist."""
    folder = out / FOLDER
    file = folder / _LEDGER
    head = read_checked(folder / _HEAD, _REMEDY)
    lines = read_lines(file, _REMEDY, vouched=max(int(head.get("lines", 0)), int(vouched)))
    if len(lines) > 1 and not head:
        raise damaged(folder / _HEAD, "it is missing", _REMEDY)
    previous, entries = "", []
    for number, line in enumerate(lines, 1):
        if line.get("previous") != previous:
            raise damaged(file, f"line {number} does not match the line before it", _REMEDY)
        previous = checksum_of(line)
        if number == head.get("lines") and previous != head.get("hash"):
            raise damaged(file, f"line {number} was changed", _REMEDY)
        entries.append(_entry(file, number, line))
    if entries and (not isinstance(entries[0], Begun) or any(isinstance(one, Begun) for one in entries[1:])):
        raise damaged(file, "the beginning of the file is missing", _REMEDY)
    return Ledger(folder, tuple(entries), previous)


def _entry(file: Path, number: int, line: dict[str, Any]) -> Begun | Charged | Answered:
    try:
        return _ENTRIES.validate_json(json.dumps({key: value for key, value in line.items() if key != "previous"}))
    except ValidationError as error:
        raise damaged(file, f"line {number}: {error.errors()[0]['msg']}", _REMEDY) from None
