"""The report shows images at each scored step, the words that they got wrong, and what was picked by hand."""

from __future__ import annotations

import json
import re
from html import unescape
from pathlib import Path

from tests.unit.study.example_results import HOSTILE
from tests.unit.study.frozen_page import frozen
from tintype.study.report import write_report
from tintype.study.report.html import _spread
from tintype.study.results import read_results_file


def test_each_sample_has_its_earlier_steps_and_its_wrong_words(tmp_path: Path) -> None:
    results = frozen(tmp_path)
    html = write_report(results, tmp_path).read_text()
    assert 'data-steps="375,750,1125,1500"' in html
    found = [json.loads(unescape(one)) for one in re.findall(r'data-at="([^"]*)"', html)]
    assert len(found) == len(results.resolution.prompts) * len(results.arms)
    assert all(list(one) == ["375", "750", "1125"] for one in found), "the last step is the image itself"
    assert html.count('<mark class="wrong" title="drawn red, asked blue">') == 2 * len(results.arms)
    assert "✓ as asked" in html and "got wrong, as the scene encoder reads it" in html


def test_picked_images_are_called_so(tmp_path: Path) -> None:
    results = frozen(tmp_path)
    html = write_report(results, tmp_path).read_text()
    section = html[html.index('<div id="picked">') :]
    assert "picked these images by hand" in section and "no verdict uses them" in section
    assert "run runs/x, seed 5" in section and 'alt="picked by hand 1"' in section
    markdown = (tmp_path / "report.md").read_text()
    assert "## Picked by hand" in markdown and "seed 5" in markdown


def test_copies_of_training_images_are_shown_beside_them(tmp_path: Path) -> None:
    results = frozen(tmp_path)
    html = write_report(results, tmp_path).read_text()
    section = unescape(html[html.index('<div id="copies">') :])
    assert "copies of training images" in section and "+0.80 [+0.60,\N{NO-BREAK SPACE}+0.90]" in section
    assert section.count("nearest pair 1") == len(results.arms), "of the first run of each arm"
    assert "a near-copy of the caption's own image; guidance 3" in section
    assert "## Copies of training images" in (tmp_path / "report.md").read_text()
    hidden = write_report(results.without_data(), tmp_path).read_text()
    assert "nearest pair 1" not in hidden and "a training caption" not in hidden and '<div id="copies">' in hidden


def test_a_report_made_again_without_the_runs_keeps_its_images(tmp_path: Path) -> None:
    results = frozen(tmp_path)
    before = write_report(results, tmp_path).read_bytes()
    for file in tmp_path.rglob("*.png"):
        file.unlink()
    stored = read_results_file(tmp_path / "results.json")
    assert stored == results
    assert write_report(stored, tmp_path, stored=True).read_bytes() == before


def test_results_without_their_data_name_no_word_of_a_prompt(tmp_path: Path) -> None:
    results = frozen(tmp_path).without_data()
    assert not any(run.wrong or any(one.wrong for one in run.along) for arm in results.arms for run in arm.runs)
    assert all(run.previews for run in results.arms[0].runs)


def test_hostile_remarks_stay_text(tmp_path: Path) -> None:
    html = write_report(frozen(tmp_path, HOSTILE), tmp_path).read_text()
    assert HOSTILE not in html and html.count("<script") == 1 and "<img src=x" not in html
    assert not re.search(r"<[a-z]+[^>]*\son[a-z]+=", html.partition("<script>")[0])


def test_a_page_has_a_few_steps_of_many() -> None:
    assert _spread([1, 2, 3]) == [1, 2, 3]
    assert _spread(list(range(0, 101, 5))) == [0, 20, 40, 60, 80, 100]
