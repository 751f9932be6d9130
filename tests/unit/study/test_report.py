"""A study's report: four files that agree, a page that stands alone, and text that stays text."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import json
import math
import re
from html.parser import HTMLParser
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

import pytest
from PIL import Image
from rich.console import Console

from tests.fault.promises import Promise
from tests.studies import noted
from tests.unit.study.example_results import (
    HOSTILE,
    at_resolution,
    draw_previews,
    example,
    hostile,
    several,
    with_differing_control,
    with_diverged_runs,
    with_failed_run,
)
from tintype.evaluation.results import EncoderInfo
from tintype.page import numerals, svg
from tintype.page.forest import Effect, effect_scale, forest
from tintype.study import numbers, report
from tintype.study.notes import costly_part
from tintype.study.prompts import metrics_by_prompts
from tintype.study.report import charts, findings, to_csv, write_report
from tintype.study.report.html import HtmlView
from tintype.study.report.markdown import escaped, to_markdown
from tintype.study.report.view import View, parts_of
from tintype.study.results import (
    SPEED,
    Arm,
    Change,
    Command,
    Curve,
    Interval,
    MetricInfo,
    Replication,
    Run,
    StudyResults,
    TokenizerInfo,
    read_results_file,
)
from tintype.study.verdicts import NO_RUNS, NOT_POSITIVE
from tintype.terminal.studies import show_verdicts

CONTROL = ("no_control", "control_lost", "control_blind", "control_unstable", "control")
_VOID = {"meta", "img", "br", "hr", "link", "input"}


class _Page(HTMLParser):
    """Checks that tags balance while it collects the page's text, addresses and tags."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[str] = []
        self.addresses: list[str] = []
        self.text = ""
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.addresses += [value or "" for key, value in attrs if key in ("src", "href", "srcset", "data", "action")]
        assert not [key for key, _ in attrs if key.startswith("on")]
        if tag not in _VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1:] != ["style"]:
            self.text += data


def _page(results: StudyResults, folder: Path) -> _Page:
    page = _Page(write_report(results, folder).read_text(encoding="utf-8"))
    assert page.open == []
    page.text = re.sub(r"\s+", " ", page.text)
    return page


@pytest.fixture(scope="module")
def results() -> StudyResults:
    return example()


@pytest.fixture(scope="module")
def folder(results: StudyResults, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("study")
    draw_previews(results, folder)
    write_report(results, folder)
    return folder


def test_writes_four_files_and_gives_the_page(results: StudyResults, tmp_path: Path) -> None:
    assert write_report(results, tmp_path / "new") == tmp_path / "new" / "report.html"
    written = {path.name for path in (tmp_path / "new").iterdir()}
    assert written == {"results.json", "results.csv", "verdicts.csv", "report.md", "report.html"}


def test_results_survive_the_round_trip(results: StudyResults, folder: Path) -> None:
    assert read_results_file(folder / "results.json") == results


def test_csv_has_a_row_for_each_arm_seed_and_metric(results: StudyResults, folder: Path) -> None:
    with (folder / "results.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 4 * 3 * len(results.metrics)
    assert float(rows[0]["value"]) == results.arms[0].runs[0].metrics[rows[0]["metric"]]


def test_csv_leaves_the_value_of_a_failed_run_empty(tmp_path: Path) -> None:
    write_report(with_failed_run(), tmp_path)
    with (tmp_path / "results.csv").open(newline="") as file:
        failed = [row for row in csv.DictReader(file) if row["state"] == "failed"]
    assert failed and all(row["value"] == "" for row in failed)


def test_page_names_every_arm_metric_prompt_and_change(results: StudyResults, folder: Path) -> None:
    text = _page(results, folder).text
    for arm in results.arms:
        assert arm.name in text and arm.summary in text
        assert all(change.key in text for change in arm.changes)
    for metric in results.metrics:
        assert metric.label in text and metric.definition in text
    assert all(prompt in text for prompt in results.resolution.prompts)
    assert results.method in text and "loss_spike" in text and "A CPU × 2" in text


def test_numbers_of_many_seeds_stand_below_their_metric(tmp_path: Path) -> None:
    """A column of them fits on no printed page."""
    pages = {count: write_report(example(tuple(range(count))), tmp_path).read_text() for count in (10, 11)}
    assert ">Seeds 0, 1" in pages[10] and 'colspan="2">seeds' not in pages[10]
    assert ">Seeds 0, 1" not in pages[11] and 'colspan="2">seeds 0, 1' in pages[11]


def test_page_loads_nothing_from_elsewhere(results: StudyResults, folder: Path) -> None:
    page = _page(results, folder)
    assert page.tags.count("script") == 1 and "link" not in page.tags
    inside = ("#", "data:image/png;base64,", "https://arxiv.org/abs/")
    assert all(address.startswith(inside) for address in page.addresses)
    assert "https://arxiv.org/abs/2403.03206" in page.addresses
    assert "url(" not in (folder / "report.html").read_text() and "@import" not in (folder / "report.html").read_text()


def test_page_embeds_every_image_of_the_first_seed(results: StudyResults, folder: Path) -> None:
    page = _page(results, folder)
    assert page.tags.count("img") == len(results.resolution.prompts) * (1 + len(results.arms))
    assert "no image" not in page.text


def test_a_missing_image_leaves_a_placeholder(results: StudyResults, tmp_path: Path) -> None:
    page = _page(results, tmp_path)
    assert page.tags.count("img") == 0 and "Samples have" not in page.text
    draw_previews(results, tmp_path)
    (tmp_path / results.arms[0].runs[0].previews[0]).unlink()
    assert _page(results, tmp_path).text.count("no image") == 1


def test_a_file_that_is_no_image_is_not_embedded(results: StudyResults, tmp_path: Path) -> None:
    draw_previews(results, tmp_path)
    (tmp_path / results.resolution.real_previews[0]).write_text("<svg onload='x'/>")
    assert _page(results, tmp_path).tags.count("img") == len(results.resolution.prompts) * (1 + len(results.arms)) - 1


def test_a_large_image_is_made_smaller(results: StudyResults, tmp_path: Path) -> None:
    draw_previews(results, tmp_path)
    before = write_report(results, tmp_path).stat().st_size
    large = tmp_path / results.resolution.real_previews[0]
    Image.effect_noise((800, 800), 90).save(large)
    assert write_report(results, tmp_path).stat().st_size - before < large.stat().st_size / 2


def _answer(folder: Path) -> str:
    """The head of the page, with its tags."""
    html = (folder / "report.html").read_text()
    return html[html.index('<section id="answer">') : html.index("</section>")].replace(numerals.NO_BREAK, " ")


def _answer_rows(folder: Path) -> dict[str, str]:
    """The text of each row of the page's ranked lists, by the name that it begins with."""
    rows = re.findall(r"<li[^>]*>\s*<div class=\"who\">(.*?)</li>", _answer(folder), re.DOTALL)
    texts = [" ".join(re.sub(r"<[^>]+>", " ", row).split()) for row in rows]
    return {text.split()[0]: text for text in texts}


def test_the_answer_lists_the_arms_best_first_with_verdict_difference_and_speed(
    results: StudyResults, folder: Path
) -> None:
    rows = _answer_rows(folder)
    assert list(rows) == ["baseline", "uniform_time", "short_captions", "control", "real"]
    assert re.search(r"✗ worse Scene accuracy ↑ −0\.2\d+ \[−.*?, −.*?\] ", rows["short_captions"])
    assert re.search(r"speed \+\d+\.\d % ± \d+\.\d %", rows["short_captions"])
    assert re.search(r"○ undecided Scene accuracy ↑ [+−]0\.\d+ \[−.*?, \+.*?\]", rows["uniform_time"])
    assert re.search(r"Scene accuracy ↑ 0\.8\d+ ± 0\.\d+", rows["baseline"])
    assert "sorted by Scene accuracy, best first" in _answer(folder)
    table = [line for line in (folder / "report.md").read_text().splitlines() if line.startswith("|")][:6]
    assert [line.split(" | ")[0].strip("| ") for line in table[2:]] == list(rows)[:-1]
    assert "✗ worse: −0.2" in table[4] and "as it should" in _answer(folder)


def test_a_verdict_that_the_report_does_not_know_is_shown_as_it_is(results: StudyResults, tmp_path: Path) -> None:
    arm = results.arms[3]
    row = arm.comparisons["scene_accuracy"]
    row = row.model_construct(**{**dict(row), "verdict": "a new word"})
    changed = arm.model_copy(update={"comparisons": {**arm.comparisons, "scene_accuracy": row}})
    shown = results.model_copy(update={"arms": [*results.arms[:3], changed]})
    write_report(shown, tmp_path)
    assert '<span class="chip v-a-new-word"><span aria-hidden="true">!</span> a new word</span>' in _answer(tmp_path)
    assert "! a new word: " in (tmp_path / "report.md").read_text() and "a new word" in _shown(shown)


def test_arms_that_lost_runs_come_after_those_that_are_complete(tmp_path: Path) -> None:
    """Whatever the seeds that are left to them say; the control stays last."""
    results = with_diverged_runs()
    fine = example().arms[2]
    write_report(results.model_copy(update={"arms": [*results.arms[:2], fine, results.arms[3]]}), tmp_path)
    rows = _answer_rows(tmp_path)
    assert list(rows) == ["baseline", "short_captions", "uniform_time", "control"]
    assert "! diverged 1 of 3 Scene accuracy" in rows["uniform_time"]
    assert 'class="chip v-diverged"' in _answer(tmp_path)


def test_verdicts_from_few_seeds_are_a_sketch_until_they_are_replicated(results: StudyResults) -> None:
    sketch = "Verdicts from 3 seeds are a sketch"
    assert noted(results, "few_seeds").startswith(sketch)
    replicated = results.model_copy(update={"replication": Replication(seeds=[7, 8], rows=[])})
    assert noted(replicated, "few_seeds") == noted(example((0, 1, 2, 3, 4)), "few_seeds") == ""
    later = results.model_copy(update={"seeds": list(range(8))})  # a look at 8 seeds keeps what one at 3 has decided
    assert noted(later, "few_seeds").startswith(sketch)


def test_runs_that_fell_off_are_counted_and_named_with_their_metrics(results: StudyResults) -> None:
    arm = results.arms[2]
    fell = {"collapsed": [1], "verdict": "unstable"}
    collapsed = {name: arm.comparisons[name].model_copy(update=fell) for name in ("recall", "kid_scenes")}
    unstable = arm.model_copy(update={"comparisons": {**arm.comparisons, **collapsed}})
    found = results.model_copy(update={"arms": [*results.arms[:2], unstable]})
    note = noted(found, "collapsed")
    assert f"{arm.name}: 1 of 3 runs in KID (scenes) and Recall (seed 1" in note
    shown = _shown(found)
    assert note in " ".join(shown.split()) and re.search(r"Recall: +unstable", shown), "on the terminal too"


def test_the_terminal_says_what_would_decide_and_that_the_control_differs() -> None:
    found = with_differing_control()
    row = found.arms[2].comparisons["recall"].model_copy(update={"note": "its own is used"})
    arm = found.arms[2].model_copy(update={"comparisons": {**found.arms[2].comparisons, "recall": row}})
    shown = " ".join(_shown(found.model_copy(update={"arms": [*found.arms[:2], arm, *found.arms[3:]]})).split())
    assert "Seeds that would decide" in shown and "The control differs from the baseline" in shown
    assert "in Recall, its own is used." in shown and "Note: " not in shown


def test_the_interval_is_named_beside_the_numbers(results: StudyResults, folder: Path) -> None:
    text, markdown = _page(results, folder).text, (folder / "report.md").read_text()
    words = "simultaneous 95% interval"
    assert words in text.replace("’", "'") and words in markdown


def test_the_evaluations_notes_encoders_and_sampling_errors_are_shown(results: StudyResults, tmp_path: Path) -> None:
    noted = results.model_copy(
        update={
            "warnings": ["FID: 512 fake images give no full covariance of 2048 features (12 runs)"],
            "encoders": {"inception": EncoderInfo(identity="c0ffee" * 10, definition="bicubic to 299 px")},
        }
    )
    arm = noted.arms[-1]
    metric, row = next(iter(arm.comparisons.items()))
    row = row.model_copy(update={"sampling_error": 0.0625, "low": -0.01, "high": 0.01})
    arm = arm.model_copy(update={"comparisons": {**arm.comparisons, metric: row}})
    noted = noted.model_copy(update={"arms": [*noted.arms[:-1], arm]})
    page = write_report(noted, tmp_path).read_text()
    for text in (page, (tmp_path / "report.md").read_text()):
        assert "no full covariance of 2048 features (12 runs)" in text
        assert "c0ffeec0ffee" in text and "bicubic to 299 px" in text
        assert "Sampling error" in text and "0.062" in text


def test_arms_come_best_first_whichever_way_the_metric_points(results: StudyResults) -> None:
    names = [arm.name for arm in numbers.ranked_arms(results)]
    assert names == ["uniform_time", "short_captions", "control"]
    lower = [metric.model_copy(update={"direction": "lower"}) for metric in results.metrics]
    turned = results.model_copy(update={"metrics": lower})
    assert [arm.name for arm in numbers.ranked_arms(turned)] == ["short_captions", "uniform_time", "control"]


def test_sketch_says_so_and_has_no_verdict(tmp_path: Path) -> None:
    text = _page(example((0,)), tmp_path).text
    assert "Sketch: one seed" in text and "no verdict" in text
    assert "✓ better" not in text and "[" not in _answer(tmp_path) and "◌ sketch" in _answer_rows(tmp_path)["control"]
    assert "Sketch: one seed" in (tmp_path / "report.md").read_text()


def with_detectable(results: StudyResults, factor: float, **changes: Any) -> StudyResults:
    """Every comparison without a verdict, with a smallest detectable difference of `factor` times the baseline."""

    def weak(arm: Arm) -> Arm:
        rows = {
            name: row.model_copy(
                update={
                    "detectable": factor * abs(row.baseline_mean),
                    "verdict": "undecided",
                    "low": -1.0,
                    "high": 1.0,
                    **changes,
                }
            )
            for name, row in arm.comparisons.items()
        }
        return arm.model_copy(update={"comparisons": rows})

    return results.model_copy(update={"arms": [weak(arm) for arm in results.arms]})


def test_a_study_that_cannot_see_a_change_says_so(results: StudyResults, tmp_path: Path) -> None:
    text = _page(with_detectable(results, 1786.0), tmp_path).text
    assert "3 seeds are too few to see a change in 8 of 9 metrics" in text
    assert "too few seeds to see a change" in _answer_rows(tmp_path)["uniform_time"]
    markdown = (tmp_path / "report.md").read_text()
    assert "too few seeds to see a change" in markdown and "| ○ undecided | too few seeds |" in markdown
    assert "too few seeds" not in _page(with_detectable(results, 0.2), tmp_path).text.replace("Too few seeds:", "")


@pytest.mark.parametrize(
    ("of_range", "changes", "expected"),
    [
        ((None, None), {"detectable": 0.11}, True),  # more than the baseline's 0.1
        ((None, None), {"detectable": 0.09}, False),
        ((0.0, 1.0), {"detectable": 0.11}, False),  # a share can rise from 0.1 to 0.21
        ((0.0, 1.0), {"detectable": 0.51}, True),
        ((None, None), {"detectable": None}, True),  # a permutation test of few seeds has none
        ((None, None), {"detectable": 0.11, "verdict": "better"}, False),
        ((None, None), {"detectable": 0.11, "low": 0.01, "high": 0.2}, False),  # seen, but not after the correction
        ((None, None), {"detectable": None, "p": None, "verdict": "incomplete"}, False),
        ((None, None), {"detectable": 0.11, "verdict": "diverged"}, False),
    ],
)
def test_seeds_are_too_few_where_only_an_absurd_change_would_be_found(
    results: StudyResults, of_range: tuple[float | None, float | None], changes: dict[str, Any], expected: bool
) -> None:
    metric = results.metrics[0].model_copy(update={"range": of_range})
    row = results.arms[3].comparisons["precision"]
    known = {"baseline_mean": 0.1, "p": 0.5, "verdict": "undecided", "low": -1.0, "high": 1.0, **changes}
    assert numbers.too_few_seeds(metric, row.model_copy(update=known)) is expected


def test_a_trend_that_only_a_doubling_would_show_says_so(fine_and_coarse: StudyResults, tmp_path: Path) -> None:
    def wide(trend: Any) -> Any:
        update = {"detectable": 7.5, "verdict": "undecided"}  # a ratio of e^7.5 is +180,704 %
        return trend.model_copy(update={"comparison": trend.comparison and trend.comparison.model_copy(update=update)})

    shown = fine_and_coarse.model_copy(update={"trends": [wide(trend) for trend in fine_and_coarse.trends]})
    assert "180," not in _page(shown, tmp_path).text
    rows = (tmp_path / "report.html").read_text()
    assert rows[rows.index("Does an arm help more") :].count("<td>too few seeds</td>") == 4


def test_the_control_shows_no_difference_only_where_it_could_have(results: StudyResults) -> None:
    assert noted(with_detectable(results, 0.2), *CONTROL).endswith("shows no difference, as it should.")
    blind = noted(with_detectable(results, 2.0), *CONTROL)
    assert "as it should" not in blind and "with 3 seeds it could not detect" in blind
    fine, recall = with_detectable(results, 0.2), with_detectable(results, 2.0).arms[1].comparisons["recall"]
    no_spread = {"verdict": "no spread", **dict.fromkeys(("p", "low", "high", "detectable"))}
    for row in (recall, recall.model_copy(update=no_spread)):
        control = fine.arms[1].model_copy(update={"comparisons": {**fine.arms[1].comparisons, "recall": row}})
        note = noted(fine.model_copy(update={"arms": [fine.arms[0], control, *fine.arms[2:]]}), *CONTROL)
        assert note.endswith("as it should. With 3 seeds it could not detect one in Recall.")


def test_a_control_whose_runs_fell_off_does_not_show_that_there_is_no_difference(results: StudyResults) -> None:
    fine = with_detectable(results, 0.2)
    row = fine.arms[1].comparisons["recall"].model_copy(update={"verdict": "unstable", "collapsed": [1]})
    control = fine.arms[1].model_copy(update={"comparisons": {**fine.arms[1].comparisons, "recall": row}})
    note = noted(fine.model_copy(update={"arms": [fine.arms[0], control, *fine.arms[2:]]}), *CONTROL)
    assert "is unstable in Recall" in note and "as it should" not in note


@pytest.mark.parametrize(("slowest", "words"), [(0.9, ""), (0.5, "differ up to 2.0 times in throughput")])
def test_uneven_speeds_are_said_to_be_no_measure(results: StudyResults, slowest: float, words: str) -> None:
    arm = results.arms[-1]
    runs = [
        run.model_copy(update={"metrics": {**run.metrics, SPEED: 100.0 * (slowest if place == 0 else 1.0)}})
        for place, run in enumerate(arm.runs)
    ]
    uneven = results.model_copy(update={"arms": [*results.arms[:-1], arm.model_copy(update={"runs": runs})]})
    note = noted(uneven, "speed")
    assert words in note and bool(note) == bool(words)
    (parts,) = parts_of(uneven)
    assert (View(*parts).speed_words(uneven.arms[-1]) == "not comparable") == bool(words)


def test_the_contents_lead_to_every_section(folder: Path, fine_and_coarse: StudyResults, tmp_path: Path) -> None:
    """A link into a closed section opens it, as its target is within: browsers do so without a script."""
    write_report(with_tokenizer(fine_and_coarse, "short_captions"), tmp_path)
    for html in ((folder / "report.html").read_text(), (tmp_path / "report.html").read_text()):
        contents = html[html.index("<nav") : html.index("</nav>")]
        linked = re.findall(r'href="#([\w-]+)"', contents)
        sections = re.findall(r'</summary>\s*<div id="([\w-]+)"', html)
        assert linked == ["answer", *sections] and len(sections) >= 9
        assert all(f'id="{target}"' in html for target in re.findall(r'href="#([\w-]+)"', html))


def test_every_sample_enlarges_without_a_script(results: StudyResults, folder: Path) -> None:
    """By the mouse or the keyboard: a summary can have the focus, and one image is open at a time."""
    html = (folder / "report.html").read_text()
    samples = re.findall(r'<details name="zoom"><summary><img src="data:[^"]+" alt="[^"]+, prompt \d"', html)
    assert len(samples) == html.count("<img") == len(results.resolution.prompts) * 5
    assert "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-" in html


def test_only_the_report_s_own_script_can_run(folder: Path) -> None:
    html = (folder / "report.html").read_text()
    (script,) = re.findall(r"<script>(.*?)</script>", html, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', html)
    assert policy == [
        "default-src 'none'; img-src data:; style-src 'unsafe-inline'; "
        f"script-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    ]
    assert "</" not in script and "fetch(" not in script and "innerHTML" not in script


def test_the_first_screen_has_the_verdict_of_every_arm_in_words(results: StudyResults, folder: Path) -> None:
    html = (folder / "report.html").read_text()
    first = html[html.index("<header>") : html.index("</header>")]
    words = re.sub(r"\s+", " ", re.sub(r"<[^>]+>", "", first))
    assert results.question in words and first.count('class="chart"') == 1
    for arm in (arm for arm in results.arms if arm.role == "arm"):
        said = re.search(rf"{arm.name} is (.*?)\.(?= |$)", words)
        assert said is not None
        for metric in numbers.primary_metrics(results):
            verdict = arm.comparisons[metric.name].verdict
            assert findings.VERDICT_PHRASES.get(verdict, verdict) in said[1] and metric.label in said[1]


def with_commands(results: StudyResults) -> StudyResults:
    commands = [
        Command(argv=["tintype", "ablate", "my study.yaml", "--set", "seeds=[0,1]"], date="2026-11-15T10:11:12+00:00"),
        Command(argv=["tintype", "ablate", "my study.yaml", "--arm", HOSTILE], date="2026-11-16T00:00:00+00:00"),
    ]
    return results.model_copy(update={"commands": commands})


def test_the_report_has_the_command_that_made_it(results: StudyResults, folder: Path, tmp_path: Path) -> None:
    text = _page(with_commands(results), tmp_path).text
    command = "tintype ablate 'my study.yaml' --set 'seeds=[0,1]'"
    for said in (text, (tmp_path / "report.md").read_text()):
        assert command in said and "2026-11-15, 2026-11-16" in said and "A CPU × 2" in said
    assert f"| command | {command}; then tintype ablate" in (tmp_path / "report.md").read_text()
    assert (tmp_path / "report.html").read_text().count("<script") == 1
    assert read_results_file(tmp_path / "results.json") == with_commands(results)


def test_results_from_before_commands_were_recorded_say_so(folder: Path) -> None:
    stored = json.loads((folder / "results.json").read_text())
    del stored["commands"]
    for metric in stored["metrics"]:
        del metric["range"]
    old = StudyResults.model_validate(stored)
    assert findings.made_with(old)["command"] == "" and old.metrics[0].range == (None, None)
    assert "not recorded" in _answer(folder) and "not recorded" in (folder / "report.md").read_text()


def test_a_differing_control_is_a_warning(results: StudyResults, tmp_path: Path, folder: Path) -> None:
    page = _page(with_differing_control(), tmp_path)
    assert "The control differs from the baseline" in page.text
    assert "control differs" in (tmp_path / "report.md").read_text()
    assert "control differs" not in _page(results, folder).text


def test_the_baselines_mean_leaves_out_its_fallen_runs(results: StudyResults, tmp_path: Path) -> None:
    """Its row is the head of the report, and a mean over collapsed and healthy runs is never shown."""
    runs = [run.model_copy(update={"metrics": {**run.metrics, "recall": 7.0}}) for run in results.arms[0].runs[:1]]
    collapsed = [results.arms[0].model_copy(update={"runs": [*runs, *results.arms[0].runs[1:]]})]
    healthy = [run.metrics["recall"] for run in results.arms[0].runs[1:]]
    for arm in results.arms[1:]:
        fell = {"baseline_collapsed": [runs[0].seed], "baseline_mean": fmean(healthy)}
        row = arm.comparisons["recall"].model_copy(update=fell)
        collapsed.append(arm.model_copy(update={"comparisons": {**arm.comparisons, "recall": row}}))
    text = to_markdown(results.model_copy(update={"arms": collapsed}))
    (line,) = [line for line in text.splitlines() if "1 of 6 runs collapsed, left out" in line]
    assert line.startswith(f"| baseline | {sum(healthy) / 2:.2f}") and "7.00" in line.split("|")[-2]


def test_the_baselines_mean_is_that_of_the_differences_everywhere(results: StudyResults, tmp_path: Path) -> None:
    """It is no mean of its own runs where logarithms and the control's runs count; each page says so once."""
    arms = list(results.arms)
    for place, look, mean in ((2, 1, 98.76), (3, 2, 12.34)):  # the first was decided at an earlier look
        update = {"scale": "log", "look": look, "baseline_mean": mean, "mean": mean + 1, "difference": 1.0}
        row = arms[place].comparisons["fd_scenes"].model_copy(update=update)
        arms[place] = arms[place].model_copy(update={"comparisons": {**arms[place].comparisons, "fd_scenes": row}})
    found = results.model_copy(update={"arms": arms})
    (shown,) = [line for line in _shown(found).splitlines() if line.startswith("│ baseline")]
    html = write_report(found, tmp_path).read_text()
    markdown = (tmp_path / "report.md").read_text()
    (trusted,) = [line for line in markdown.splitlines() if "FD (scenes) | 12.3" in line]
    table = markdown[markdown.index("### FD (scenes)") :]
    assert "12.34" in shown and trusted and "| baseline | 12.3" in table[: table.index("###", 9)]
    assert "<strong>12.3" in html and "<td>98.8" in html, "an arm's own table has what the arm was compared with"
    for page in (_shown(found), html, markdown):
        assert page.count("Means of distances and losses are geometric") == 1
        assert page.count("is over its own runs and the control") == 1
    raw = [arm.model_copy(update={"role": "arm"}) if arm.role == "control" else arm for arm in results.arms]
    assert noted(results.model_copy(update={"arms": raw}), "means") == ""


def test_no_figure_has_a_mean_over_fallen_and_healthy_runs(results: StudyResults, tmp_path: Path) -> None:
    """Neither that of the parts of a metric nor that of the runs against speed; both name or mark what fell."""
    arm = results.arms[2]
    worse = {
        "metrics": {**arm.runs[0].metrics, "scene_accuracy": 0.01},
        "details": {"scene_accuracy": {"colour": 0.01}},
    }
    row = arm.comparisons["scene_accuracy"].model_copy(update={"verdict": "unstable", "collapsed": [arm.runs[0].seed]})
    update = {
        "runs": [arm.runs[0].model_copy(update=worse), *arm.runs[1:]],
        "comparisons": {**arm.comparisons, "scene_accuracy": row},
    }
    collapsed = results.model_copy(
        update={"arms": [*results.arms[:2], arm.model_copy(update=update), *results.arms[3:]]}
    )
    html = write_report(collapsed, tmp_path).read_text()
    parts = html[html.index('<div id="parts">') :]
    colours = [run.details["scene_accuracy"]["colour"] for run in arm.runs[1:]]
    assert f"<td>{fmean(colours):.3f}<" in parts[parts.index('<th scope="row">colour<') :][:400]
    assert "Collapsed runs, which no mean here counts: short_captions (seed 0)." in parts
    speed = html[html.index('<div id="speed">') :]
    assert "× collapsed, left out" in speed[: speed.index("</svg>")]
    view = HtmlView(collapsed, [], [], tmp_path, {}, dict.fromkeys((one.name for one in collapsed.arms), "arm-0"))
    quality, pace = collapsed.metrics[0], collapsed.metrics[-1]
    (cloud,) = [one for one in view._clouds(pace, quality) if one.name == "short_captions"]
    assert len(cloud.data) == 2 and [len(of) for of in view._collapsed_points(pace, quality).values()] == [0, 0, 1, 0]


def test_each_of_several_fallen_runs_has_the_step_from_which_it_is_above_the_healthy_ones() -> None:
    """The worst of them is above the others too, which does not keep them from being named with their step."""
    losses = ([1.0, 0.8, 0.6, 0.5], [1.0, 0.9, 0.6, 0.5], [1.0, 0.8, 2.0, 2.0], [1.0, 1.0, 3.0, 3.0])
    runs = [
        Run(
            seed=seed,
            hash=str(seed),
            folder="",
            state="done",
            curves={
                "flow": Curve(step=[100, 200, 300, 400], value=values),
                "validation_loss": Curve(step=[400], value=values[-1:]),  # once, at the end: it tells no step
            },
        )
        for seed, values in enumerate(losses)
    ]
    results = example()
    for collapsed, later in (([3, 2], []), ([2], [3])):
        row = (
            results.arms[2].comparisons["recall"].model_copy(update={"collapsed": collapsed, "collapsed_later": later})
        )
        arm = results.arms[2].model_copy(update={"runs": runs, "comparisons": {"recall": row}})
        found = results.model_copy(update={"arms": [*results.arms[:2], arm, *results.arms[3:]]})
        note = noted(found, "collapsed_later" if later else "collapsed")
        assert note.endswith("(seed 2 from step 300 on and seed 3 from step 200 on).")


def test_lost_runs_are_named(tmp_path: Path) -> None:
    text = _page(with_failed_run(), tmp_path).text
    assert "2 of 12 runs have no result" in text
    assert "uniform_time, seed 1: failed – loss is not a number at step 412" in text
    assert "uniform_time, seed 2: missing" in text
    assert "! failed 1 of 3" in _answer_rows(tmp_path)["uniform_time"] and "incomplete Scene" not in text


def test_diverged_runs_are_counted_in_the_verdict(tmp_path: Path) -> None:
    """They were "not measured" where all had diverged, and "incomplete" where some had."""
    results = with_diverged_runs()
    text = _page(results, tmp_path).text
    markdown = (tmp_path / "report.md").read_text()
    for shown in (text, markdown, _shown(results)):
        assert "diverged 3 of 3" in shown and "diverged 1 of 3" in shown
    assert "not measured" not in text and "… incomplete Scene" not in text and "NaN" not in markdown
    assert "short_captions, seed 0: diverged – 20 steps were not finite" in text
    assert (
        StudyResults.model_validate_json((tmp_path / "results.json").read_text()).arms[2].comparisons["precision"].lost
    )


def test_seeds_that_all_differ_alike_are_said_to_have_no_spread(results: StudyResults, tmp_path: Path) -> None:
    arms = list(results.arms)
    for index, verdict, difference in ((2, "no spread", 0.25), (3, "identical", 0.0)):
        update = {"verdict": verdict, "difference": difference, "differences": [difference] * 3}
        none = dict.fromkeys(("low", "high", "p", "p_adjusted", "detectable"))
        row = arms[index].comparisons["scene_accuracy"].model_copy(update={**update, **none})
        comparisons = {**arms[index].comparisons, "scene_accuracy": row}
        arms[index] = arms[index].model_copy(update={"comparisons": comparisons})
    changed = results.model_copy(update={"arms": arms})
    text = _page(changed, tmp_path).text
    assert "no spread" in text and "identical" in text
    assert "no spread" in _shown(changed) and "identical" in _shown(changed)


def test_hostile_names_stay_text_against_the_tokens(tmp_path: Path) -> None:
    results = several()
    arms = [arm.model_copy(update={"name": HOSTILE}) if arm.name == "uniform_time" else arm for arm in results.arms]
    update: dict[str, object] = {"arm": HOSTILE, "comparison": None, "undefined": HOSTILE}
    trends = [one.model_copy(update=update) if one.arm == "uniform_time" else one for one in results.trends]
    page = _page(results.model_copy(update={"arms": arms, "trends": trends}), tmp_path)
    assert page.tags.count("script") == 1 and page.text.count(" ".join(HOSTILE.split())) > 8
    assert "<script" not in (tmp_path / "report.md").read_text()


def test_hostile_text_stays_text(tmp_path: Path) -> None:
    results = hostile()
    draw_previews(results, tmp_path)
    page = _page(results, tmp_path)
    assert page.tags.count("script") == 1 and " ".join(HOSTILE.split()) in page.text
    assert not [address for address in page.addresses if "script" in address]
    markdown = (tmp_path / "report.md").read_text()
    assert "<script" not in markdown and not re.search(r"(?<!\\)\]\(javascript", markdown)


def test_markdown_tables_keep_their_columns(tmp_path: Path) -> None:
    write_report(hostile(), tmp_path)
    columns = 0
    for line in (tmp_path / "report.md").read_text().splitlines():
        bars = len(re.findall(r"(?<!\\)\|", line)) if line.startswith("|") else 0
        assert not (columns and bars) or bars == columns
        columns = bars


def test_markdown_has_the_arms_metrics_and_answer(results: StudyResults, folder: Path) -> None:
    markdown = (folder / "report.md").read_text()
    assert all(escaped(note) in markdown for note in [one.text for one in results.notes()])
    assert all(f"### {metric.label}" in markdown for metric in results.metrics)
    assert "| uniform_time | time.distribution | logit_normal | uniform |" in markdown


def test_a_study_with_nothing_measured_still_has_a_report(results: StudyResults, tmp_path: Path) -> None:
    empty = [
        arm.model_copy(
            update={"comparisons": {}, "runs": [run.model_copy(update=_NOTHING) for run in arm.runs], "changes": []}
        )
        for arm in results.arms
    ]
    page = _page(at_resolution(results.model_copy(update={"arms": empty}), prompts=[], reference={}), tmp_path)
    assert "12 of 12 runs have no result" in page.text and "No events." in page.text


def test_both_reports_say_on_what_the_runs_computed_and_what_is_bit_exact(
    results: StudyResults, tmp_path: Path
) -> None:
    said = "The runs used A CPU × 2, with 2 CPU threads each. On one kind of CPU"
    assert said in findings.repeatability(results) and said in to_markdown(results)
    assert said in _page(results, tmp_path).text


def test_the_report_names_the_arms_that_are_not_exact_on_a_gpu(results: StudyResults) -> None:
    """Runs of earlier versions do not say whether they were."""
    assert "may give a slightly different run." in findings.repeatability(results)

    def stated(reasons: list[str], operation: str | None) -> StudyResults:
        events = [] if operation is None else [{"event": "not-exact", "step": 1, "operation": operation}]
        runs = [[run.model_copy(update={"environment": run.environment | {"not_exact": []}}) for run in arm.runs]
                for arm in results.arms]  # fmt: skip
        last = runs[-1][0]
        changed = {"environment": last.environment | {"not_exact": reasons}, "events": [*last.events, *events]}
        runs[-1][0] = last.model_copy(update=changed)
        arms = [arm.model_copy(update={"runs": own}) for arm, own in zip(results.arms, runs, strict=True)]
        return results.model_copy(update={"arms": arms})

    label = results.arms[-1].label
    assert "deterministic algorithms only" in findings.repeatability(stated([], None))
    said = findings.repeatability(stated(["run.deterministic is false"], "some_backward_cuda"))
    assert f"these arms: {label} (run.deterministic is false, some_backward_cuda)." in said


def test_a_reason_that_all_arms_share_is_said_once(results: StudyResults) -> None:
    """As on every GPU by default."""
    environment = {"not_exact": ["run.deterministic is false"]}
    arms = [
        arm.model_copy(
            update={"runs": [run.model_copy(update={"environment": run.environment | environment}) for run in arm.runs]}
        )
        for arm in results.arms
    ]
    said = findings.repeatability(results.model_copy(update={"arms": arms}))
    assert said.count("run.deterministic is false") == 1 and "of every arm (run.deterministic is false)." in said


_NOTHING = {
    "state": "missing",
    "metrics": {},
    "details": {},
    "curves": {},
    "time_split": {},
    "events": [],
    "environment": {},
    "previews": [],
}


def test_values_that_are_not_numbers_do_not_reach_the_drawing(results: StudyResults, tmp_path: Path) -> None:
    curve = Curve(step=[1, 2, 3, 4], value=[1.0, math.nan, math.inf, 0.5])
    runs = [run.model_copy(update={"curves": {"flow": curve}}) for run in results.arms[2].runs]
    arms = [*results.arms[:2], results.arms[2].model_copy(update={"runs": runs}), results.arms[3]]
    html = write_report(results.model_copy(update={"arms": arms}), tmp_path).read_text()
    assert not re.search(r'"[^"]*\b(nan|inf)\b[^"]*"', html)


def test_metrics_without_speed_have_no_speed_figure(results: StudyResults, tmp_path: Path) -> None:
    slow = results.model_copy(update={"metrics": results.metrics[:-1]})
    assert "Quality against speed" not in _page(slow, tmp_path).text


def _metric(direction: Literal["lower", "higher"] = "higher", **known: Any) -> MetricInfo:
    return MetricInfo(name="m", label="recall", direction=direction, definition="", **known)


def _effect(
    difference: float, low: float | None, high: float | None, reach: float | None, seeds: list[float]
) -> Effect:
    return Effect(difference, low, high, reach, "undecided", 0.4, seeds)


def test_better_is_right_whichever_way_the_metric_points() -> None:
    gain = _effect(2.0, 1.0, 3.0, 0.5, [1.5, 2.5])
    higher, lower = (effect_scale(_metric(direction), [gain]) for direction in ("higher", "lower"))
    assert higher(2.0) > higher(0.0) and lower(2.0) < lower(0.0)


def _bands(drawn: str) -> list[list[float]]:
    """The x coordinates of each band's corners."""
    shapes = re.findall(r'<polygon points="([^"]+)" class="undetectable', drawn)
    return [[float(corner.split(",")[0]) for corner in shape.split()] for shape in shapes]


def test_the_data_set_the_axis_and_not_the_band() -> None:
    """A share of 0.6 with seeds within 0.02, and a band of ±5: it ends in points at both edges of the axis."""
    effect = _effect(0.01, -0.4, 0.42, 5.0, [0.0, 0.02])
    scale = effect_scale(_metric(), [effect])
    assert -0.03 < scale.low < 0.0 and 0.02 < scale.high < 0.05
    drawn = forest(_metric(), {"arm": effect})
    (band,) = _bands(drawn)
    assert min(band) >= 0 and max(band) <= 360 and len(band) == 6
    assert drawn.count('class="interval beyond"') == 2 and 'class="undetectable beyond"' in drawn


def test_a_band_and_an_interval_within_the_axis_are_drawn_whole() -> None:
    effect = _effect(0.1, 0.05, 0.15, 0.12, [0.08, 0.12])
    drawn = forest(_metric(), {"arm": effect})
    (band,) = _bands(drawn)
    assert len(band) == 4 and "beyond" not in drawn and drawn.count('class="interval"') == 3


@pytest.mark.parametrize("direction", ["lower", "higher"])
def test_the_axis_ends_at_the_metrics_range(direction: Literal["lower", "higher"]) -> None:
    """Seeds that spread widely would give the interval room to −0.9; the share is 0.4, so it cannot fall by more."""
    effect = _effect(0.0, -3.0, 3.0, 3.0, [-0.3, 0.3])
    scale = effect_scale(_metric(direction, range=(0.0, 1.0)), [effect])
    assert sorted((scale.low, scale.high)) == pytest.approx([-0.46, 0.66])  # and 6% of air
    assert svg.padded([0.5, 0.99], 0.5, (0.0, 1.0)) == (0.255, 1.0)
    assert svg.padded([1.0, 1.0], possible=(0.0, 1.0)) == (0.94, 1.0)
    assert svg.padded([0.0], possible=(0.0, 0.0)) == (-1.0, 1.0)  # never empty


def test_equal_values_still_have_an_axis() -> None:
    effect = _effect(0.0, 0.0, 0.0, 0.0, [0.0, 0.0])
    scale = effect_scale(_metric(), [effect])
    assert scale.low < 0 < scale.high


def test_an_unknown_interval_is_not_drawn() -> None:
    effect = _effect(0.1, None, None, None, [0.1])
    drawn = forest(_metric(), {"arm": effect})
    assert 'class="interval"' not in drawn and 'class="mean"' in drawn


def test_names_in_the_scatter_do_not_overlap() -> None:
    clouds = [charts.Series(f"an arm {index}", "arm-0", [(1.0 + index / 100, 1.0)]) for index in range(5)]
    clouds.append(charts.Series("far away", "arm-1", [(2.0, 2.0)]))
    drawn = charts.scatter(clouds, "x", "y", lower_is_better=False)
    places = [
        (float(x), float(y)) for x, y in re.findall(r'<text x="([\d.]+)" y="([\d.]+)"[^>]*class="name halo"', drawn)
    ]
    assert len(places) == len(clouds)
    width = svg.CHARACTER_PX * len("an arm 0")
    for index, (x, y) in enumerate(places):
        assert all(abs(x - other_x) >= width or abs(y - other_y) >= 12 for other_x, other_y in places[:index])


def test_curves_average_within_bins_and_over_seeds() -> None:
    flat = [
        charts.Series("arm", "arm-0", [Curve(step=list(range(1, 100)), value=[value] * 99) for value in (1.0, 3.0)])
    ]
    drawn = charts.curves("loss", flat)
    assert drawn is not None
    heights = {point.split(",")[1] for point in re.findall(r'points="([^"]*)" class="curve"', drawn)[0].split()}
    assert len(heights) == 1


def test_curves_of_one_point_are_left_out() -> None:
    assert charts.curves("loss", [charts.Series("arm", "arm-0", [Curve(step=[1], value=[0.5])])]) is None


@pytest.mark.parametrize(
    ("low", "high", "ticks"), [(0, 1, [0, 0.2, 0.4, 0.6, 0.8, 1]), (-7, 12, [-5, 0, 5, 10]), (0.0012, 0.0018, None)]
)
def test_ticks_are_round_and_inside(low: float, high: float, ticks: list[float] | None) -> None:
    found = svg.linear_ticks(low, high, 5)
    assert all(low <= tick <= high * (1 + 1e-9) for tick in found) and 2 <= len(found) <= 8
    assert ticks is None or found == pytest.approx(ticks)


def test_labels_keep_apart_and_in_order() -> None:
    placed = svg.kept_apart([50, 51, 49, 10], 12, 0, 100)
    assert placed[2] + 12 <= placed[0] + 1e-9 and placed[0] + 12 <= placed[1] + 1e-9
    assert placed[3] == 10 and max(placed) <= 100
    assert svg.kept_apart([], 12, 0, 100) == []


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (numerals.fixed(-0.2134, 3), "−0.213"),
        (numerals.fixed(-0.0001, 3, signed=True), "0.000"),
        (numerals.interval(0.004, 0.26, 2), "[+0.004,\u00a0+0.26]"),
        (numerals.interval(-0.26, -0.004, 2), "[−0.26,\u00a0−0.004]"),
        (numerals.interval(-0.26, 0.0, 2), "[−0.26,\u00a00.00]"),
        (numerals.fixed(None, 3), "–"),
        (numerals.fixed(math.nan, 3), "–"),
        (numerals.fixed(12345.6, 0), "12,346"),
        (numerals.significant(0.001234), "0.00123"),
        (numerals.significant(1.5e-9), "1.50e−09"),
        (numerals.percent(-0.1234), "−12.3\u00a0%"),
        (numerals.percent(None), "–"),
        (numerals.duration(59.4), "59 s"),
        (numerals.duration(3725), "1 h 02 min"),
        (numerals.count(3_214_592), "3.21 M"),
        (numerals.probability(0.00001), "<\u00a00.001"),
    ],
)
def test_numbers_are_written_plainly(written: str, expected: str) -> None:
    assert written == expected


def test_decimals_show_two_digits_of_the_interval() -> None:
    assert [numerals.decimals_showing(scale) for scale in (0.043, 0.5, 12, 0)] == [3, 2, 0, 3]


def test_settings_are_written_in_one_line() -> None:
    assert findings.plain("a word") == "a word"
    assert json.loads(findings.plain({"key": [1, None, True]})) == {"key": [1, None, True]}


def _shown(results: StudyResults) -> str:
    console = Console(width=200, record=True, file=io.StringIO())
    show_verdicts(results, console)
    return console.export_text()


def test_one_resolution_leaves_no_trace_of_several(results: StudyResults, folder: Path) -> None:
    """Neither in what readers see nor on the terminal; results.json has one shape."""
    assert results.by_resolution() == [results]
    assert (folder / "results.csv").read_text().startswith("arm,role,seed,")
    html, markdown = (folder / "report.html").read_text(), (folder / "report.md").read_text()
    for words in ("number of tokens", "esolution"):
        assert words not in html.split("</style>")[1] and words not in markdown and words not in _shown(results)


@pytest.fixture(scope="module")
def fine_and_coarse() -> StudyResults:
    return several()


def test_each_resolution_has_its_verdicts_figures_and_images(fine_and_coarse: StudyResults, tmp_path: Path) -> None:
    draw_previews(fine_and_coarse, tmp_path)
    page = _page(fine_and_coarse, tmp_path)
    assert read_results_file(tmp_path / "results.json") == fine_and_coarse
    html = (tmp_path / "report.html").read_text()
    assert html.count('<table class="numbers glance">') == html.count('alt="real image, prompt 1"') == 2
    for words in ("coarse 64 tokens", "fine 1,024 tokens", "The baseline’s plan at fine"):
        assert words in page.text
    assert "2 resolutions" in page.text
    assert page.tags.count("img") == 2 * (1 + 4 * 4)
    assert page.text.count("Draw training times evenly instead of from a logit-normal.") == 3  # two tables, one card


def test_effects_stand_against_the_tokens(fine_and_coarse: StudyResults, tmp_path: Path) -> None:
    page = _page(fine_and_coarse, tmp_path)
    section = page.text[page.text.index("Does an arm help more") : page.text.index("An effect is the ratio")]
    assert "○ undecided" in section and "hurts less" in section and "control" not in section
    for words in ("scene accuracy against the number", "images per second against the number"):
        assert words in page.text.lower()
    markdown = (tmp_path / "report.md").read_text()
    assert "| Resolution | Tokens | Arm |" in markdown and "| fine | 1,024 | uniform_time |" in markdown
    assert "| short_captions | Scene accuracy |" in markdown and "hurts less" in markdown
    shown = _shown(fine_and_coarse)
    assert "1,024 tokens" in shown and "relative effect at 64 → 1,024" in shown and "hurts less" in shown


def test_rows_of_the_sheet_begin_with_their_resolution(fine_and_coarse: StudyResults, tmp_path: Path) -> None:
    write_report(fine_and_coarse, tmp_path)
    with (tmp_path / "results.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert {(row["resolution"], row["tokens"]) for row in rows} == {("coarse", "64"), ("fine", "1024")}
    assert len(rows) == 2 * 4 * 3 * len(fine_and_coarse.metrics)


def test_the_answer_says_what_more_tokens_change(fine_and_coarse: StudyResults, tmp_path: Path) -> None:
    write_report(fine_and_coarse, tmp_path)
    text = " ".join(re.sub(r"<[^>]+>", " ", _answer(tmp_path)).split())
    assert re.search(r"hurts less Scene accuracy ↑ −\d+\.\d % → −\d+\.\d %", text)
    assert text.count("simultaneous 95% interval") == 1


def test_notes_name_the_resolution_where_they_differ(fine_and_coarse: StudyResults) -> None:
    without = fine_and_coarse.model_copy(
        update={"arms": [arm for arm in fine_and_coarse.arms if arm.role != "control"]}
    )
    assert noted(without, "no_control").startswith("No control ")
    control = fine_and_coarse.arms[5]
    row = control.comparisons["precision"].model_copy(update={"verdict": "incomplete"})
    changed = control.model_copy(update={"comparisons": {**control.comparisons, "precision": row}})
    arms = [changed if arm is control else arm for arm in fine_and_coarse.arms]
    said = noted(fine_and_coarse.model_copy(update={"arms": arms}), "control_lost")
    assert "At fine (1,024 tokens): The control (the baseline with other seeds) is incomplete." in said


def test_a_trend_that_is_not_defined_says_why(fine_and_coarse: StudyResults, tmp_path: Path) -> None:
    update: dict[str, object] = {"comparison": None, "effects": {}, "undefined": NOT_POSITIVE}
    trends = [trend.model_copy(update=update) for trend in fine_and_coarse.trends]
    page = _page(fine_and_coarse.model_copy(update={"trends": trends}), tmp_path)
    assert f"Not defined: {NOT_POSITIVE}." in page.text and "– not defined" in page.text
    assert f"not defined: {NOT_POSITIVE}" in (tmp_path / "report.md").read_text()
    assert "not defined" in _shown(fine_and_coarse.model_copy(update={"trends": trends}))


def test_a_trend_without_runs_is_incomplete(fine_and_coarse: StudyResults, tmp_path: Path) -> None:
    update: dict[str, Any] = {"comparison": None, "effects": {}, "undefined": NO_RUNS}
    changed = fine_and_coarse.model_copy(
        update={"trends": [trend.model_copy(update=update) for trend in fine_and_coarse.trends]}
    )
    page = _page(changed, tmp_path)
    markdown = (tmp_path / "report.md").read_text()
    assert f"… incomplete: {NO_RUNS}" in markdown and "… incomplete Scene accuracy" in page.text
    assert "incomplete" in _shown(changed)
    for text in (page.text, markdown, _shown(changed)):
        assert "not defined" not in text.lower()


def test_a_sketch_at_several_resolutions_has_no_verdict_on_tokens(tmp_path: Path) -> None:
    page = _page(several((0,)), tmp_path)
    assert "helps" not in page.text and "hurts" not in page.text and "◌ sketch" in page.text
    assert re.search(r"◌ sketch Scene accuracy ↑ −\d+\.\d % → −\d+\.\d %", page.text)


def test_an_arm_that_changes_other_keys_elsewhere_has_a_card_for_each(
    fine_and_coarse: StudyResults, tmp_path: Path
) -> None:
    arm = fine_and_coarse.arms[-1]
    changed = arm.model_copy(update={"changes": [*arm.changes[:1]]})
    results = fine_and_coarse.model_copy(update={"arms": [*fine_and_coarse.arms[:-1], changed]})
    cards = [(card.name, where) for card, where in findings.distinct_arms(results)]
    assert sorted(cards) == [
        ("control", ""),
        ("short_captions", ""),
        ("uniform_time", "coarse"),
        ("uniform_time", "fine"),
    ]
    assert "uniform_time at fine" in _page(results, tmp_path).text


def _token_figure(lower_is_better: bool, high: float = 1.4) -> str:
    ratios = {"a": (1.1, 0.9, 1.3), "b": (1.2, 1.0, high)}
    effects = {
        name: Interval(**dict(zip(("value", "low", "high"), map(math.log, of_name), strict=True)))
        for name, of_name in ratios.items()
    }
    metric = _metric("lower" if lower_is_better else "higher")
    tokens = {"a": 64, "b": 256, "c": 4096}
    drawn = charts.against_tokens(metric, [charts.Series("arm", "arm-0", effects)], tokens, percents=True)
    assert drawn is not None
    return drawn


def test_tokens_are_ticks_and_up_is_better_whichever_way_the_metric_points() -> None:
    for lower in (False, True):
        drawn = _token_figure(lower)
        first, second = (float(y) for y in re.findall(r'cy="([\d.]+)"', drawn))
        assert (second < first) == (not lower)
        assert re.findall(r'class="tick">([\d,]+)<', drawn)[-3:] == ["64", "256", "4,096"]
    x = [float(at) for at in re.findall(r'<text x="([\d.]+)" y="[\d.]+" text-anchor="middle" class="tick"', drawn)]
    assert (x[1] - x[0]) / (x[2] - x[0]) == pytest.approx(math.log(4) / math.log(64), abs=0.01)


def test_an_interval_without_end_is_cut_at_the_edge() -> None:
    whole, cut = _token_figure(False), _token_figure(False, high=1e21)
    assert whole.count('class="reach"') == 6 and cut.count('class="reach"') == 5
    assert all(-1 < float(y) < 300 for y in re.findall(r'y[12]="([-\d.]+)"', cut))


def test_an_effect_beyond_all_sense_says_only_that() -> None:
    assert findings.log_percent(math.log(1.5)) == "+50.0\u00a0%"
    assert findings.log_percent(700.0) == ">\u00a0+1,000\u00a0%" == numerals.percent(1786.36)
    assert findings.log_percent(None) == numerals.UNKNOWN


def with_tokenizer(results: StudyResults, arm: str, **changes: Any) -> StudyResults:
    """All on pixels but for one arm, whose two channels differ from seed to seed."""

    def run_of(run: Run, name: str, index: int) -> Run:
        pixels = TokenizerInfo(kind="pixels", settings={"kind": "pixels"}, channels=3, stride_px=1, images=256)
        found = pixels.model_copy(update={"mean": [-0.1] * 3, "std": [0.5] * 3})
        if name == arm:
            own = {"kind": "small-vae", "settings": {"kind": "small-vae"}, "channels": 2, "stride_px": 8}
            latents = {"identity": "0123456789abcdef", "mean": [-0.4 + index / 10, 0.2], "std": [0.75, 1.25]}
            found = found.model_copy(update={**own, **latents, **changes})
        return run.model_copy(update={"tokenizer": found})

    arms = [
        one.model_copy(update={"runs": [run_of(run, one.name, index) for index, run in enumerate(one.runs)]})
        for one in results.arms
    ]
    return results.model_copy(update={"arms": arms})


def test_tokenizers_are_listed_with_their_latents(results: StudyResults, tmp_path: Path) -> None:
    shown = with_tokenizer(results, "short_captions")
    pixels, vae = findings.latents_rows(shown)
    assert [arm.name for arm in pixels.arms] == ["baseline", "control", "uniform_time"]
    assert vae.mean_C == pytest.approx([-0.3, 0.2])
    assert vae.mean == pytest.approx(-0.05)
    assert vae.std == pytest.approx(math.sqrt((0.75**2 + 1.25**2) / 2 + 0.25**2))
    assert vae.ratio == 96
    draw_previews(shown, tmp_path)
    page = _page(shown, tmp_path)
    expected = [
        "small-vae",
        "short_captions",
        "2",
        "8 px",
        "96×",
        "256",
        "−0.05 (−0.30 to 0.20)",
        "1.06 (0.75 to 1.25)",
        "0123456789ab",
    ]
    row = page.text[page.text.index("The latents that the denoisers") :]
    assert all(words in row for words in expected)
    markdown = (tmp_path / "report.md").read_text(encoding="utf-8")
    assert f"| {' | '.join(expected)} |" in markdown
    stored = json.loads((tmp_path / "results.json").read_text(encoding="utf-8"))
    assert stored["arms"][2]["runs"][1]["tokenizer"]["mean"] == pytest.approx([-0.3, 0.2])
    assert read_results_file(tmp_path / "results.json") == shown


def test_a_study_on_pixels_has_no_list_of_tokenizers(results: StudyResults, tmp_path: Path) -> None:
    shown = with_tokenizer(results, "none of them")
    assert findings.latents_rows(shown) == []
    assert "Tokenizers" not in _page(shown, tmp_path).text
    assert "## Tokenizers" not in (tmp_path / "report.md").read_text(encoding="utf-8")


def test_a_tokenizer_without_measured_latents_is_listed_with_dashes(results: StudyResults, tmp_path: Path) -> None:
    shown = with_tokenizer(results, "short_captions", images=0, mean=[], std=[], identity="")
    _page(shown, tmp_path)
    row = f"| small-vae | short_captions | 2 | 8 px | 96× | {' | '.join([numerals.UNKNOWN] * 3)} | none |"
    assert row in (tmp_path / "report.md").read_text(encoding="utf-8")


def with_times(results: StudyResults, arm: str, split: dict[str, float]) -> StudyResults:
    def timed(one: Arm) -> Arm:
        runs = [
            run.model_copy(update={"time_split": split if one.name == arm else {"forward": 1.0}}) for run in one.runs
        ]
        return one.model_copy(update={"runs": runs})

    return results.model_copy(update={"arms": [timed(one) for one in results.arms]})


def test_a_tokenizer_that_takes_much_of_a_step_is_told_in_words(results: StudyResults, tmp_path: Path) -> None:
    words = "the tokenizer takes 34% of a step; cache its latents"
    for share, warned in ((0.34, True), (0.099, False)):
        shown = with_times(results, "short_captions", {"tokenizer": share, "forward": 1 - share})
        assert [costly_part(arm) for arm in shown.arms] == ["", "", words if warned else "", ""]
        page = _page(shown, tmp_path)
        assert (words in page.text, words in (tmp_path / "report.md").read_text()) == (warned, warned)
        assert (f"note: short_captions: {words}" in _shown(shown)) == warned


def test_of_a_tokenizer_that_is_trained_no_cache_is_advised(results: StudyResults, tmp_path: Path) -> None:
    words = "the tokenizer takes 34% of a step, its training included"
    tuned = with_tokenizer(results, "short_captions", tuned=True)
    shown = with_times(tuned, "short_captions", {"tokenizer": 0.34, "forward": 0.66})
    assert [costly_part(arm) for arm in shown.arms] == ["", "", words, ""]
    draw_previews(shown, tmp_path)
    for text in (_page(shown, tmp_path).text, (tmp_path / "report.md").read_text(), _shown(shown)):
        assert words in text and "cache its latents" not in text


def test_the_shares_of_a_step_stand_in_the_order_of_the_step(results: StudyResults, tmp_path: Path) -> None:
    split = dict.fromkeys(("other", "losses", "optimizer", "teacher", "backward", "tokenizer", "text", "data"), 0.1)
    shown = with_times(results, "short_captions", {**split, "forward": 0.2, "hardly": 1e-5})
    order = ["data", "text", "tokenizer", "teacher", "forward", "losses", "backward", "optimizer", "other"]
    assert findings.time_parts(shown) == order
    page = _page(shown, tmp_path)
    assert "tokenizer: 10.0\u00a0%" in page.text or "tokenizer: 10.0 %" in page.text
    markdown = (tmp_path / "report.md").read_text(encoding="utf-8").replace("\u00a0", " ")
    assert f"| Arm | {' | '.join(order)} |" in markdown
    cells = ["10.0 %"] * 4 + ["20.0 %"] + ["10.0 %"] * 4
    assert f"| short_captions | {' | '.join(cells)} |" in markdown
    html = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert all(f"segment part-{index}" in html for index in range(len(order)))
    assert f"--part-{len(order) - 1}:" in html


def test_time_is_shared_out_run_by_run() -> None:
    """A run that was not done has no times, and one that took longer counts no more than the others."""
    splits = [{"tokenizer": 1.0, "forward": 3.0}, {"tokenizer": 30.0, "forward": 10.0}, {}]
    results = example()
    runs = [run.model_copy(update={"time_split": s}) for run, s in zip(results.arms[0].runs, splits, strict=True)]
    assert numbers.time_shares(results.arms[0].model_copy(update={"runs": runs})) == {"tokenizer": 0.5, "forward": 0.5}


APART = "another space: it is measured elsewhere"


def apart(results: StudyResults, arm: str, metric: str) -> StudyResults:
    """As a study's results are where an arm cannot be compared on a metric."""

    def without(one: Arm) -> Arm:
        if one.name != arm:
            return one
        kept = {name: row for name, row in one.comparisons.items() if name != metric}
        return one.model_copy(update={"comparisons": kept, "incomparable": {metric: APART}})

    trends = [
        trend.model_copy(update={"comparison": None, "effects": {}, "undefined": APART})
        if (trend.arm, trend.metric) == (arm, metric)
        else trend
        for trend in results.trends
    ]
    return results.model_copy(update={"arms": [without(one) for one in results.arms], "trends": trends})


@pytest.mark.parametrize("seeds", [(0, 1, 2), (0,)])
def test_what_cannot_be_compared_has_a_reason_and_no_difference(seeds: tuple[int, ...], tmp_path: Path) -> None:
    shown = apart(example(seeds), "short_captions", "fd_scenes")
    draw_previews(shown, tmp_path)
    page, markdown = _page(shown, tmp_path), (tmp_path / "report.md").read_text(encoding="utf-8")
    assert re.search(rf"– not comparable FD \(scenes\) ↓ 1\d\.\d+ {APART}", _answer_rows(tmp_path)["short_captions"])
    assert APART in page.text and f"not comparable: {APART}" in markdown
    assert f"Not compared: FD (scenes) of short_captions ({APART})." in page.text
    assert "not comparable (another space)" in markdown
    assert re.search(r"not comparable:\s+another", _shown(shown))
    assert "incomplete" not in markdown and "not measured" not in page.text
    assert read_results_file(tmp_path / "results.json") == shown


def test_figures_leave_out_what_has_another_scale(results: StudyResults, tmp_path: Path) -> None:
    draw_previews(results, tmp_path)
    for metric, figure in (("scene_accuracy", "Quality against speed"), ("scene_accuracy", "The parts of a metric")):
        html = write_report(apart(results, "short_captions", metric), tmp_path).read_text(encoding="utf-8")
        begin = html.index("<svg", html.index(f">{figure}"))
        part = html[begin : html.index("</svg>", begin)]
        assert "uniform_time" in part and "short_captions" not in part
    assert "Left out: short_captions (another space)." in html


def test_a_trend_of_what_cannot_be_compared_is_not_defined(fine_and_coarse: StudyResults, tmp_path: Path) -> None:
    shown = apart(fine_and_coarse, "short_captions", "fd_scenes")
    trend = next(one for one in shown.trends if (one.arm, one.metric) == ("short_captions", "fd_scenes"))
    assert numbers.trend_verdict(trend) == "not defined"
    page = _page(shown, tmp_path)
    assert f"Not defined: {APART}." in page.text
    assert f"Not compared: FD (scenes) of short_captions ({APART})." in page.text


def asked(results: StudyResults, *also: dict[str, Any]) -> StudyResults:
    return results.model_copy(update={"protocol": {**results.protocol, "also": list(also)}})


SHORT = {"name": "short", "prompts": "short"}


def test_each_kind_of_prompt_stands_beside_the_other_where_arms_read_other_captions(
    results: StudyResults, folder: Path
) -> None:
    page, text = (folder / "report.html").read_text(), (folder / "report.md").read_text()
    section = page[page.index('<div id="prompts">') : page.index('<div id="differences">')]
    comparisons = next(arm for arm in results.arms if arm.name == "short_captions").comparisons
    rows = section[section.index("<tbody>") : section.index("</tbody>")].split("<tr>")
    row = next(row for row in rows if "short_captions" in row)
    for metric, verdict in (("scene_accuracy", "worse"), ("scene_accuracy_short", "undecided")):
        assert comparisons[metric].verdict == verdict
        (own,) = [one for one in results.rows() if (one.arm, one.metric.name) == ("short_captions", metric)]
        assert own.mean in row and own.interval in row and f'title="{verdict}"' in row
    assert "long prompts" in section and "short prompts" in section and "<svg" in section
    assert section.count("<table") == 1  # the other metrics are taken on one kind
    assert "| Metric | Arm | long prompts | short prompts |" in text
    assert "One kind of prompt" not in page and "only, though" not in text


def test_a_study_of_captions_that_asks_for_one_kind_of_prompt_says_so(results: StudyResults, tmp_path: Path) -> None:
    write_report(asked(results), tmp_path)
    for name in ("report.html", "report.md"):
        said = (tmp_path / name).read_text()
        assert "Scored on long prompts only, though short_captions reads other captions than the baseline" in said
        assert "By prompts" not in said


def test_other_studies_say_nothing_of_prompts(results: StudyResults) -> None:
    others = [arm for arm in results.arms if arm.name != "short_captions"]
    plain = results.model_copy(update={"arms": others})
    assert metrics_by_prompts(plain) == [] and noted(asked(plain), "one_kind_of_prompt") == ""
    dropped = [Change(key="captions.dropout", before=0.1, after=0.2)]
    renamed = plain.model_copy(update={"arms": [*others, others[-1].model_copy(update={"changes": dropped})]})
    assert noted(asked(renamed), "one_kind_of_prompt") == ""


def test_prompts_that_are_sampled_otherwise_are_not_set_beside(results: StudyResults) -> None:
    """The difference would be that of the guidance too; but they were asked for."""
    other = asked(results, {**SHORT, "guidance": {"kind": "classifier-free", "scale": 1.0}})
    assert metrics_by_prompts(other) == [] and noted(other, "one_kind_of_prompt") == ""
    assert metrics_by_prompts(asked(results, SHORT)) != []


def test_prompts_that_no_metric_is_taken_on_are_not_scored(results: StudyResults) -> None:
    """A store's short prompts, sampled without distances and without an encoder that reads text."""
    without = [metric for metric in results.metrics if metric.name != "scene_accuracy_short"]
    assert "only, though" in noted(results.model_copy(update={"metrics": without}), "one_kind_of_prompt")


def test_in_a_scatter_of_one_metric_both_axes_run_to_the_better() -> None:
    clouds = [charts.Series("a", "arm-0", [(1.0, 1.0)]), charts.Series("b", "arm-1", [(2.0, 2.0)])]

    def places(*, lower: bool, same: bool) -> list[tuple[float, float]]:
        drawn = str(charts.scatter(clouds, "x", "y", lower, same_across=same))
        means = [tag for tag in re.findall(r"<circle[^>]*>", drawn) if 'class="mean"' in tag]
        return [(float(re.findall(r'cx="([^"]+)', tag)[0]), float(re.findall(r'cy="([^"]+)', tag)[0])) for tag in means]

    for lower, same, right, up in ((True, True, 0, 0), (False, True, 1, 1), (True, False, 1, 0)):
        ends = places(lower=lower, same=same)
        assert max(range(2), key=lambda i: ends[i][0]) == right
        assert min(range(2), key=lambda i: ends[i][1]) == up


@pytest.mark.promise(27)
def test_a_cell_of_the_csv_is_never_a_formula(promise: Promise) -> None:
    """Name an arm and a resolution as formulas, and read the sheet: no cell of text begins as one."""
    cases = {start: f"'{start}" for start in ("=", "+", "-", "@", "\t", "\n", "＝")} | {"\r=": r"\r=", "a\r=": r"a\r="}
    for start, shown in cases.items():
        results = example()
        arm = results.arms[1].model_copy(update={"name": f"{start}HYPERLINK(1)"})
        named = results.model_copy(update={"arms": [results.arms[0], arm, *results.arms[2:]]})
        cells = [cell for row in csv.reader(io.StringIO(to_csv(named), newline="")) for cell in row]
        texts = [cell for cell in cells if "HYPERLINK" in cell]
        promise.count(bool(texts) and all(cell == f"{shown}HYPERLINK(1)" for cell in texts), repr(start))


@pytest.mark.promise(27, control="cells as they are")
def test_control_without_quotes_a_cell_is_a_formula(promise: Promise, monkeypatch: pytest.MonkeyPatch) -> None:
    """Write an arm that is a formula without the quote."""
    monkeypatch.setattr(report, "_cell", lambda value: value)
    results = example()
    arm = results.arms[1].model_copy(update={"name": "=HYPERLINK(1)"})
    sheet = to_csv(results.model_copy(update={"arms": [results.arms[0], arm, *results.arms[2:]]}))
    promise.count("\n=HYPERLINK" not in sheet, "=")


def test_numbers_of_the_csv_stay_numbers() -> None:
    rows = list(csv.DictReader(io.StringIO(to_csv(example()))))
    assert all(not row["value"] or float(row["value"]) is not None for row in rows)
