"""Margins: differences that are none worth having, by metric, and whether the planned seeds can reach them."""

from __future__ import annotations

from pathlib import Path

from tests.studies import noted
from tests.unit.study.plain_rows import rows_of, runs_of
from tests.unit.study.test_adaptive import study_with
from tests.unit.study.test_power import STUDIES, row, shown
from tests.written_runs import METRIC, Writer, written_runs
from tintype.metrics.memorisation import OWN
from tintype.study.advice import margins_out_of_reach
from tintype.study.analysis import AnalysisSettings
from tintype.study.lab import run_study
from tintype.study.method import margin_list
from tintype.study.power import plan_power
from tintype.study.results import MetricInfo, StudyResults
from tintype.study.runs import metric_infos

LOSS = MetricInfo(name="m", label="M", direction="lower", definition="", primary=True)
TIGHT = {"baseline": [1.0, 1.001, 0.999, 1.0005], "a": [0.99, 0.991, 0.989, 0.9905]}
FIXED = "seeds=[0, 1, 2, 3]"


def verdict(meaning: MetricInfo, analysis: AnalysisSettings | None = None) -> str:
    sets = {name: runs_of(values) for name, values in TIGHT.items()}
    return rows_of(sets, meaning, analysis=analysis or AnalysisSettings())["a"].verdict


def test_the_margin_is_the_studys_for_the_metric_or_for_all_or_the_metrics_own() -> None:
    own = LOSS.model_copy(update={"margin": "0.5%"})
    assert (verdict(LOSS), verdict(own)) == ("same", "better"), "3% where results record none"
    assert verdict(own, AnalysisSettings(margin="2%")) == "same"
    assert verdict(own, AnalysisSettings(margin="2%", margins={"m": "0.001"})) == "better"


def test_a_share_that_is_near_zero_has_a_margin_in_its_unit(tmp_path: Path) -> None:
    assert OWN.margin == "0.01"
    infos = metric_infos(study_with(tmp_path, FIXED, "analysis={margins: {validation_loss: 1%}}"))
    assert infos[METRIC].margin == "1%", "the results name the margin that was used"


def test_the_method_names_the_margins_that_are_not_the_usual_one() -> None:
    infos = {name: LOSS.model_copy(update={"name": name}) for name in ("a", "b", "c")}
    infos["c"] = infos["c"].model_copy(update={"margin": "0.01"})
    assert margin_list(AnalysisSettings(), infos) == "3%, 0.01 of c"
    assert margin_list(AnalysisSettings(margin="5%", margins={"a": "1%"}), infos) == "5%, 1% of a"


def test_power_says_whether_the_margin_can_be_reached() -> None:
    few, many = (plan_power([STUDIES], "5%", seeds, "scene_accuracy", 3) for seeds in (3, 8))
    found = row(many, "scene_accuracy")
    assert found.same is not None and found.same_seeds is not None
    assert found.same[0] >= 0.8 and found.same_seeds[0] == 8 and row(few, "scene_accuracy").same_seeds[0] == 8  # type: ignore[index]
    assert "scene_accuracy: 8 seeds are enough to call arms the same within the margin of 3%" in shown(many)
    distance = plan_power([STUDIES], "5%", 3, "fd_scenes", 3)
    assert "fd_scenes: the margin of 3% cannot be reached with 3 seeds; it takes " in shown(distance)


def run(folder: Path, *assignments: str) -> StudyResults:
    with written_runs(Writer({"strong": -10.0})):
        outcome = run_study(study_with(folder, FIXED, *assignments), folder / "out", 1)
    assert outcome.report is not None
    return outcome.report.results


def test_a_margin_out_of_reach_is_said_after_the_runs_and_before_the_next(tmp_path: Path) -> None:
    results = run(tmp_path)
    needed = results.arms[2].comparisons[METRIC].margin_seeds
    note = noted(results, "margins")
    assert note.startswith("The margin of 3% could not be reached with 4 seeds: it needs about ")
    assert needed is not None and needed > 20
    (note,) = margins_out_of_reach(study_with(tmp_path, FIXED), [tmp_path / "out", tmp_path / "nothing"])
    assert note.startswith(f"{METRIC}: the margin of 3% cannot be reached with 4 seeds; it takes ")
    wide = study_with(tmp_path, FIXED, "analysis={margin: 90%}")
    assert margins_out_of_reach(wide, [tmp_path / "out"]) == [], "a margin that can be reached is not mentioned"


def test_a_margin_within_reach_is_not_mentioned(tmp_path: Path) -> None:
    assert noted(run(tmp_path, "analysis={margin: 90%}"), "margins") == ""


def test_the_spread_of_another_baseline_says_nothing(tmp_path: Path) -> None:
    run(tmp_path)
    assert margins_out_of_reach(study_with(tmp_path, FIXED, "set=[optimizer.lr=0.1]"), [tmp_path / "out"]) == []


def test_results_that_recorded_no_margin_stay_as_they_are() -> None:
    stored = StudyResults.model_validate_json((STUDIES / "results.json").read_text(encoding="utf-8"))
    assert noted(stored, "margins") == ""
    assert not [one for one in stored.dump()["metrics"] if "margin" in one]
