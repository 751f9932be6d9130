"""An arm that is better on one primary metric and worse on another."""

from __future__ import annotations

import io
from pathlib import Path

from rich.console import Console

from tests.studies import noted
from tests.unit.study.example_results import example
from tintype.library.studies import Results
from tintype.study.report.html import to_html
from tintype.study.report.markdown import to_markdown
from tintype.study.report.view import View, parts_of
from tintype.study.results import StudyResults, Verdict
from tintype.study.rows import MIXED
from tintype.terminal.studies import show_verdicts

WORDS = "short_captions is better in FD (scenes), but worse in Scene accuracy: decide by what you need."


def with_verdicts(accuracy: Verdict, distance: Verdict) -> StudyResults:
    results = example()
    arm = results.arms[2]
    given = {"scene_accuracy": accuracy, "fd_scenes": distance}
    rows = {
        name: row.model_copy(update={"verdict": given.get(name, "undecided")}) for name, row in arm.comparisons.items()
    }
    others = [
        one.model_copy(
            update={
                "comparisons": {
                    name: row.model_copy(update={"verdict": "undecided"}) for name, row in one.comparisons.items()
                }
            }
        )
        for one in results.arms
    ]
    others[2] = arm.model_copy(update={"comparisons": rows})
    return results.model_copy(update={"arms": others})


def test_every_view_says_that_the_metrics_contradict_each_other(tmp_path: Path) -> None:
    results = with_verdicts("worse", "better")
    (found,) = [note for note in results.notes() if note.kind == "mixed"]
    assert (found.text, found.arguments["arm"], found.arguments["worse"]) == (
        WORDS,
        "short_captions",
        ["scene_accuracy"],
    )
    console = Console(width=200, record=True, file=io.StringIO())
    show_verdicts(results, console)
    assert WORDS in console.export_text() and WORDS in Results(tmp_path, results).notes
    assert WORDS in to_markdown(results) and WORDS in to_html(results, tmp_path)


def test_the_verdict_in_words_does_not_pick_one() -> None:
    results = with_verdicts("worse", "better")
    (parts,) = parts_of(results)
    view = View(*parts)
    ((verdict, words),) = view.in_words(results.arms[2])
    assert verdict == MIXED and words.startswith("better in FD (scenes) (") and ", but worse in Scene" in words
    assert words.endswith(": decide by what you need")


def test_metrics_that_agree_or_do_not_decide_are_no_contradiction() -> None:
    for pair in (("worse", "worse"), ("better", "undecided"), ("worse", "same")):
        assert noted(with_verdicts(*pair), "mixed") == ""
