"""Write the report in Markdown, with the same findings but without figures, for a pull request or a terminal."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from markupsafe import Markup

from tintype.page.template import template
from tintype.runtime.printable import visible
from tintype.study import numbers
from tintype.study.notes import costly_part, notes_of
from tintype.study.numbers import NOT_COMPARABLE, titled, token_counts
from tintype.study.picked import LEAD as PICKED_LEAD
from tintype.study.report import along, copies, findings, priority, tuning
from tintype.study.report.view import TRUST_BIAS, TRUST_HEADS, View, parts_of
from tintype.study.results import Arm, StudyResults
from tintype.study.rows import TOO_FEW_SEEDS, glyph
from tintype.study.trust import is_biased, lead

_MEANINGFUL = re.compile(r"([\\|`*]|\](?=[(\[]))")


def to_markdown(results: StudyResults) -> str:
    filters = {"plain": findings.plain, "glyph": glyph}
    text = template("tintype.study.report", "report.md.j2", finalize=_safe, **filters).render(
        results=results,
        findings=findings,
        numbers=numbers,
        notes=notes_of(results),
        copies=copies,
        copy_rows=copies.rows(results),
        picked_lead=PICKED_LEAD,
        picked_rows=[[one.image, one.prompt, one.made] for one in results.picked],
        along=along,
        along_rows=_along_rows,
        stage_rows=_stage_rows,
        difference_rows=_difference_rows,
        priority=priority,
        priority_tables=priority.tables(results),
        priority_rows=lambda one: ([titled(one.arm(row)), *one.cells(row)] for row in one.rows),
        between_rows=_between_rows,
        views=[View(*parts) for parts in parts_of(results)],
        where=["Resolution", "Tokens"] if results.several else [],
        counts=[f"{count:,}" for count in token_counts(results).values()],
        tuning=tuning,
        answer_row=_answer_row,
        metric_rows=_metric_rows,
        prompt_kinds=_prompt_kinds,
        prompt_rows=_prompt_rows,
        trust_lead=lead(results),
        trust_heads=[*TRUST_HEADS, *([TRUST_BIAS] if is_biased(results) else [])],
        trust_rows=lambda views: _trust_rows(views, is_biased(results)),
        cost_heads=list(findings.COST_HEADS),
        cost_rows=_cost_rows,
    )
    return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"


def escaped(words: str) -> str:
    """Return text escaped for Markdown on one line; the result can be used inside and outside of table cells."""
    one_line = visible(" ".join(words.split()))
    return _MEANINGFUL.sub(r"\\\1", one_line).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _safe(value: object) -> Markup:
    """Escape a value for Markdown, in place of Jinja's escape for HTML."""
    return value if isinstance(value, Markup) else Markup(escaped(str(value)))


def _named(arm: Arm) -> list[str]:
    return [*([arm.resolution, f"{arm.tokens:,}"] if arm.resolution else []), titled(arm)]


def _answer_row(view: View, arm: Arm) -> list[str]:
    few = f" ({TOO_FEW_SEEDS} to see a change)"
    blind = [(row := column.rows.get(arm.name)) is not None and row.blind for column in view.primary]
    cells = [column.effect(arm) + few * too_few for column, too_few in zip(view.primary, blind, strict=True)]
    summary = "; ".join(filter(None, [arm.summary, costly_part(arm), arm.stopped]))
    return [*_named(arm), *cells, view.speed_words(arm), summary]


def _between_rows(views: Sequence[View]) -> Iterator[list[str]]:
    """Yield a row for each pair of arms and each metric, with the primary metrics first."""
    for row in (row for view in views for row in view.rows_on("between")):
        verdict = "; ".join(filter(None, [row.marked, row.beside]))
        yield [row.label, row.metric.label, verdict, row.mean, row.baseline_mean, row.contrast]


def _metric_rows(views: Sequence[View], metric: str) -> Iterator[list[str]]:
    """Yield a row for the baseline and for each arm with a value of the metric, at each resolution."""
    for view in views:
        column = view.column(metric)
        for arm in view.everyone:
            cells = [""] * 6
            if metric in arm.incomparable:
                cells[3] = f"{NOT_COMPARABLE}: {arm.incomparable[metric]}"
            elif (row := column.rows.get(arm.name)) and row.comparison:
                words, error = findings.interval_words(view.results, row.comparison), row.comparison.sampling_error
                cells = [row.difference, words, row.relative, row.marked, row.detectable, row.written(error)]
            elif arm.role != "baseline":
                continue
            mean = column.mean(arm) if arm.name in column.rows else f"{column.mean(arm)} {column.spread(arm)}".strip()
            yield [*_named(arm), mean, *cells, column.values(arm)]


def _along_rows(views: Sequence[View]) -> Iterator[list[str]]:
    """For each metric, yield a row for the baseline and for each arm that was scored during training."""
    for metric in (metric for view in views[:1] for metric in along.metrics_along(view.results)):
        for view in views:
            column, arms = view.column(metric.name), along.compared(view, metric.name)
            for _, one in arms[:1]:
                yield [*_named(view.baseline), metric.label, *along.baseline_cells(one)]
            yield from ([*_named(arm), metric.label, *along.cells(column, one)] for arm, one in arms)


def _difference_rows(views: Sequence[View]) -> Iterator[list[str]]:
    for view in views:
        for metric in along.metrics_along(view.results):
            for arm, one in along.compared(view, metric.name):
                cells = along.difference_cells(view.column(metric.name), one)
                for at, cell in zip(one.differences, cells, strict=True):
                    yield [*_named(arm), metric.label, along.step_of(at), cell]


def _stage_rows(views: Sequence[View]) -> list[list[str]]:
    return [
        [*_named(arm), metric.label, *cells]
        for view in views
        for metric in along.metrics_along(view.results)
        for arm, cells in along.stage_rows(view, metric.name)
    ]


def _prompt_kinds(view: View) -> list[str]:
    return list(dict.fromkeys(prompts for group in view.prompt_groups for prompts, _ in group))


def _prompt_rows(views: Sequence[View]) -> Iterator[list[str]]:
    """Yield a row for each pair of an arm and a metric that was measured on several kinds of prompts."""
    kinds = _prompt_kinds(views[0])
    for index, group in enumerate(views[0].prompt_groups):
        for view in views:
            columns = dict(view.prompt_groups[index])
            for arm in view.everyone:
                *where, name = _named(arm)
                cells = [columns[kind].mean_and_effect(arm) if kind in columns else "" for kind in kinds]
                yield [*where, group[0][1].info.label, name, *cells]


def _cost_rows(views: Sequence[View]) -> Iterator[list[str]]:
    for view in views:
        yield from ([*_named(arm), *findings.cost_cells(view.results, arm)] for arm in view.everyone if arm.alone)


def _trust_rows(views: Sequence[View], biased: bool) -> Iterator[list[str]]:
    for view in views:
        first = [view.baseline.resolution, f"{view.baseline.tokens:,}"] if view.baseline.resolution else []
        yield from ([*first, *row] for row in view.trust_rows(biased))
