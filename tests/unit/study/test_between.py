"""Declared comparisons of an arm with another arm."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest
from rich.console import Console

from tests.tiny import TINY
from tests.unit.study.plain_rows import asked_arm, roles_of, rows_of, runs_of
from tests.written_runs import METRIC, Writer, written_runs
from tintype.config.strict import read_yaml
from tintype.errors import UserError
from tintype.library.studies import Results
from tintype.serve.fragments import study_fragments
from tintype.study.adaptive import follow
from tintype.study.compare import compare
from tintype.study.contrasts import Asked, asked_of, between_key, count_comparisons, incomparable, own_key
from tintype.study.effect import Effect
from tintype.study.lab import replicate_study, report_study, run_study
from tintype.study.looks import SeedPlan, planned_looks
from tintype.study.power import PowerPlan
from tintype.study.report.html import to_html
from tintype.study.report.markdown import to_markdown
from tintype.study.results import Comparison, MetricInfo, StudyResults, read_results_file
from tintype.study.runs import metric_infos
from tintype.study.stats.contrast import against
from tintype.study.study import Study, choose_arms, load_study, read_settings, resolve
from tintype.terminal.studies import show_verdicts

TEXT = """
question: Does repa pay on top of muon?
recipe: pocket
seeds: [0, 1, 2]
arms:
  - {name: muon, techniques: [muon]}
  - {name: muon + repa, techniques: [muon], set: [train.clip_norm=2.0]}
compare: [[muon + repa, muon]]
"""
LOSS = MetricInfo(name="m", label="M", direction="lower", definition="", primary=True)


def study(text: str = TEXT) -> Study:
    return resolve("between", read_settings(read_yaml(text, "study.yaml"), Path()))


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        ("[[muon + rep, muon]]", "compare.0: unknown arm 'muon + rep'; did you mean 'muon + repa'?"),
        ("[[muon, muon]]", "compare.0: the arm 'muon' cannot be compared with itself"),
        ("[[muon, baseline]]", "every arm is compared with the baseline without this setting"),
        ("[[control, muon]]", "the control is the baseline with other seeds"),
        ("[[muon + repa, muon], [muon, muon + repa]]", "muon and muon + repa are compared by compare.0 already"),
        ("[[muon]]", "compare.0: give two arms, as [FIRST, SECOND]"),
    ],
)
def test_bad_pairs_are_refused_in_words(pairs: str, message: str) -> None:
    with pytest.raises(UserError) as error:
        study(TEXT.replace("[[muon + repa, muon]]", pairs))
    assert message in str(error.value)


def test_a_pair_is_compared_at_each_resolution_and_only_where_both_arms_are() -> None:
    both = study(TEXT + "resolutions: [{name: coarse, set: [model.patch=8]}, {name: fine, set: [model.patch=2]}]")
    keys = [key for key in asked_of(both, ["scene_accuracy"]) if key.kind == "between"]
    assert keys == [between_key("muon + repa", "muon", one, "scene_accuracy") for one in ("coarse", "fine")]
    assert not [key for key in asked_of(choose_arms(both, ["muon"]), ["scene_accuracy"]) if key.kind == "between"]


def test_factorial_arms_can_be_compared() -> None:
    factorial = "factorial: [[muon], [train.clip_norm=2.0]]"
    text = f"{TEXT.split('arms:')[0]}{factorial}\ncompare: [[muon + train.clip_norm=2.0, muon]]"
    assert [(first.name, second.name) for first, second in study(text).declared()] == [
        ("muon + train.clip_norm=2.0", "muon")
    ]


def test_the_count_of_comparisons_is_that_of_the_study() -> None:
    one = study()
    metrics, primary = metric_infos(one), one.settings.primary
    asked = [key for key in asked_of(one, metrics) if key.metric != "images_per_s"]
    assert count_comparisons(2, False, 1, primary, metrics, between=1).all == len(asked)
    infos = list(metrics.values())
    plans = [PowerPlan(Effect(0.05, True), 3, 2, False, 1, [], [], between) for between in (0, 1)]
    assert [plan.comparisons(infos).all for plan in plans] == [len(asked) * 2 // 3, len(asked)]


def test_two_arms_of_one_other_space_are_compared_with_each_other() -> None:
    """Neither can be compared with the baseline in its validation loss."""
    noisy = TEXT.replace("techniques: [muon]", "techniques: [muon], set: [objective.noise_scale=2.0]").replace(
        "set: [objective.noise_scale=2.0], set: [train", "set: [objective.noise_scale=2.0, train"
    )
    apart = {(key.arm, key.metric) for key in incomparable(study(noisy))}
    assert apart == {("muon", METRIC), ("muon + repa", METRIC)}


def pair(first: str, second: str) -> Asked:
    names = {first: first, second: second}
    return Asked(between_key(first, second, "", "m"), against(first, second), names, [second])


def test_an_arm_against_an_arm_is_the_difference_of_their_means() -> None:
    draw = random.Random(3)
    sets = {
        name: runs_of([10 + shift + draw.gauss(0, 0.1) for _ in range(5)])
        for name, shift in (("baseline", 0.0), ("one", -5.0), ("both", -5.5))
    }
    asked = [asked_arm("one"), asked_arm("both"), pair("both", "one")]
    rows = rows_of(sets, LOSS, asked)
    row = rows["both against one"]
    means = {name: sum(run.metrics["m"] for run in of) / 5 for name, of in sets.items()}
    assert row.difference == pytest.approx(means["both"] - means["one"])
    assert (row.mean, row.baseline_mean) == pytest.approx((means["both"], means["one"]))
    assert row.verdict == "better" and row.low is not None and row.high is not None and row.high < 0
    alone = rows_of(sets, LOSS, asked[:2])
    assert row.level == pytest.approx(1 - 0.05 / 3) and alone["both"].level == pytest.approx(1 - 0.05 / 2)
    assert sum(1 - (one.level or 0) for one in rows.values()) == pytest.approx(0.05), "all share one error"


def test_a_collapsed_run_of_the_second_arm_is_left_out_and_named() -> None:
    sets = {
        "baseline": runs_of([10.0, 10.1, 9.9, 10.05]),
        "one": runs_of([9.0, 9.1, 8.9, 30.0]),
        "both": runs_of([9.0, 9.05, 8.95, 9.1]),
    }
    row = rows_of(sets, LOSS, [pair("both", "one")])["both against one"]
    assert row.baseline_collapsed == [3] and row.collapsed == [] and row.baseline_mean == pytest.approx(9.0)
    assert "0 of 4 runs collapsed; of one's, 1 of 4" in row.note


def test_seeds_that_arms_share_pair_their_runs() -> None:
    draw = random.Random(1)
    luck = [draw.gauss(0, 1) for _ in range(8)]
    sets = {
        "baseline": runs_of([draw.gauss(10, 1) for _ in luck]),
        "one": runs_of([12 + one for one in luck]),
        "both": runs_of([11.0 + one + draw.gauss(0, 0.05) for one in luck]),
    }
    asked = [asked_arm("one"), asked_arm("both"), pair("both", "one")]
    wanted = {one.key: one for one in asked}
    rows = compare({"": roles_of(sets)}, sets, {"m": LOSS}, wanted, ["m"], wanted)
    row = rows[asked[2].key]
    assert row.correlation > 0.9 and row.verdict == "better"


STUDY = """
question: Does it pay?
recipe: PLAN
SEEDS
arms:
  - {name: one, set: [optimizer.lr=0.01]}
  - {name: both, set: [optimizer.lr=0.02]}
compare: [[both, one]]
primary: [validation_loss]
evaluation: {count: 8, also: [], reference_count: 8, validation_count: 2, metrics: [], sampler: {steps: 1}}
"""


def written(folder: Path, seeds: str, writer: Writer, without: str = "") -> StudyResults:
    (folder / "plan.yaml").write_text(TINY)
    text = STUDY.replace("PLAN", str(folder / "plan.yaml")).replace("SEEDS", seeds).replace(without, "")
    (folder / "study.yaml").write_text(text)
    with written_runs(writer):
        outcome = run_study(load_study(str(folder / "study.yaml")), folder / "out", 1)
    assert outcome.report is not None
    return outcome.report.results


FIXED = "seeds: [0, 1, 2, 3]\ncontrol_seeds: [10, 11, 12, 13]"


def test_the_verdict_is_in_every_row_and_is_recomputed(tmp_path: Path) -> None:
    results = written(tmp_path, FIXED, Writer({"one": -10.0, "both": -17.0}))
    (found,) = results.between
    assert found.comparisons[METRIC].verdict == "better"
    assert "between" in results.dump() and "Arms compared with each other" in results.method
    console = Console(record=True, width=200)
    show_verdicts(results, console)
    assert "both against one" in console.export_text()
    assert "both against one" in to_markdown(results) and "both against one" in to_html(results, tmp_path)
    live = study_fragments(
        "out", dict.fromkeys(("baseline", "control", "one", "both"), ""), results=results, folder=tmp_path
    )
    assert "both against one" in live["verdicts"]
    assert [row.arm for row in results.rows() if row.metric.name == METRIC][-1] == "both against one"
    assert Results(tmp_path, results).rows(primary=True)[-1]["verdict"] == "better"
    shutil.rmtree(tmp_path / "out" / "runs")
    before = (tmp_path / "out" / "results.json").read_bytes()
    report_study(tmp_path / "out")
    assert (tmp_path / "out" / "results.json").read_bytes() == before


def test_a_study_without_pairs_has_no_such_key(tmp_path: Path) -> None:
    results = written(tmp_path, FIXED, Writer(), "compare: [[both, one]]\n")
    assert "between" not in results.dump()


def test_a_pair_of_arms_that_were_seen_is_not_declared_later(tmp_path: Path) -> None:
    written(tmp_path, FIXED, Writer(), "compare: [[both, one]]\n")
    with pytest.raises(UserError, match="before both against one was declared"):
        written(tmp_path, FIXED, Writer())


def test_two_arms_get_more_seeds_until_their_comparison_is_decided(tmp_path: Path) -> None:
    """Both differ from the baseline at the first look; from each other only with more seeds."""
    effects, looks = {"one": -20.0, "both": -18.6}, "seeds: {first: 4, most: 16}"
    (tmp_path / "with").mkdir()
    (tmp_path / "without").mkdir()
    more = written(tmp_path / "with", looks, Writer(effects))
    none = written(tmp_path / "without", looks, Writer(effects), "compare: [[both, one]]\n")
    assert {len(arm.runs) for arm in none.arms} == {4}
    row = more.between[0].comparisons[METRIC]
    assert {arm.name: len(arm.runs) for arm in more.arms}["one"] > 4 and row.verdict == "worse" and row.look != 1


def test_an_arm_does_not_wait_for_an_arm_that_has_failed(tmp_path: Path) -> None:
    effects, looks = {"one": -20.0, "both": -18.6}, "seeds: {first: 4, most: 16}"
    results = written(tmp_path, looks, Writer(effects, failing={("one", 2)}))
    stopped = {arm.name: arm.stopped for arm in results.arms}
    assert stopped["both"] == "stopped after 4 seeds: decided" and "failed" in stopped["one"]


def test_an_arm_does_not_wait_for_an_arm_that_has_stopped() -> None:
    """It lost a run on one metric; their comparison on the other would never get more seeds of it."""
    planned = study(TEXT.replace("[0, 1, 2]", "{first: 2, most: 8}") + "primary: [scene_accuracy, validation_loss]")
    numbers = {"mean": 1.0, "baseline_mean": 1.0, "differences": [0.0], "difference": 0.0}
    lost = Comparison(**numbers, verdict="diverged", lost="diverged 1 of 2")
    better = Comparison(**numbers, verdict="better")
    near = Comparison(**numbers, verdict="undecided", p=0.01, seeds_needed=4)
    rows = {
        own_key("muon", "arm", "", METRIC): lost,
        own_key("muon + repa", "arm", "", METRIC): better,
        between_key("muon + repa", "muon", "", "scene_accuracy"): near,
    }
    assert isinstance(planned.settings.seeds, SeedPlan)
    looks = planned_looks(planned.settings.seeds)
    standing = follow(planned, looks, lambda at_look, look: rows, lambda at_look: True)
    assert standing.stopped == {
        "muon": "stopped after 2 seeds: diverged 1 of 2",
        "muon + repa": "stopped after 4 seeds: decided",
    }


def test_fresh_seeds_hold_the_verdict(tmp_path: Path) -> None:
    writer = Writer({"one": -10.0, "both": -17.0})
    written(tmp_path, FIXED, writer)
    with written_runs(writer):
        replicate_study(tmp_path / "out", 4, 1)
    made = read_results_file(tmp_path / "out" / "results.json").replication
    assert made is not None
    assert {(row.arm, row.outcome) for row in made.rows} >= {("both against one", "holds")}
