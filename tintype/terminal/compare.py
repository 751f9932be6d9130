"""Print a side-by-side comparison of runs as tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from string import ascii_uppercase

from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from tintype.page import numerals
from tintype.plan import Change
from tintype.study.side_by_side import ComparedRun, Score, ScoreRow, SharedCurve, SideBySide, as_json
from tintype.terminal import documents
from tintype.terminal.lines import number, say, say_note
from tintype.terminal.progress import duration, short
from tintype.terminal.view import View

_SHOWN_CURVES = ("loss", "flow", "validation_loss")
_SHOWN_STEPS = 10


class SideBySideTables(View[SideBySide]):
    def show(self, result: SideBySide) -> None:
        show_side_by_side(result, self.console)

    def document(self, result: SideBySide) -> documents.SideBySideRuns:
        return documents.SideBySideRuns.model_validate(as_json(result))


def show_side_by_side(compared: SideBySide, console: Console) -> None:
    """Print the differences between the plans, then speed and time, scores, and losses at steps logged by all runs."""
    letters = [_letter(index) for index in range(len(compared.runs))]
    for letter, run in zip(letters, compared.runs, strict=True):
        say(console, f"{letter}: {run.name} (plan {run.plan.hash}, seed {run.plan.seed})")
    for letter, changes in list(zip(letters, compared.changes, strict=True))[1:]:
        _show_changes(f"{letter} differs from {letters[0]}", changes, console)
    console.print(_runs_table(compared.runs, letters))
    if compared.scores:
        console.print(_scores_table(compared.scores, letters))
    else:
        say(console, "no run was scored: `tintype evaluate` does it")
    shown = _shown_curves(compared)
    if shown:
        console.print(_curves_table(shown, letters))
    else:
        say(console, "no loss of one thing at a step that all runs logged")
    for text in compared.notes:
        say_note(console, text)
    say(console, "one run each: seeds alone make runs differ; `tintype ablate` tells an effect from that", "dim")


def _shown_curves(compared: SideBySide) -> list[SharedCurve]:
    """Return the curves of losses to show. A curve equal to the first one, such as `flow` to `loss`, is left out."""
    curves = [compared.curves[name] for name in _SHOWN_CURVES if name in compared.curves]
    return [curve for curve in curves if curve is curves[0] or curve.values != curves[0].values]


def _letter(index: int) -> str:
    return ascii_uppercase[index] if index < len(ascii_uppercase) else str(index + 1)


def _show_changes(title: str, changes: Mapping[str, Change], console: Console) -> None:
    if not changes:
        say(console, f"{title}: in no setting")
        return
    say(console, f"{title}:")
    for key, (old, new) in changes.items():
        say(console, f"  {key}: {old} -> {new}")


def _columns(letters: Sequence[str]) -> list[Column]:
    return [Column(letter, justify="right") for letter in letters]


def _runs_table(runs: Sequence[ComparedRun], letters: Sequence[str]) -> Table:
    table = Table("", *_columns(letters))
    rows: dict[str, list[str]] = {
        "state": [run.state for run in runs],
        "step": [f"{run.step:,} of {run.plan.train.steps:,}" for run in runs],
        "parameters": ["" if run.parameters is None else numerals.count(run.parameters) for run in runs],
        "training images/s": ["" if run.images_per_s is None else short(run.images_per_s) for run in runs],
        "training time": ["" if run.training_s is None else duration(run.training_s) for run in runs],
        "with data and compilation": ["" if run.logged_s is None else duration(run.logged_s) for run in runs],
    }
    for name, cells in rows.items():
        table.add_row(name, *map(escape, cells))
    return table


def _scores_table(rows: Sequence[ScoreRow], letters: Sequence[str]) -> Table:
    table = Table("metric (± sampling)", "evaluation", *_columns(letters))
    for row in rows:
        steps = {score.step for score in row.scores if score is not None}
        cells = [_score(score, len(steps) > 1) for score in row.scores]
        protocol, _, size = row.protocol.partition(" ")
        table.add_row(escape(row.metric), f"{protocol[:8]} {size}".strip() + f", {row.images:,} images", *cells)
    return table


def _score(score: Score | None, with_step: bool) -> str:
    if score is None:
        return ""
    error = "" if score.error is None else f" ± {number(score.error, '.2g')}"
    return f"{number(score.value)}{error}{f' at step {score.step:,}' if with_step else ''}"


def _curves_table(curves: Sequence[SharedCurve], letters: Sequence[str]) -> Table:
    table = Table("logged", Column("step", justify="right"), *_columns(letters))
    for curve in curves:
        for index in _spread(len(curve.step)):
            table.add_row(curve.name, f"{curve.step[index]:,}", *(number(values[index]) for values in curve.values))
        table.add_section()
    return table


def _spread(count: int) -> list[int]:
    """Return the indices of a few evenly spaced entries, including the last entry."""
    shown = min(count, _SHOWN_STEPS)
    return [round((place + 1) * count / shown) - 1 for place in range(shown)]
