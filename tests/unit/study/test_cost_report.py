"""The cost of arms in a report: steps and memory that were measured alone on a GPU, and runs that ran out of memory."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from tests.studies import noted
from tests.unit.study.example_results import draw_previews, example, several, with_scores_along
from tests.unit.study.test_adaptive import study_with
from tests.unit.study.test_work import work
from tests.written_runs import Writer
from tintype import cli
from tintype.library.studies import Results
from tintype.runtime.files import Json
from tintype.runtime.host import Process
from tintype.runtime.leases import Claim, Leases
from tintype.study.crowded import read_crowded
from tintype.study.lab import prepare_study, report_study
from tintype.study.report import to_csv, write_report
from tintype.study.report.along import note, timing_note
from tintype.study.report.markdown import to_markdown
from tintype.study.report.view import View, parts_of
from tintype.study.results import SPEED, Alone, Arm, Crowded, StudyResults, read_results_file
from tintype.study.runner import tasks_of
from tintype.study.status import status_of
from tintype.study.worker import LEASES
from tintype.terminal.studies import show_verdicts

GB = 1_000_000_000
STEPS_S = {"baseline": 0.0217, "control": 0.0217, "short_captions": 0.0271, "uniform_time": 0.0215}


def with_alone(results: StudyResults, without: str = "") -> StudyResults:
    """Return the study with steps measured alone, but for one arm, and with runs that shared a GPU."""

    def changed(arm: Arm) -> Arm:
        place, first = [one.name for one in results.arms].index(arm.name), arm.runs[0]
        slow = first.model_copy(update={"metrics": {**first.metrics, SPEED: first.metrics[SPEED] / 3}})
        alone = Alone(
            shape="0123", device="NVIDIA H200", peak_bytes=(10 + place) * GB, step_s=STEPS_S[arm.name], steps=30 + place
        )
        return arm.model_copy(update={"runs": [slow, *arm.runs[1:]], "alone": None if arm.name == without else alone})

    return results.model_copy(update={"arms": [changed(arm) for arm in results.arms]})


@pytest.fixture(scope="module")
def results() -> StudyResults:
    return with_alone(example())


def speeds(results: StudyResults) -> dict[str, str]:
    (parts,) = parts_of(results)
    return {arm.name: View(*parts).speed_words(arm) for arm in results.arms}


def test_the_cost_of_an_arm_is_that_of_a_step_alone_with_its_memory(results: StudyResults) -> None:
    found = speeds(results)
    assert found["baseline"] == "step alone 21.7 ms; 10.0 GB"
    assert found["short_captions"] == "step alone 27.1 ms; +24.9\u00a0% time; 12.0 GB"
    assert noted(results, "speed") == "", "nothing that is shown as the cost comes from shared runs"
    said = noted(results, "cost")
    assert "measured alone on one NVIDIA H200, mean of 30 to 33 steps" in said and "no interval" in said
    assert "images/s differ up to 3.0 times between runs of one plan: they are no cost" in said


def test_an_arm_that_was_not_measured_keeps_the_warning_of_shared_speeds(results: StudyResults) -> None:
    part = with_alone(example(), without="uniform_time")
    assert speeds(part)["uniform_time"] == "not comparable"
    assert speeds(part)["short_captions"] == speeds(results)["short_captions"]
    assert noted(part, "speed") and "Not measured so: uniform_time." in noted(part, "cost")
    base = with_alone(example(), without="baseline")
    assert speeds(base)["short_captions"] == "not comparable; 12.0 GB"


def test_memory_is_shown_without_a_step_time() -> None:
    arms = [
        arm.model_copy(update={"alone": Alone(shape="a", device="NVIDIA H200", peak_bytes=13 * GB)})
        for arm in example().arms
    ]
    found = speeds(example().model_copy(update={"arms": arms}))
    assert found["baseline"].endswith(" images/s; 13.0 GB")
    assert re.fullmatch(r"\+\d+\.\d.% ± \d+\.\d.%; 13\.0 GB", found["short_captions"])


def test_all_forms_of_the_report_show_the_cost(results: StudyResults, tmp_path: Path) -> None:
    draw_previews(results, tmp_path)
    html = write_report(results, tmp_path).read_text()
    text, cost = to_markdown(results), "step alone 27.1 ms; +24.9\u00a0% time; 12.0 GB"
    assert f'<span class="summary">{cost}</span>' in html and cost.replace("\u00a0", " ") in text
    assert "| Arm | Step alone | Relative | Steps timed | Peak memory | Host memory |" in text
    assert "steps a second, alone on the device" in html
    console = Console(width=220, record=True, file=io.StringIO())
    show_verdicts(results, console)
    assert cost in console.export_text()
    rows = list(csv.DictReader(io.StringIO(to_csv(results))))
    assert {row["step_alone_s"] for row in rows if row["arm"] == "short_captions"} == {"0.0271"}
    assert read_results_file(tmp_path / "results.json") == results
    costs = Results(tmp_path, results).costs()
    assert [row["relative"] for row in costs][:2] == [1.0, 1.0] and costs[2]["peak_bytes"] == 12 * GB


def test_a_study_of_which_nothing_was_measured_has_no_trace_of_it(tmp_path: Path) -> None:
    dumped, text = example().dump(), to_markdown(example())
    assert not any("alone" in arm for arm in dumped["arms"]) and "crowded" not in dumped
    assert "Step alone" not in text and "step_alone_s" not in to_csv(example())


def test_each_resolution_has_a_baseline_of_its_own(tmp_path: Path) -> None:
    text = to_markdown(with_alone(several()))
    assert text.count("step alone 21.7 ms;") == 4 and "| coarse | 64 | short_captions | 27.1 ms |" in text


def test_time_along_training_is_that_of_steps_alone_where_all_arms_were_timed() -> None:
    before, after = with_scores_along(example()), with_scores_along(with_alone(example()))
    (old, *_), (new, *_) = before.along, after.along
    assert old.target_seconds == pytest.approx(180.0)
    assert new.target_seconds == pytest.approx(1500 * 0.0217)
    arm = next(one for one in after.along if one.arm == "short_captions")
    assert arm.equal_time.step == pytest.approx(1500 * 0.0217 / 0.0271)
    assert "steps times the seconds of a step measured alone" in note(after) and "clock" not in note(after)
    assert "those of the steps themselves" in note(before) and timing_note(after) == ""
    part = with_scores_along(with_alone(example(), without="uniform_time"))
    assert part.along[0].target_seconds == pytest.approx(180.0)


def test_runs_that_ran_out_of_memory_are_counted_in_the_report_and_the_status(tmp_path: Path) -> None:
    study, out = study_with(tmp_path, "seeds=[0, 1]", "arms=[]"), tmp_path / "out"
    prepare_study(study, out)
    first, second = tasks_of(study, out)
    leases = Leases(out / LEASES)
    for number, state in enumerate(("crowded", "died", "crowded"), 1):
        about: dict[str, Json] = {"arm": first.arm, "seed": first.plan.seed}
        ended: dict[str, Json] = {"state": state, "text": "it ran out of memory"}
        file = leases.path(first.plan.hash, number)
        assert leases.disk.create(file, Claim(number, Process.this(), about=about, ended=ended).dump(0))
    full = Claim(1, Process.this(), ended={"state": "full", "text": ""})
    assert leases.disk.create(leases.path(second.plan.hash, 1), full.dump(0))
    (waiting, other) = status_of(out).of("waiting")
    assert (waiting.crowded, waiting.deaths, other.crowded) == (2, 1, 0)
    shown = CliRunner().invoke(cli.app, ["status", str(out)]).stdout
    assert f"{first.arm}, seed 0: waiting; its memory ran out, or the GPU failed, twice beside other runs" in shown
    assert read_crowded(out) == [Crowded(arm=first.arm, seed=0, times=2)]
    work(out, Writer())
    found = report_study(out).results
    assert found.crowded == [Crowded(arm=first.arm, seed=0, times=2)]
    assert json.loads((out / "results.json").read_text())["crowded"][0]["times"] == 2
    assert (
        f"Memory ran out, or the GPU failed, twice while runs shared a GPU ({first.arm} seed 0 twice)"
        in (out / "report.md").read_text()
    )
    assert status_of(out).of("done")[0].crowded == 2


def test_the_words_name_each_run_with_its_number() -> None:
    runs = [Crowded(arm="repa", seed=1, times=2), Crowded(arm="tread", seed=0, times=1)]
    assert noted(example().model_copy(update={"crowded": runs}), "crowded") == (
        "Memory ran out, or the GPU failed, 3 times while runs shared a GPU (repa seed 1 twice, tread seed 0); these "
        "runs went back to the queue and resumed from the last checkpoint."
    )
    one = noted(example().model_copy(update={"crowded": runs[1:]}), "crowded")
    assert "(tread seed 0); this run went back" in one and noted(example(), "crowded") == ""
