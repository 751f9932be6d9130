"""Read a table of runs (CSV, TSV or JSON lines), one run per row, into values by arm, seed and metric."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from shlex import quote
from statistics import median

from tintype.config.strict import nearest
from tintype.errors import UserError, as_user_error
from tintype.judge.metrics import Metric, is_bookkeeping, metric_of, parse_metric, unknown_direction
from tintype.wording import option

_MOST_BYTES = 1 << 26
_JSON = (".json", ".jsonl", ".ndjson")
_PERCENT = 50.0, 200.0
"""If the ratio between two groups of runs is in this range, one group probably has shares and the other percentages."""
_TIGHT = 20.0
"""Largest ratio between two runs in one of these groups."""

Values = Mapping[str, Mapping[str, Mapping[str, float | None]]]
"""Values by arm, seed and metric. A value is NaN if the run diverged, and None if it is missing."""


@dataclass(frozen=True)
class Table:
    """The rows of a file as text, each with its line number."""

    name: str
    columns: Sequence[str]
    rows: Sequence[tuple[int, Mapping[str, object]]]

    def place(self, line: int) -> str:
        return f"{self.name}, line {line}"


@dataclass(frozen=True)
class Runs:
    """The runs of a table, and its metrics."""

    values: Values
    metrics: Sequence[Metric]
    left_out: Sequence[str] = ()
    """Columns that are not used."""


def read_table(path: Path) -> Table:
    """Read a file. The suffix says whether the file is tab-separated, JSON lines, or otherwise CSV."""
    with as_user_error(OSError, str(path), "give a CSV, TSV or JSON lines file with a row for each run"):
        if path.stat().st_size > _MOST_BYTES:
            raise UserError(f"{path} has more than {_MOST_BYTES >> 20} MiB", "give a table with one row for each run")
        content = path.read_bytes()
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not text in UTF-8 ({error.reason})", "save it as CSV in UTF-8") from None
    is_json = path.suffix.lower() in _JSON
    rows = list(_json_rows(path, text) if is_json else _csv_rows(path, text))
    if not rows:
        raise UserError(
            f"{path} has no rows", "write one row for each run, with columns arm, seed and one for each metric"
        )
    return Table(str(path), list(dict.fromkeys(name for _, row in rows for name in row)), rows)


def _csv_rows(path: Path, text: str) -> Iterator[tuple[int, Mapping[str, object]]]:
    first = text.partition("\n")[0]
    tabs = path.suffix.lower() == ".tsv" or ("\t" in first and "," not in first)
    reader = csv.reader(
        io.StringIO(text), delimiter="\t" if tabs else ";" if first.count(";") > first.count(",") else ","
    )
    columns: list[str] = []
    with as_user_error(csv.Error, str(path), "save it as CSV"):
        for cells in reader:
            if not any(cell.strip() for cell in cells):
                continue
            if not columns:
                columns = [cell.strip() for cell in cells]
                if twice := [name for name in columns if name and columns.count(name) > 1]:
                    raise UserError(f"{path}: two columns are named '{twice[0]}'", "rename one of them")
                continue
            if len(cells) > len(columns):
                raise UserError(
                    f"{path}, line {reader.line_num}: the row has {len(cells)} cells, but the table has "
                    f"{len(columns)} columns",
                    "put quotes around cells that contain the separator, and write numbers with a decimal point",
                )
            yield reader.line_num, {name: cell.strip() for name, cell in zip(columns, cells, strict=False) if name}


def _json_rows(path: Path, text: str) -> Iterator[tuple[int, Mapping[str, object]]]:
    """Yield the objects of JSON lines, or of one JSON list."""
    if text.lstrip().startswith("["):
        with as_user_error((ValueError, RecursionError), str(path), "write one JSON object for each run"):
            parsed = list(enumerate(json.loads(text), 1))
    else:
        parsed = []
        for line, one in enumerate(text.split("\n"), 1):
            if one.strip():
                with as_user_error(
                    (ValueError, RecursionError), f"{path}, line {line}", "write one JSON object on each line"
                ):
                    parsed.append((line, json.loads(one)))
    for line, row in parsed:
        if not isinstance(row, dict):
            keys = "arm, seed and one for each metric"
            raise UserError(f"{path}, line {line} is not an object", f"write a JSON object with the keys {keys}")
        yield line, row


def runs_of(
    table: Table, metrics: Sequence[str], primary: Sequence[str], arm_column: str = "arm", seed_column: str = "seed"
) -> Runs:
    """Return the runs of a table; `metrics` are as on the command line, by default all numeric columns."""
    _check_columns(table, {"arm-column": arm_column, "seed-column": seed_column})
    own = (arm_column, seed_column)
    chosen, left_out = _choose(table, metrics, primary, own)
    lines: dict[tuple[str, str], int] = {}
    values: dict[str, dict[str, dict[str, float | None]]] = {}
    for line, row in table.rows:
        arm, seed = _label(row.get(arm_column)), _seed(row.get(seed_column))
        for name, label in zip(own, (arm, seed), strict=True):
            if not label:
                raise UserError(f"{table.place(line)}: column '{name}' is empty", "give every run its arm and its seed")
        if (arm, seed) in lines:
            raise UserError(
                f"{table.place(line)}: arm '{arm}' already has seed {seed} in line {lines[arm, seed]}",
                f"keep one row for each run, such as the last row of its log, or name another column of seeds: "
                f"{option('seed-column')}",
            )
        lines[arm, seed] = line
        numbers = {metric.name: _number(table, line, metric.name, row.get(metric.name)) for metric in chosen}
        values.setdefault(arm, {})[seed] = numbers
    return Runs(values, [checked(metric, values, table.name) for metric in chosen], left_out)


def _check_columns(table: Table, wanted: Mapping[str, str]) -> None:
    for of, name in wanted.items():
        if name not in table.columns:
            there = ", ".join(table.columns)
            raise UserError(
                f"{table.name} has no column '{name}'", f"name the column with {option(of)}. The columns are: {there}"
            )


def _choose(
    table: Table, specs: Sequence[str], primary: Sequence[str], own: Sequence[str]
) -> tuple[list[Metric], list[str]]:
    """Return the metrics to compare, and the names of the other columns."""
    columns = [name for name in table.columns if name not in own]
    parsed = {name: (direction, kind) for name, direction, kind in map(parse_metric, specs)}
    asked = dict.fromkeys([*parsed, *primary])
    for name in asked:
        if name not in columns:
            of = option("metric" if name in parsed else "primary")
            raise UserError(f"{table.name} has no column '{name}' for {of}", nearest(name, columns))
    if not parsed:
        numeric = [name for name in columns if _is_numeric(table, name) and not is_bookkeeping(name)]
        asked = dict.fromkeys([*numeric, *primary])
    if not asked:
        there = ", ".join(table.columns)
        raise UserError(f"{table.name} has no numeric column except arm and seed. Its columns are: {there}")
    found = {name: metric_of(name, *parsed.get(name, (None, None)), name in primary) for name in asked}
    if unknown := [name for name, one in found.items() if one is None]:
        raise unknown_direction(unknown, table.name)
    return [one for one in found.values() if one is not None], [name for name in columns if name not in found]


def _is_numeric(table: Table, name: str) -> bool:
    """Return whether a column has at least one number. Cells without a number are then reported as errors."""
    return any(_parsed(row.get(name)) is not None for _, row in table.rows)


def _label(cell: object) -> str:
    return "" if cell is None or isinstance(cell, dict | list) else str(cell).strip()


def _seed(cell: object) -> str:
    """Return a seed as text. Data frames may write the seed 3 as 3.0."""
    text = _label(cell)
    number = _parsed(text)
    return str(int(number)) if number is not None and number.is_integer() and abs(number) < 1e15 else text


def _parsed(cell: object) -> float | None:
    if isinstance(cell, bool) or not isinstance(cell, int | float | str):
        return None
    try:
        return float(cell.replace("_", "x") if isinstance(cell, str) else cell)
    except (ValueError, OverflowError):
        return None


def _number(table: Table, line: int, name: str, cell: object) -> float | None:
    """Return the number in a cell; NaN if it is not finite, None if the cell is empty."""
    if cell is None or cell == "":
        return None
    number = _parsed(cell)
    if number is None:
        fix = "write numbers with a decimal point, nan for a diverged run, and an empty cell for a missing run"
        raise UserError(f"{table.place(line)}: column '{name}': {str(cell)[:40]!r} is not a number", fix)
    return number if math.isfinite(number) else math.nan


def checked(metric: Metric, values: Values, where: str) -> Metric:
    """Return a metric that fits its values; a share outside of [0, 1] is raw if guessed, and an error if declared.

    Raise also if runs have two different units, such as 52.3 and 0.523.
    """
    known = [
        (value, arm)
        for arm, by_seed in values.items()
        for of_run in by_seed.values()
        if (value := of_run.get(metric.name)) is not None and math.isfinite(value)
    ]
    if not known:
        raise UserError(
            f"{where}: '{metric.name}' has no finite value", "leave this column out, or fill in its numbers"
        )
    if metric.kind == "share" or (metric.kind == "raw" and not metric.kind_given):
        _refuse_two_units(metric, known, where)
    outside = [(value, arm) for value, arm in known if not 0 <= value <= 1]
    if metric.kind != "share" or not outside:
        return metric
    if not metric.kind_given:
        return replace(metric, kind="raw")
    value, arm = outside[0]
    raise UserError(
        f"{where}: '{metric.name}' is {value:g} in arm '{arm}', but a share lies between 0 and 1",
        f"divide percentages by 100, or declare that the metric is not a share: {option('metric', _as_raw(metric))}",
    )


def _refuse_two_units(metric: Metric, known: Sequence[tuple[float, str]], where: str) -> None:
    small, large = [one for one in known if 0 < one[0] <= 1], [one for one in known if 1 < one[0] <= 100]
    if not small or not large or len(small) + len(large) < len([one for one in known if one[0]]):
        return
    groups = [[value for value, _ in group] for group in (small, large)]
    low, high = _PERCENT
    if low <= median(groups[1]) / median(groups[0]) <= high and all(max(of) < _TIGHT * min(of) for of in groups):
        names = [", ".join(dict.fromkeys(arm for _, arm in group)) for group in (small, large)]
        raise UserError(
            f"{where}: '{metric.name}' seems to use two units: about {median(groups[0]):.3g} in {names[0]} and about "
            f"{median(groups[1]):.3g} in {names[1]}",
            "write all values as shares, or all as percentages; if the values are "
            f"right, declare that the metric is not a share: {option('metric', _as_raw(metric))}",
        )


def _as_raw(metric: Metric) -> str:
    return quote(f"{metric.name}:{metric.direction}:raw")
