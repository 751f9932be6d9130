"""Scores along training in the report: curves, a table in words, and nothing where there are none."""

from __future__ import annotations

import math
from pathlib import Path
from statistics import fmean

import pytest

from tests.unit.study.example_results import draw_previews, example, several, with_scores_along
from tests.unit.study.test_report import _Page
from tintype.study.along import with_along
from tintype.study.report import write_report
from tintype.study.report.along import _reached, _step, band, lead, stage_rows, timing_note
from tintype.study.report.markdown import to_markdown
from tintype.study.report.view import View, parts_of
from tintype.study.results import Interval, StudyResults, read_results_file


@pytest.mark.parametrize(
    "results", [with_scores_along(example()), with_scores_along(several())], ids=["one", "several"]
)
def test_the_page_has_curves_and_a_row_for_each_arm(results: StudyResults, tmp_path: Path) -> None:
    draw_previews(results, tmp_path)
    html = write_report(results, tmp_path).read_text()
    page = _Page(html)
    assert 'href="#along"' in html and not page.open
    metrics, views = 2, len(results.by_resolution())
    assert html.count("over training, by steps</title>") == metrics * views
    assert html.count("over training, by training seconds</title>") == metrics * views
    words = "ahead until step 750, behind from step 1,500"
    assert words in html
    text = (tmp_path / "report.md").read_text()
    assert "## Along training" in text and words in text
    assert read_results_file(tmp_path / "results.json").along == results.along


def test_a_study_without_them_has_no_such_section(tmp_path: Path) -> None:
    results = example()
    draw_previews(results, tmp_path)
    assert "long training" not in write_report(results, tmp_path).read_text()
    assert "long training" not in to_markdown(results)


def test_the_section_says_that_scores_are_of_fewer_images() -> None:
    results = with_scores_along(example()).model_copy(update={"protocol": {"count": 512}})
    assert lead(results).startswith("Each score is taken on 128 images, and the full evaluation on 512: compare")
    same = results.model_copy(update={"protocol": {"count": 128}})
    assert lead(same).startswith("Each score is taken on 128 images: compare")


@pytest.mark.parametrize(
    ("value", "low", "high", "at_first", "words"),
    [
        (320, 250, 410, False, "320 [250, 410]"),
        (320, 250, math.inf, False, "320 [250, …]"),
        (320, None, None, False, "320"),
        (100, 100, 150, True, "100 or before"),
        (math.inf, 430, math.inf, False, "not reached (perhaps from 430 on)"),
        (math.inf, math.inf, math.inf, False, "not reached"),
        (math.inf, None, None, False, "not reached"),
    ],
)
def test_a_reach_in_words(value: float, low: float | None, high: float | None, at_first: bool, words: str) -> None:
    assert _reached(Interval(value=value, low=low, high=high), _step, at_first) == words


def test_seconds_that_differ_between_seeds_are_called_untrustworthy() -> None:
    results = with_scores_along(example())
    assert timing_note(results) == ""
    first, *others = results.arms
    slow = [one.model_copy(update={"seconds": 3 * one.seconds}) for one in first.runs[0].along]
    runs = [first.runs[0].model_copy(update={"along": slow}), *first.runs[1:]]
    disturbed = results.model_copy(update={"arms": [first.model_copy(update={"runs": runs}), *others]})
    assert "the runs of baseline took from 180 s to 540 s for the same steps" in timing_note(disturbed)
    assert timing_note(disturbed) in to_markdown(disturbed)


def test_a_band_is_the_range_of_the_runs_over_steps_or_seconds() -> None:
    results = with_scores_along(example())
    arm = results.arms[0]
    values = [run.along[0].metrics["fd_scenes"] for run in arm.runs]
    step, mean, low, high = band(results, arm, "fd_scenes", over_seconds=False)[0]
    assert (step, low, high) == (375, min(values), max(values)) and low < mean < high
    assert band(results, arm, "fd_scenes", over_seconds=True)[0][0] == pytest.approx(45)


def test_a_band_leaves_out_runs_that_fell_off() -> None:
    results = with_scores_along(example())
    baseline, control, *others = results.arms
    row = control.comparisons["fd_scenes"].model_copy(update={"baseline_collapsed": [baseline.runs[0].seed]})
    control = control.model_copy(update={"comparisons": {**control.comparisons, "fd_scenes": row}})
    fell = results.model_copy(update={"arms": [baseline, control, *others]})
    values = [run.along[0].metrics["fd_scenes"] for run in baseline.runs[1:]]
    _, mean, low, high = band(fell, baseline, "fd_scenes", over_seconds=False)[0]
    assert (mean, low, high) == (fmean(values), min(values), max(values))


def test_scores_with_smaller_images_have_a_table_of_their_own(tmp_path: Path) -> None:
    """One arm was scored on images of 32 px at its first step: they are no point of its curve."""
    arms = []
    for arm in with_scores_along(example()).arms:
        sizes = [32 if arm.name == "short_captions" else 64, 64, 64, 64]
        runs = [
            run.model_copy(
                update={
                    "along": [one.model_copy(update={"size_px": px}) for one, px in zip(run.along, sizes, strict=True)]
                }
            )
            for run in arm.runs
        ]
        arms.append(arm.model_copy(update={"runs": runs}))
    results = with_along(example().model_copy(update={"arms": arms, "along_images": 128}))
    short = next(arm for arm in results.arms if arm.name == "short_captions")
    assert [point[0] for point in band(results, short, "fd_scenes", over_seconds=False)] == [750, 1125, 1500]
    ((arm, cells),) = stage_rows(View(*next(parts_of(results))), "fd_scenes")
    values = [run.along[0].metrics["fd_scenes"] for run in short.runs]
    assert arm.name == "short_captions" and cells[:2] == ["375", "32 px"]
    assert float(cells[2]) == pytest.approx(fmean(values), rel=1e-2)
    draw_previews(results, tmp_path)
    html, text = write_report(results, tmp_path).read_text(), (tmp_path / "report.md").read_text()
    assert html.count("<td>32 px</td>") == 2 and text.count("| 32 px |") == 2, "in two metrics"
    assert "750 (64 px)" in html and "750 (64 px)" in text
    for written in (html, text):
        assert "compared with scores of the same size alone" in written
    other = [arm.model_copy(update={"incomparable": {"fd_scenes": "another space"}}) for arm in results.arms]
    assert not stage_rows(View(*next(parts_of(results.model_copy(update={"arms": other})))), "fd_scenes")
    alike = [
        arm.model_copy(update={"runs": [run.model_copy(update={"along": run.along[1:]}) for run in arm.runs]})
        for arm in results.arms
    ]
    assert "same size" not in lead(results.model_copy(update={"arms": alike})), "all have images of 64 px"
    plain = with_scores_along(example())
    assert not stage_rows(View(*next(parts_of(plain))), "fd_scenes")
    assert "of the same size" not in to_markdown(plain) and "earlier stages" not in to_markdown(plain)
