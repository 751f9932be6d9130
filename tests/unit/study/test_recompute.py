"""A study without the files of its runs is compared again from the runs in results.json."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.edit_checked import edit_json
from tests.tiny import TINY
from tests.unit.study.example_results import draw_previews, example, several
from tests.written_runs import METRIC, Writer, written_runs
from tintype.study.lab import StudyProgress, report_study, run_study
from tintype.study.report.html import to_html
from tintype.study.report.images import images_of
from tintype.study.results import StudyResults, read_results_file
from tintype.study.study import load_study

FIXED = "seeds: [0, 1, 2, 3]\ncontrol_seeds: [10, 11, 12, 13]"
PLANNED = "seeds: {first: 4, most: 8}"
STUDY = """
question: Does it pay?
recipe: PLAN
SEEDS
arms:
  - {name: strong, set: [optimizer.lr=0.01]}
  - {name: nothing, set: [optimizer.lr=0.03]}
primary: [validation_loss]
evaluation: {count: 8, also: [], reference_count: 8, validation_count: 2, metrics: [], sampler: {steps: 1}}
"""


@dataclass
class Notes(StudyProgress):
    texts: list[str] = field(default_factory=list)

    def note(self, text: str) -> None:
        self.texts.append(text)


def stored(folder: Path, seeds: str = FIXED) -> Path:
    """Run a study and remove its runs."""
    (folder / "plan.yaml").write_text(TINY)
    (folder / "study.yaml").write_text(STUDY.replace("PLAN", str(folder / "plan.yaml")).replace("SEEDS", seeds))
    with written_runs(Writer({"strong": -10.0})):
        run_study(load_study(str(folder / "study.yaml")), folder / "out", 1)
    shutil.rmtree(folder / "out" / "runs")
    return folder / "out"


def results_in(out: Path) -> StudyResults:
    return read_results_file(out / "results.json")


def verdict(results: StudyResults, arm: str = "strong") -> str:
    return next(one for one in results.arms if one.name == arm).comparisons[METRIC].verdict


@pytest.mark.parametrize("seeds", [FIXED, PLANNED])
def test_the_stored_runs_give_the_verdicts_of_the_files(tmp_path: Path, seeds: str) -> None:
    out = stored(tmp_path, seeds)
    before = {name: (out / name).read_bytes() for name in ("results.json", "results.csv", "report.md", "report.html")}
    report_study(out)
    assert verdict(results_in(out)) == "better"
    assert {name: (out / name).read_bytes() for name in before} == before


def test_a_metric_keeps_the_definition_that_it_was_scored_by(tmp_path: Path) -> None:
    """Metrics that only today's version measures are not counted among the comparisons."""
    out = stored(tmp_path)

    def older(content: dict[str, Any]) -> None:
        (loss,) = (one for one in content["metrics"] if one["name"] == METRIC)
        content["metrics"] = [{**loss, "revision": 1, "definition": "an older one"}]

    edit_json(out / "results.json", older)
    (out / "looks.json").unlink()  # the family that it records is that of today's version
    report_study(out)
    (metric,) = results_in(out).metrics
    assert (metric.revision, metric.definition, metric.range) == (1, "an older one", (0.0, None))
    assert "All 3 intervals" in results_in(out).method
    assert results_in(out).arms[2].comparisons[METRIC].scale == "log"


def test_a_study_that_cannot_be_compared_again_keeps_its_verdicts(tmp_path: Path) -> None:
    out, notes = stored(tmp_path), Notes()

    def renamed(content: dict[str, Any]) -> None:
        content["arms"][3]["name"] = "unknown"

    edit_json(out / "results.json", renamed)
    report_study(out, notes)
    assert "arms that study.yaml does not have: unknown" in notes.texts[-1]
    assert verdict(results_in(out), "unknown") == "undecided"


@pytest.mark.parametrize("resolutions", [False, True])
def test_a_page_keeps_its_images_where_their_files_are_gone(tmp_path: Path, resolutions: bool) -> None:
    results = several() if resolutions else example()
    draw_previews(results, tmp_path)
    page = to_html(results, tmp_path)
    assert page.count("<img ") > 8
    assert to_html(results, tmp_path / "gone") != page
    assert to_html(results, tmp_path / "gone", images_of(page, results)) == page


def test_images_of_older_pages_are_known_by_their_prompts() -> None:
    results = example()
    path = results.arms[0].runs[0].previews[0]
    title = f"{results.arms[0].name}: {results.resolution.prompts[0]}"
    page = f'<img src="data:image/png;base64,AAAA" alt="{title}"><img src="data:image/png;base64,?" alt="{title}">'
    assert images_of(page, results) == {path: b"\0\0\0"}
    assert images_of(f'<img src="https://x/y.png" alt="{title}">', results) == {}
