"""Render the fragments: the changing parts of a page, of which a browser gets those that have changed."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from shlex import quote
from types import MappingProxyType
from typing import Any, get_args
from urllib.parse import quote as url_quote

from jinja2 import Template

from tintype.page import numerals
from tintype.page.forest import verdict_class
from tintype.page.template import template
from tintype.plan import Plan
from tintype.runtime.files import finite
from tintype.serve.curves import FIRST, Curves
from tintype.serve.images import address, image_at, shared_grids, study_grid
from tintype.study import numbers
from tintype.study.picked import LEAD, read_picked
from tintype.study.report import charts, findings
from tintype.study.report.html import HtmlView, arm_colours, paper_link
from tintype.study.report.view import parts_of
from tintype.study.results import EndState, StudyResults
from tintype.study.rows import glyph
from tintype.study.side_by_side import SideBySide
from tintype.study.status import RunState, RunStatus, StudyStatus
from tintype.study.study import Study
from tintype.train.record import RunRecord, is_run

Fragments = dict[str, str]
"""HTML of each fragment, by the id of the page element that contains the fragment."""
_NONE_KEPT: Mapping[str, bytes] = MappingProxyType({})
_MOST_ROWS = 60
_MOST_EVENTS = 60
_MOST_LETTERS = 2000
"""Largest number of characters in the details of an event. The limit is large enough for a path or an error message."""
_WORDS: dict[RunState, str] = {
    "done": "done",
    "running": "running",
    "silent": "silent",
    "died": "died, to be resumed",
    "waiting": "waiting",
    "perhaps": "",
    "failed": "failed",
    "diverged": "diverged",
}


def page(name: str) -> Template:
    """Return a template of tintype/serve, with the Jinja filters of reports."""
    filters = {
        "plain": findings.plain,
        "glyph": glyph,
        "verdict_class": verdict_class,
        "url": url_quote,
    }
    return template("tintype.serve", name, **filters)


def _rendered(block: str, **values: object) -> str:
    return page("fragments.html.j2").render(block=block, **values)


def study_fragments(
    path: str,
    colours: Mapping[str, str],
    *,
    status: StudyStatus | None = None,
    curves: Curves | None = None,
    results: StudyResults | None = None,
    folder: Path | None = None,
    study: Study | None = None,
    kept: Mapping[str, bytes] = _NONE_KEPT,
    refused: str = "",
) -> Fragments:
    """Render fragments of a study's page; fragments without content are left out."""
    found: Fragments = {}
    if status is not None and folder is not None:
        found["queue"] = _queue(path, colours, status, folder)
    if curves is not None:
        found["events"] = _rendered("events", events=_events(curves), colours=colours)
    if refused:
        found["verdicts"] = _rendered("refused", reason=refused)
    elif results is not None and folder is not None:
        by_name = arm_colours(results)
        views = [HtmlView(*parts, folder, kept, by_name) for parts in parts_of(results)]
        values: dict[str, Any] = {"results": results, "views": views, "colours": by_name, "findings": findings}
        values |= {"numbers": numbers, "notes": results.notes(), "rows": results.rows()}
        values |= {"link": paper_link, "several": results.several}
        found["verdicts"] = _rendered("verdicts", **values)
        found["arms"] = _rendered("arms", **values)
        figures = [(view, view.time_figure) for view in views if view.time_figure is not None]
        parts = findings.time_parts(results)
        found["time"] = _rendered("time", figures=figures, parts=parts, part_colours=charts.PART_COLOURS, **values)
        found["images"] = _rendered("images", grids=[study_grid(path, view, study) for view in views], **values)
    return found


def stored_fragments(
    path: str,
    colours: Mapping[str, str],
    *,
    results: StudyResults,
    folder: Path,
    curves: Curves,
    kept: Mapping[str, bytes],
) -> Fragments:
    """Render the fragments for a study without runs, from the study's results and the images in its report."""
    found = study_fragments(path, colours, results=results, folder=folder, curves=curves, kept=kept)
    runs = [(arm, run) for arm in results.arms for run in arm.runs]
    counts = {state: sum(run.state == state for _, run in runs) for state in get_args(EndState)}
    spent_s = sum(run.train_s + run.evaluate_s for _, run in runs)
    lost = [(arm.label, run) for arm, run in runs if run.state != "done"]
    values = {"results": results, "total": len(runs), "counts": counts, "spent_s": spent_s, "lost": lost[:_MOST_ROWS]}
    found["queue"] = _rendered("stored", colours=colours, machines=_machines(results), **values)
    if results.picked:
        picked = [(one, place) for one in results.picked if (place := image_at(path, one.image, folder, kept))]
        found["picked"] = _rendered("picked", picked=picked, PICKED_LEAD=LEAD)
    return found


def _machines(results: StudyResults) -> list[str]:
    named = [str(run.environment.get("device", "")) for arm in results.arms for run in arm.runs]
    return sorted({one for one in named if one})


def compare_fragments(compared: SideBySide, paths: Sequence[str], colours: Mapping[str, str]) -> Fragments:
    """Render the fragments of a page that compares runs side by side."""
    runs, values = compared.runs, {"paths": paths, "colours": colours, "compared": compared, "runs": compared.runs}
    facts: dict[str, list[str]] = {
        "state": [run.state for run in runs],
        "step": [f"{run.step:,} of {run.plan.train.steps:,}" for run in runs],
        "parameters": ["–" if run.parameters is None else numerals.count(run.parameters) for run in runs],
        "training images/s": [numerals.significant(run.images_per_s) for run in runs],
        "training time": ["–" if run.training_s is None else numerals.duration(run.training_s) for run in runs],
    }
    grids = shared_grids(runs, paths, colours)
    return {
        "differences": _rendered("differences", **values),
        "runs": _rendered("runs", facts=facts, **values),
        "scores": _rendered("scores", scored=list(dict.fromkeys(row.scored for row in compared.scores)), **values),
        "images": _rendered(
            "shared", grids=grids, several=False, findings=findings, numbers=numbers, link="", **values
        ),
    }


def picked_fragments(path: str, folder: Path) -> Fragments:
    """Render the images that a user picked in the playground; empty if there are none."""
    picked = [(one, address(path, one.image)) for one in read_picked(folder)]
    return {"picked": _rendered("picked", picked=picked, PICKED_LEAD=LEAD)}


def run_fragments(path: str, folder: Path, plan: Plan, curves: Curves) -> Fragments:
    log = next(iter(curves.metrics.values()))
    diverged = RunRecord(folder).failure == "diverged"
    steps, step = plan.train.steps, int(log.last.get("step", 0))
    facts = {"step": step, "steps": steps, "seconds": log.seconds, "diverged": diverged}
    rate = (log.seconds / step) if step and log.seconds else 0.0
    shown = [name for name in curves.names() if name in FIRST and name in log.last]
    last = {findings.curve_label(name, shown): log.last[name] for name in shown}
    return {
        "queue": _rendered("run", facts=facts, left_s=rate * (steps - step), last=last, path=path),
        "events": _rendered("events", events=_events(curves), colours=dict.fromkeys(curves.versions, "arm-0")),
    }


def _queue(path: str, colours: Mapping[str, str], status: StudyStatus, folder: Path) -> str:
    there = {run.hash for run in status.runs if is_run(folder / "runs" / run.hash)}
    named = {**_WORDS, "perhaps": status.perhaps_words}
    counts = [(state, words, len(status.of(state))) for state, words in named.items()]
    active = status.of("running", "silent", "died")
    lost = status.of("failed", "diverged")
    arms: dict[str, list[RunStatus]] = {}
    for run in status.runs:
        arms.setdefault(run.arm, []).append(run)
    return _rendered(
        "queue",
        status=status,
        counts=[(state, words, count) for state, words, count in counts if count],
        active=active[:_MOST_ROWS],
        more=max(0, len(active) - _MOST_ROWS),
        lost=[(run, f"tintype work {quote(status.folder)} --run {run.hash}") for run in lost[:_MOST_ROWS]],
        retries=sum(run.deaths for run in status.runs),
        arms=arms,
        colours=colours,
        path=path,
        there=there,
    )


def _events(curves: Curves) -> list[dict[str, str]]:
    """Return the newest events, newest first, each with its time, its run and its description as text."""
    found = [
        (finite(event.get("time")) or 0.0, run, event)
        for run in curves.runs
        for event in curves.events[run.hash].events
    ]
    found.sort(key=lambda one: -one[0])
    return [
        {
            "arm": run.arm,
            "seed": str(run.seed),
            "kind": str(event.get("event", "")),
            "step": _plain(event.get("step", "")),
            "details": _shortened(
                ", ".join(
                    f"{key} {_plain(value)}"
                    for key, value in event.items()
                    if key not in ("event", "step", "time", "line", "checksum")
                )
            ),
        }
        for _, run, event in found[:_MOST_EVENTS]
    ]


def _shortened(text: str) -> str:
    """Truncate text that is too long for the page, and append an ellipsis."""
    return text if len(text) <= _MOST_LETTERS else text[:_MOST_LETTERS] + " …"


def _plain(value: object) -> str:
    """Return a value of an event as text, or a dash if the value has too many levels of nesting."""
    try:
        return findings.plain(value)
    except RecursionError:
        return numerals.UNKNOWN


@functools.cache
def static(name: str) -> bytes:
    """Return the content of the style sheet or of the script."""
    if name == "style.css":
        return b"\n".join((files("tintype") / file).read_bytes() for file in ("page/style.css", "serve/live.css"))
    return b"\n".join((files("tintype") / file).read_bytes() for file in ("page/marks.js", "serve/live.js"))
