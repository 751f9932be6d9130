from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import binom
from typer.testing import CliRunner

from tests.studies import noted
from tests.tiny import TINY
from tests.written_runs import METRIC, Writer, written_runs
from tintype.cli import app
from tintype.errors import UserError
from tintype.runtime.files import write_checked
from tintype.runtime.machine import choose_device, environment
from tintype.study.costs import seconds_here
from tintype.study.lab import StudyOutcome, replicate_from, replicate_study, report_study, run_study
from tintype.study.notes import outcome_words
from tintype.study.replicate import (
    Claim,
    Claimed,
    claims_of,
    fresh_seeds,
    judge,
    judge_interval,
    pool,
    read_replication,
    replicated,
)
from tintype.study.report import findings
from tintype.study.results import Comparison, Interval, Outcome, Run, StudyResults, Verdict, read_results_file
from tintype.study.stats.cells import RAW, Cells
from tintype.study.stats.contrast import Key, against
from tintype.study.stats.estimate import estimate
from tintype.study.study import load_study

STUDY = """
question: Does it pay?
recipe: PLAN
seeds: [0, 1, 2, 3]
control_seeds: [10000, 10001, 10002, 10003]
arms:
  - {name: strong, set: [optimizer.lr=0.01]}
  - {name: nothing, set: [optimizer.lr=0.03]}
primary: [validation_loss]
evaluation: {count: 8, also: [], reference_count: 8, validation_count: 2, metrics: [], sampler: {steps: 1}}
"""


def made_study(folder: Path, effect: float = -20.0) -> Path:
    (folder / "plan.yaml").write_text(TINY)
    (folder / "study.yaml").write_text(STUDY.replace("PLAN", str(folder / "plan.yaml")))
    with written_runs(Writer({"strong": effect})):
        run_study(load_study(str(folder / "study.yaml")), folder / "out", 1)
    return folder / "out"


def replicate(out: Path, writer: Writer, count: int = 8) -> StudyOutcome:
    with written_runs(writer):
        return replicate_study(out, count, 1)


def words_of(results: StudyResults, arm: str = "strong") -> str:
    return next(row.replicated for row in results.rows() if (row.arm, row.metric.name) == (arm, METRIC))


@pytest.mark.parametrize(
    ("effect", "outcome"), [(-20.0, "holds"), (-4.0, "holds"), (0.0, "contradicted"), (20.0, "contradicted")]
)
def test_a_verdict_is_held_against_fresh_seeds(tmp_path: Path, effect: float, outcome: str) -> None:
    """The first runs differ by 20 deviations, the fresh ones by the effect of the case."""
    out = made_study(tmp_path)
    assert words_of(read_results_file(out / "results.json")) == "not replicated"
    writer = Writer({"strong": effect})
    replicate(out, writer)
    assert {arm for arm, _ in writer.begun} == {"baseline", "strong"}, "only arms with a verdict, and the baseline"
    assert {seed for _, seed in writer.begun} == set(range(10_004, 10_012)), "seeds that the study never used"
    results = read_results_file(out / "results.json")
    assert words_of(results) == f"replicated on 8 fresh seeds: {outcome}"
    assert words_of(results, "nothing") == ""
    for file in ("report.html", "report.md"):
        assert f"replicated on 8 fresh seeds: {outcome}" in (out / file).read_text()
        assert ("Fresh seeds contradict a verdict" in (out / file).read_text()) == (outcome == "contradicted")


def test_first_fresh_and_pooled_are_side_by_side(tmp_path: Path) -> None:
    out = made_study(tmp_path)
    replicate(out, Writer({"strong": -18.0}))
    results = read_results_file(out / "results.json")
    assert results.replication is not None
    (row,) = results.replication.rows
    assert row.fresh is not None and row.pooled is not None and row.level == 0.9
    assert row.first.value < row.pooled.value < row.fresh.value
    (cells,) = findings.replication_rows(results)
    assert cells[:3] == ["strong", "validation loss", "better"] and cells[-1] == "holds"
    for text in ((out / "report.html").read_text(), (out / "report.md").read_text()):
        for cell in cells[3:6]:
            assert cell.replace("\u00a0", " ") in text.replace("\u00a0", " ").replace("\\", "")
    shown = CliRunner().invoke(app, ["report", str(out)]).output
    assert all(cell.split()[0] in shown for cell in cells[3:6]), "the terminal may break a cell into lines"


def test_a_dry_run_shows_the_verdicts_the_fresh_seeds_and_the_time(tmp_path: Path) -> None:
    out = made_study(tmp_path)
    before = {file: file.read_bytes() for file in out.rglob("*") if file.is_file()}
    shown = CliRunner().invoke(app, ["replicate", str(out), "--seeds", "8", "--dry-run"])
    assert shown.exit_code == 0, shown.output
    text = " ".join(shown.output.split())
    assert "strong" in text and "fresh seeds: 10004 to 10011, for baseline; strong" in text
    assert "16 runs, about" in text and "how the time was found" in text
    assert {file: file.read_bytes() for file in out.rglob("*") if file.is_file()} == before


def test_seconds_of_past_runs_count_on_the_same_kind_of_device_only(tmp_path: Path) -> None:
    results = read_results_file(made_study(tmp_path) / "results.json")
    here = str(environment(choose_device("auto"))["device"])

    def on(device: str) -> StudyResults:
        def moved(run: Run) -> Run:
            return run.model_copy(update={"environment": {**run.environment, "device": device}, "train_s": 3.0})

        arms = [arm.model_copy(update={"runs": [moved(run) for run in arm.runs]}) for arm in results.arms]
        return results.model_copy(update={"arms": arms})

    found = seconds_here(on(here))
    assert found is not None and found.seconds.of("strong") >= 3 and here in found.words
    assert seconds_here(on("another")) is None


def test_a_replication_that_was_stopped_resumes_with_the_same_seeds(tmp_path: Path) -> None:
    out, writer = made_study(tmp_path), Writer({"strong": -20.0}, stop_after=5)
    assert replicate(out, writer).interrupted
    assert read_replication(out) is None
    writer.stop_after = None
    replicate(out, writer)
    assert len(writer.begun) == len(set(writer.begun)) == 16
    report_study(out)
    assert words_of(read_results_file(out / "results.json")).endswith("holds")


def test_more_seeds_after_reading_are_refused(tmp_path: Path) -> None:
    out = made_study(tmp_path)
    replicate(out, Writer({"strong": -20.0}))
    with pytest.raises(UserError, match="was replicated on 8 fresh seeds"):
        replicate(out, Writer({"strong": -20.0}), 12)


def test_a_replication_that_was_moved_away_is_made_on_other_seeds(tmp_path: Path) -> None:
    """The message above names this way, and seeds that were read are not fresh."""
    out, writer = made_study(tmp_path), Writer({"strong": -20.0})
    replicate(out, writer)
    shutil.move(out / "replication", tmp_path / "before")
    again = Writer({"strong": -20.0})
    replicate(out, again, 12)
    assert len(again.begun) == 24 and not set(again.begun) & set(writer.begun)


def test_a_study_of_which_only_the_results_are_left_can_be_replicated(tmp_path: Path) -> None:
    out = made_study(tmp_path)
    shutil.rmtree(out / "runs")
    replicate(out, Writer({"strong": -20.0}))
    results = read_results_file(out / "results.json")
    assert words_of(results) == "replicated on 8 fresh seeds: holds"
    assert len(results.arms[0].runs) == 4
    assert "replicated on 8 fresh seeds: holds" in (out / "report.md").read_text()


def test_nothing_is_run_where_there_is_no_verdict(tmp_path: Path) -> None:
    out, writer = made_study(tmp_path, effect=0.0), Writer()
    with pytest.raises(UserError, match="no verdict of better, worse or same, so there is nothing to replicate"):
        replicate(out, writer)
    assert not writer.begun


def test_a_folder_without_results_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"has no study\.yaml; give the folder of a study"):
        replicate_study(tmp_path, 8, 1)


def test_fresh_seeds_were_never_used() -> None:
    assert fresh_seeds([0, 10_000, 10_002], 3) == [10_001, 10_003, 10_004]


def fresh(low: float | None, high: float | None, verdict: Verdict = "better") -> Comparison:
    return Comparison(
        mean=1, baseline_mean=1, differences=[0.0], difference=0.0, low=low, high=high, verdict=verdict, margin=0.1
    )


@pytest.mark.parametrize(
    ("verdict", "estimate", "row", "outcome"),
    [
        ("better", -0.5, fresh(-0.6, -0.2), "holds"),
        ("better", -0.5, fresh(-0.9, -0.6), "holds"),
        ("better", -0.5, fresh(-0.2, -0.1), "holds"),
        ("better", -0.5, fresh(-0.6, 0.1, "undecided"), "open"),
        ("better", -0.5, fresh(-0.25, 0.1, "undecided"), "open"),
        ("better", -0.5, fresh(-0.24, 0.1, "undecided"), "contradicted"),
        ("better", -0.5, fresh(-0.1, 0.1, "same"), "contradicted"),
        ("better", -0.5, fresh(0.2, 0.6, "worse"), "contradicted"),
        ("worse", 0.5, fresh(0.2, 0.6, "worse"), "holds"),
        ("worse", 0.5, fresh(-0.1, 0.3, "undecided"), "open"),
        ("worse", 0.5, fresh(-0.1, 0.2, "undecided"), "contradicted"),
        ("worse", 0.5, fresh(0.2, 0.6, "unstable"), "holds"),
        ("worse", 0.5, fresh(0.2, 0.6, "diverged"), "open"),
        ("worse", 0.5, fresh(None, None, "sketch"), "open"),
        ("worse", 0.5, fresh(None, None, "failed"), "incomplete"),
        ("worse", 0.5, fresh(None, None, "incomplete"), "incomplete"),
        ("worse", 0.5, None, "incomplete"),
        ("same", 0.0, fresh(-0.05, 0.05, "same"), "holds"),
        ("same", 0.0, fresh(-0.05, 0.2, "undecided"), "open"),
        ("same", 0.0, fresh(0.2, 0.3, "worse"), "contradicted"),
        ("same", 0.0, fresh(None, None, "identical"), "holds"),
        ("better", -0.5, fresh(None, None, "identical"), "contradicted"),
        ("better", -0.5, fresh(None, None, "no spread").model_copy(update={"difference": -0.5}), "holds"),
    ],
)
def test_holds_open_and_contradicted(
    verdict: Claimed, estimate: float, row: Comparison | None, outcome: Outcome
) -> None:
    assert judge(claimed(verdict, estimate), row) == outcome


def claimed(verdict: Claimed, estimate: float) -> Claim:
    return Claim(Key("arm", "metric"), verdict, Interval(value=estimate), 0.1)


@pytest.mark.parametrize(
    ("difference", "reach", "needed"),
    [
        (-0.3, 0.6, 17),  # of 4 seeds: the near end passes zero where the reach is half as long
        (0.0, 0.5, 17),  # the far end is short of a quarter where the reach is half as long
        (-0.001, 0.26, 5),
        (-0.25, 4.0, None),  # the far end stays beyond half of the first estimate: (4 / 0.25)² · 4 = 1024 seeds
    ],
)
def test_an_open_verdict_says_how_many_seeds_would_settle_it(
    difference: float, reach: float, needed: int | None
) -> None:
    row = fresh(difference - reach, difference + reach, "undecided")
    row = row.model_copy(update={"difference": difference, "differences": [difference] * 4, "level": 0.9})
    found = replicated(claimed("better", -0.5), row)
    assert (found.outcome, found.seeds_needed) == ("open", needed)
    words = f"open, {needed or 'more than 1,000'} fresh seeds would settle it"
    assert outcome_words(found) == words


def test_the_pooled_estimate_weighs_by_precision() -> None:
    """Standard errors of 1 and 0.5 weigh 1 and 4, whatever the confidence that each interval has."""
    first = Interval(value=5.0, low=5 - 1.959964, high=5 + 1.959964)
    second = Interval(value=0.0, low=-0.5 * 1.644854, high=0.5 * 1.644854)
    pooled = pool(first, 0.95, second, 0.9)
    assert pooled is not None and pooled.low is not None and pooled.high is not None
    assert pooled.value == pytest.approx(1.0)
    assert (pooled.high - pooled.value, pooled.value - pooled.low) == pytest.approx([1.959964 / 5**0.5] * 2)
    assert pool(Interval(value=5.0), 0.95, second, 0.9) is None
    assert pool(first, 0.95, Interval(value=0.0, low=0.0, high=0.0), 0.9) is None


def test_runs_that_diverged_or_collapsed_are_counted() -> None:
    lost = fresh(-0.6, -0.2, "diverged").model_copy(update={"lost": "diverged 1 of 4", "level": 0.9})
    found = replicated(claimed("better", -0.5), lost)
    assert (found.outcome, found.fresh, found.pooled) == ("open", None, None)
    assert outcome_words(found) == "open (diverged 1 of 4)"
    update = {"collapsed": [3], "healthy_verdict": "better", "level": 0.9, "differences": [-0.4] * 4}
    found = replicated(claimed("better", -0.5), fresh(-0.6, -0.2, "unstable").model_copy(update=update))
    assert outcome_words(found) == "holds (better; 1 of 4 runs collapsed)"


def test_a_true_effect_of_two_deviations_holds_on_five_fresh_seeds() -> None:
    """Claims of 5 seeds, corrected for selection, against 5 fresh ones: few are open, next to none contradicted."""
    random, contrast, outcomes = np.random.default_rng(0), against("arm", "baseline"), list[Outcome]()
    for _ in range(2000):
        first, second = (
            estimate(
                Cells(
                    {
                        "baseline": dict(enumerate(random.normal(size=5))),
                        "arm": dict(enumerate(2 + random.normal(size=5))),
                    },
                    RAW,
                ),
                contrast,
                level,
            )
            for level in (0.95, 0.9)
        )
        if first.interval is not None and second.interval is not None and first.says(0.0) == "above":
            assert first.corrected is not None
            outcomes.append(judge_interval("worse", first.corrected[0], *second.interval, 0.0))
    claims = len(outcomes)
    assert claims > 1000
    assert binom.cdf(outcomes.count("contradicted"), claims, 0.01) < 0.001, "less than 1%, not by luck"
    assert binom.sf(outcomes.count("holds") - 1, claims, 0.8) < 0.001, "more than 80%, not by luck"


def test_the_corrected_estimate_is_what_has_to_be_reached(tmp_path: Path) -> None:
    results = read_results_file(made_study(tmp_path) / "results.json")
    (claim,) = claims_of(results)
    row = results.arms[2].comparisons[METRIC]
    corrected = row.model_copy(update={"corrected": Interval(value=row.difference / 2)})
    arm = results.arms[2].model_copy(update={"comparisons": {METRIC: corrected}})
    (shrunk,) = claims_of(results.model_copy(update={"arms": [*results.arms[:2], arm]}))
    assert shrunk.first.value == pytest.approx(row.difference / 2)
    assert claim.key == shrunk.key == Key("strong", METRIC)


def test_arms_of_a_factorial_study_are_replicated_without_their_contrasts(tmp_path: Path) -> None:
    (tmp_path / "plan.yaml").write_text(TINY)
    text = STUDY.replace("PLAN", str(tmp_path / "plan.yaml")).split("arms:")
    factors = "factorial: [[optimizer.lr=0.01], [train.clip_norm=2.0]]\nprimary:" + text[1].split("primary:")[1]
    (tmp_path / "study.yaml").write_text(text[0] + factors)
    study = load_study(str(tmp_path / "study.yaml"))
    effects = {arm.name: -20.0 for arm in study.arms if arm.role == "arm"}
    with written_runs(Writer(effects)):
        run_study(study, tmp_path / "out", 1)
    replicate(tmp_path / "out", Writer(effects))
    made = read_replication(tmp_path / "out")
    assert made is not None
    assert {row.arm: row.outcome for row in made.rows} == dict.fromkeys(effects, "holds")


def test_the_note_counts_outcomes_in_plain_words(tmp_path: Path) -> None:
    out = made_study(tmp_path)
    replicate(out, Writer({"strong": -20.0}))
    results = read_results_file(out / "results.json")
    assert results.replication is not None
    row = results.replication.rows[0]
    rows = [row, row, row.model_copy(update={"outcome": "contradicted"})]
    several = results.model_copy(update={"replication": results.replication.model_copy(update={"rows": rows})})
    assert "3 verdicts were replicated on 8 fresh seeds: 2 hold and 1 is contradicted." in noted(
        several, "contradicted"
    )
    assert noted(results, "replicated") == "1 verdict was replicated on 8 fresh seeds: 1 holds."


def another(folder: Path, *settings: str, effect: float = -20.0, name: str = "other") -> Path:
    """Make a study of the same plans, on other seeds and with other names of the arms unless they are given."""
    with written_runs(Writer({"strong": effect})):
        seeds = ("seeds=[50,51,52,53]", "control_seeds=[2,61,62,63]")
        run_study(load_study(str(folder / "study.yaml"), [*seeds, *settings]), folder / name, 1)
    return folder / name


@pytest.mark.parametrize(("effect", "outcome"), [(-20.0, "holds"), (20.0, "contradicted")])
def test_a_finished_study_replicates_another(tmp_path: Path, effect: float, outcome: str) -> None:
    out, other = made_study(tmp_path), another(tmp_path, effect=effect)
    before = sorted(out.rglob("*"))
    shown = CliRunner().invoke(app, ["replicate", str(out), "--from", str(other), "--dry-run"])
    assert "fresh seeds of other: 50 to 53, for baseline; strong" in " ".join(shown.output.split()), shown.output
    assert sorted(out.rglob("*")) == before
    replicate_from(out, other)
    results = read_results_file(out / "results.json")
    assert results.replication is not None and results.replication == read_replication(out)
    assert results.replication.source == "other" and results.replication.seeds == [50, 51, 52, 53]
    assert words_of(results) == f"replicated on 4 fresh seeds of other: {outcome}"
    assert f"on 4 fresh seeds of other: {outcome}" in (out / "report.md").read_text()
    with pytest.raises(UserError, match="was replicated already, on 4 fresh seeds"):
        replicate_from(out, other)
    with pytest.raises(UserError, match="was replicated on 4 fresh seeds of other"):
        replicate(out, Writer({"strong": -20.0}), 4)


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        (("set=[train.warmup_steps=1]",), "no run of this study's baseline"),
        (("evaluation.sampler.steps=2",), "was scored by another protocol"),
        (("arms=[{name: weak, set: [optimizer.lr=0.02]}]",), "none of the arms that have a verdict here"),
        (("seeds=[0,1,2,3]", "control_seeds=[]"), "fewer than two seeds that this study never used"),
    ],
)
def test_studies_that_replicate_nothing_are_refused(tmp_path: Path, settings: tuple[str, ...], problem: str) -> None:
    out = made_study(tmp_path)
    with pytest.raises(UserError, match=problem):
        replicate_from(out, another(tmp_path, *settings))
    assert read_replication(out) is None


def test_arms_that_the_other_study_lacks_keep_their_verdicts_as_they_are(tmp_path: Path) -> None:
    made_study(tmp_path)
    out = tmp_path / "two"
    with written_runs(Writer({"strong": -20.0, "nothing": 20.0})):
        run_study(load_study(str(tmp_path / "study.yaml"), ["seeds=[70,71,72,73]", "control_seeds=[]"]), out, 1)
    replicate_from(out, another(tmp_path, "arms=[{name: renamed, set: [optimizer.lr=0.01]}]"))
    results = read_results_file(out / "results.json")
    assert "fresh seeds of other" in words_of(results) and words_of(results, "nothing") == "not replicated"


def test_a_study_that_is_not_finished_or_of_other_numerics_replicates_nothing(tmp_path: Path) -> None:
    out, other = made_study(tmp_path), another(tmp_path)
    content = json.loads((other / "results.json").read_text())
    del content["checksum"]
    write_checked(other / "results.json", {**content, "numerics": 7})
    with pytest.raises(UserError, match=r"NUMERICS 7, here it is 1"):
        replicate_from(out, other)
    content["arms"][0]["runs"][0]["state"] = "missing"
    write_checked(other / "results.json", content)
    with pytest.raises(UserError, match="1 runs of that study are missing"):
        replicate_from(out, other)
