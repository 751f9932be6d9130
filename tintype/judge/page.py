"""The report of a judged table. It consists of one HTML page with charts, and of the verdicts as JSON and CSV files."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tintype.judge.metrics import Metric
from tintype.judge.verdicts import Judgement, Row
from tintype.page import numerals
from tintype.page.forest import Effect, forest, verdict_class
from tintype.page.template import template
from tintype.runtime.files import write_json, write_text
from tintype.study.stats.estimate import CONFIDENCE

PAGE, VERDICTS, TABLE = "report.html", "verdicts.json", "verdicts.csv"
"""Files of a report; not results.json, from which other commands read the results of a study."""


def document(found: Judgement) -> dict[str, Any]:
    """Return a judgement as plain data. Numbers that are not finite become None."""
    return {
        "source": found.source,
        "baseline": found.baseline,
        "confidence": CONFIDENCE,
        "margin": found.margin,
        "sketch": found.sketch,
        "metrics": [
            {"name": one.name, "direction": one.direction, "kind": one.kind, "primary": one.primary}
            | {"guessed": one.guessed, "baseline_mean": _finite(found.baseline_mean(one.name))}
            for one in found.metrics
        ],
        "arms": [{"name": arm, "seeds": list(by_seed)} for arm, by_seed in found.runs.values.items()],
        "verdicts": [{key: _finite(value) for key, value in row.items()} for row in found.rows()],
        "notes": found.notes,
    }


def _finite(value: object) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def write_page(found: Judgement, out: Path) -> Path:
    """Write the page, and the verdicts as JSON and CSV. Return the page's path."""
    out.mkdir(parents=True, exist_ok=True)
    written = document(found)
    write_json(out / VERDICTS, written)
    table = io.StringIO()
    rows = csv.DictWriter(table, list(written["verdicts"][0]), lineterminator="\n")
    rows.writeheader()
    rows.writerows(written["verdicts"])
    write_text(out / TABLE, table.getvalue())
    write_text(out / PAGE, to_html(found))
    return out / PAGE


@dataclass(frozen=True)
class Column:
    """One metric of all arms, and the format of its numbers."""

    metric: Metric
    rows: Sequence[Row]

    def difference(self, row: Row) -> str:
        sizes = [abs(one.difference) for one in self.rows if one.difference and math.isfinite(one.difference)]
        decimals = numerals.decimals_within(row.low, row.high, numerals.decimals_showing(min(sizes, default=1.0)))
        ends = numerals.interval(row.low, row.high, decimals)
        return f"{numerals.fixed(row.difference, decimals, signed=True)} {ends}".strip()

    @property
    def chart(self) -> str | None:
        """Draw the differences as a chart; None if no arm has a difference."""
        effects = {row.arm: self._effect(row) for row in self.rows if math.isfinite(row.difference)}
        return forest(self.metric, effects) if effects else None

    def _effect(self, row: Row) -> Effect:
        numbers = (row.difference, row.low, row.high, row.detectable, row.verdict, row.baseline_mean)
        return Effect(*numbers, row.offsets, row.collapsed_offsets, self.difference(row))


def to_html(found: Judgement) -> str:
    """Return the page. The primary metrics come first."""
    ordered = sorted(found.metrics, key=lambda one: not one.primary)
    return template("tintype.judge", "judge.html.j2", verdict_class=verdict_class).render(
        found=found,
        name=Path(found.source).name or "values",
        columns=[Column(one, [row for row in found if row.metric == one.name]) for one in ordered],
        confidence=f"{100 * CONFIDENCE:g} %",
        runs=[(arm, seed, of_run) for arm, by_seed in found.runs.values.items() for seed, of_run in by_seed.items()],
        value=_written,
    )


def _written(value: float | None) -> str:
    if value is None:
        return "no value"
    return numerals.significant(value, 4) if math.isfinite(value) else "diverged"
