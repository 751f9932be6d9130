from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.tiny import TINY
from tests.written_runs import METRIC, Writer, written_runs
from tintype.errors import UserError
from tintype.runtime.interrupt import Interrupt
from tintype.study.adaptive import why_stop
from tintype.study.costs import cost_of
from tintype.study.lab import StudyOutcome, next_runs, report_study, run_study
from tintype.study.looks import read_looks
from tintype.study.results import Comparison, StudyResults, Verdict
from tintype.study.runner import Task
from tintype.study.study import Study, load_study
from tintype.train.load import drop_kept
from tintype.train.loop import train
from tintype.train.record import RunRecord

STUDY = """
question: Does it pay?
recipe: PLAN
seeds: {first: 4, most: 16}
arms:
  - {name: strong, set: [optimizer.lr=0.01]}
  - {name: weak, set: [optimizer.lr=0.02]}
  - {name: nothing, set: [optimizer.lr=0.03]}
primary: [validation_loss]
evaluation: {count: 8, also: [], reference_count: 8, validation_count: 2, metrics: [], sampler: {steps: 1}}
"""
EFFECTS = {"strong": -20.0, "weak": -1.4}


@pytest.fixture
def study(tmp_path: Path) -> Study:
    return study_with(tmp_path)


def study_with(folder: Path, *assignments: str) -> Study:
    (folder / "plan.yaml").write_text(TINY)
    (folder / "study.yaml").write_text(STUDY.replace("PLAN", str(folder / "plan.yaml")))
    return load_study(str(folder / "study.yaml"), assignments)


def run(study: Study, out: Path, writer: Writer, budget_s: float | None = None) -> StudyOutcome:
    with written_runs(writer):
        return run_study(study, out, 1, budget_s=budget_s)


def results_of(outcome: StudyOutcome) -> StudyResults:
    assert outcome.report is not None
    return outcome.report.results


def counts(results: StudyResults) -> dict[str, int]:
    return {arm.name: len(arm.runs) for arm in results.arms}


def test_decided_and_hopeless_arms_stop_and_undecided_ones_get_more_seeds(study: Study, tmp_path: Path) -> None:
    out = tmp_path / "out"
    before = cost_of(study, out)
    assert (before.least, before.most) == (5 * 4, 5 * 16)
    results = results_of(run(study, out, Writer(EFFECTS)))
    cost = cost_of(study, out)
    assert cost.least == cost.expected == cost.most == cost.done == 32 and cost.left_s == 0, "nothing more will run"
    arms = {arm.name: arm for arm in results.arms}
    assert arms["strong"].stopped == "stopped after 4 seeds: decided"
    assert arms["strong"].comparisons[METRIC].verdict == "better"
    assert arms["strong"].comparisons[METRIC].look == 1
    assert arms["nothing"].stopped == "stopped after 4 seeds: nothing in sight"
    assert counts(results) == {"baseline": 8, "control": 8, "strong": 4, "weak": 8, "nothing": 4}
    assert arms["weak"].comparisons[METRIC].look == 2
    assert arms["weak"].stopped == "stopped after 8 seeds: decided"
    assert {run.state for arm in results.arms for run in arm.runs} == {"done"}


def test_a_study_ends_where_no_arm_has_anything_in_sight(study: Study, tmp_path: Path) -> None:
    outcome = run(study, tmp_path / "out", Writer())
    assert outcome.total == cost_of(study, tmp_path / "out").most == 5 * 4
    assert not outcome.interrupted


@pytest.mark.slow
def test_a_study_that_was_stopped_anywhere_ends_with_the_same_runs_and_verdicts(study: Study, tmp_path: Path) -> None:
    whole = Writer(EFFECTS)
    expected = results_of(run(study, tmp_path / "whole", whole))
    for stop_after in (7, 20, 31):
        out = tmp_path / f"stopped-{stop_after}"
        writer = Writer(EFFECTS, stop_after=stop_after)
        stopped = run(study, out, writer)
        assert stopped.interrupted
        writer.stop_after = None
        results = results_of(run(study, out, writer))
        assert results.model_copy(update={"commands": []}) == expected
        assert sorted(writer.begun) == sorted(whole.begun), "no run twice, and none too many"


def test_what_is_wanted_next_is_a_function_of_the_files(study: Study, tmp_path: Path) -> None:
    first = next_runs(study, tmp_path / "out")
    assert {task.key for task in first.tasks} == {
        *((arm, seed) for arm in ("baseline", "strong", "weak", "nothing") for seed in range(4)),
        *(("control", seed) for seed in range(1000, 1004)),
    }
    assert first.words == "look 1 of 3 (4 seeds for strong, weak, nothing)"
    run(study, tmp_path / "out", Writer(EFFECTS, stop_after=20))
    second = next_runs(study, tmp_path / "out")
    assert "strong" not in {task.arm for task in second.tasks}
    assert second.words.startswith("look 2 of 3 (8 seeds for weak")
    run(study, tmp_path / "out", Writer(EFFECTS))
    assert not next_runs(study, tmp_path / "out").tasks


def test_a_failed_run_stops_its_arm_until_the_study_is_run_again(study: Study, tmp_path: Path) -> None:
    writer = Writer(EFFECTS, failing={("weak", 2)})
    outcome = run(study, tmp_path / "out", writer)
    arms = {arm.name: arm for arm in results_of(outcome).arms}
    assert arms["weak"].stopped == "stopped after 4 seeds: failed 1 of 4"
    assert [message.key for message in outcome.failed] == [("weak", 2)]
    writer.failing.clear()
    again = results_of(run(study, tmp_path / "out", writer))
    assert again == results_of(run(study, tmp_path / "whole", Writer(EFFECTS)))


@dataclass
class Falling(Writer):
    """Writes four times the value in runs that are to collapse, by arm and seed."""

    falls: set[tuple[str, int]] = field(default_factory=set)

    def value(self, task: Task) -> float:
        return super().value(task) * (4.0 if task.key in self.falls else 1.0)


def test_a_single_fallen_run_decides_nothing_and_takes_no_verdict(study: Study, tmp_path: Path) -> None:
    """Neither one of an arm nor one of the control, which counts as the baseline's."""
    for collapsed in (("weak", 1), ("control", 1001)):
        results = results_of(run(study, tmp_path / collapsed[0], Falling(EFFECTS, falls={collapsed})))
        arms = {arm.name: arm for arm in results.arms}
        assert arms["strong"].stopped == "stopped after 4 seeds: decided"
        assert arms["strong"].comparisons[METRIC].words == "better"
        assert arms["nothing"].stopped == "stopped after 4 seeds: nothing in sight"
        weak = arms["weak"].comparisons[METRIC]
        assert weak.verdict == "better" and weak.look is not None and weak.look > 1
        assert [*weak.collapsed, *weak.baseline_collapsed] == [collapsed[1]]


def test_an_arm_that_keeps_falling_is_unstable_and_stops(study: Study, tmp_path: Path) -> None:
    falls = {("weak", seed) for seed in range(1, 16, 2)}
    results = results_of(run(study, tmp_path / "out", Falling(EFFECTS, falls=falls)))
    (weak,) = (arm for arm in results.arms if arm.name == "weak")
    row = weak.comparisons[METRIC]
    assert row.verdict == "unstable" and row.collapse_p is not None and row.collapse_p < 0.02 / 4
    assert weak.stopped == "stopped after 8 seeds: decided" and len(row.collapsed) == 4


def test_runs_that_fall_after_the_deciding_look_are_named_and_counted(tmp_path: Path) -> None:
    out = tmp_path / "out"
    results = read_twice(tmp_path, out, {("weak", 1), ("weak", 5), ("strong", 6)})
    rows = {arm.name: arm.comparisons[METRIC] for arm in results.arms[1:]}
    assert (rows["weak"].verdict, rows["weak"].collapsed, rows["weak"].look) == ("undecided", [1, 5], 2)
    assert rows["weak"].note.startswith("2 of 8 runs collapsed; of the baseline's, 0 of 8; with collapsed runs: ")
    assert (rows["strong"].words, rows["strong"].collapsed_later, rows["strong"].look) == ("better", [6], 1)
    notes = (out / "report.md").read_text()
    assert "(the numbers are of the others): weak: 2 of 8 runs in validation loss (seed 1 and seed 5)." in notes
    assert "the verdict does not count them: strong: 1 of all 8 runs in validation loss (seed 6)." in notes
    stored = json.loads((out / "results.json").read_text())
    kept = {arm["name"]: arm["comparisons"][METRIC].get("collapsed_later") for arm in stored["arms"][1:]}
    assert kept == {"strong": [6], "weak": None, "nothing": None}


def test_a_fall_of_the_baseline_after_the_deciding_look_is_named(tmp_path: Path) -> None:
    out = tmp_path / "out"
    results = read_twice(tmp_path, out, {("baseline", 7)})
    strong = results.arms[1].comparisons[METRIC]
    assert (strong.words, strong.baseline_collapsed, strong.baseline_collapsed_later) == ("better", [], [7])
    notes = (out / "report.md").read_text()
    assert "the verdict does not count them: baseline: 1 of all 8 runs in validation loss (seed 7)." in notes
    assert "1 of 8 runs collapsed, left out" in notes, "the baseline's mean is over the others"


def read_twice(folder: Path, out: Path, falls: set[tuple[str, int]]) -> StudyResults:
    """Return the results of a study that was read with 4 seeds and then with 8."""
    writer = Falling({"strong": -8.0, "weak": -1.4}, falls=falls)
    for count in (4, 8):
        results = results_of(run(study_with(folder, f"seeds={list(range(count))}"), out, writer))
    return results


def test_a_fall_of_the_baseline_is_left_out_of_an_interaction(tmp_path: Path) -> None:
    study = factorial_study(tmp_path)
    names = [arm.name for arm in study.arms if arm.role == "arm"]
    writer = Falling(dict(zip(names, (-10.0, -10.0, -18.0), strict=True)), falls={("baseline", 1)})
    results = results_of(run(study, tmp_path / "out", writer))
    (interaction,) = (one.comparison for one in results.factors if len(one.parts) == 2)
    assert (interaction.collapsed, interaction.baseline_collapsed, interaction.verdict) == ([], [1], "better")


def test_planned_looks_cannot_be_changed_once_one_was_made(study: Study, tmp_path: Path) -> None:
    out = tmp_path / "out"
    run(study_with(tmp_path, "seeds={first: 3, most: 16}"), out, Writer(stop_after=2))
    run(study, out, Writer(EFFECTS))  # nothing had been read
    with pytest.raises(UserError, match="has results that were read with other planned seeds"):
        run(study_with(tmp_path, "seeds={first: 4, most: 32}"), out, Writer(EFFECTS))
    with pytest.raises(UserError, match="has results that were read with other planned seeds"):
        run(study_with(tmp_path, "seeds=[0, 1, 2, 3]"), out, Writer(EFFECTS))


def test_what_a_study_asks_cannot_be_changed_once_it_was_read(study: Study, tmp_path: Path) -> None:
    out, change = tmp_path / "out", "analysis={margin: 10%}"
    run(study_with(tmp_path, "seeds={first: 4, most: 16}", change), out, Writer(stop_after=2))
    run(study, out, Writer(EFFECTS))  # nothing had been read
    with pytest.raises(UserError, match="has results that were read before this change"):
        run(study_with(tmp_path, "seeds={first: 4, most: 16}", change), out, Writer(EFFECTS))


def test_a_look_begins_only_where_it_fits_into_the_budget(study: Study, tmp_path: Path) -> None:
    """Runs of 100 s each: the first look is run to measure them, and the second does not fit into 150 s."""
    out = tmp_path / "out"
    outcome = run(study, out, Writer(EFFECTS, seconds=100.0), budget_s=150.0)
    assert outcome.total == 20
    assert outcome.left.startswith("look 2 of 3 (8 seeds for weak")
    assert "of the budget of 2.5 min were left" in outcome.left
    assert [look.made for look in results_of(outcome).looks] == [True, False, False]
    assert run(study, out, Writer(EFFECTS), budget_s=1e9).left == ""


def test_a_budget_needs_several_looks(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="this study has only one look; plan several"):
        run(study_with(tmp_path, "seeds=[0, 1]"), tmp_path / "out", Writer(), budget_s=60.0)


def test_added_seeds_are_a_look_that_pays_and_verdicts_stay(tmp_path: Path) -> None:
    out, writer = tmp_path / "out", Writer({"strong": -20.0})
    three = results_of(run(study_with(tmp_path, "seeds=[0, 1, 2, 3]"), out, writer))
    assert [look.share for look in three.looks] == [0.8]
    assert looked_at(out) == [4]
    report_study(out)
    assert looked_at(out) == [4], "the same seeds again are the same look"
    writer.effects["strong"] = 20.0  # fresh seeds contradict the first ones
    more = results_of(run(study_with(tmp_path, f"seeds={list(range(12))}"), out, writer))
    assert [look.share for look in more.looks] == pytest.approx([0.8, 0.1])
    strong = next(arm for arm in more.arms if arm.name == "strong").comparisons[METRIC]
    assert (strong.verdict, strong.look) == ("better", 1)
    nothing = next(arm for arm in more.arms if arm.name == "nothing").comparisons[METRIC]
    assert nothing.look == 2
    assert looked_at(out) == [4, 12]


ARMS = ("strong", "weak", "nothing", "other")


def arms_only(folder: Path, *names: str, seeds: str = "[0, 1, 2, 3]") -> Study:
    arms = [f"{{name: {name}, set: [optimizer.lr=0.0{1 + ARMS.index(name)}]}}" for name in names]
    return study_with(folder, f"seeds={seeds}", f"arms=[{', '.join(arms)}]")


def row_of(results: StudyResults, name: str) -> Comparison:
    return next(arm for arm in results.arms if arm.name == name).comparisons[METRIC]


def test_arms_that_are_dropped_after_a_look_still_count(tmp_path: Path) -> None:
    """Keeping the best of several arms and reading it by itself would be another chance for a false verdict."""
    out, writer = tmp_path / "out", Writer({"weak": -2.2})
    before = row_of(results_of(run(arms_only(tmp_path, *ARMS), out, writer)), "weak")
    results = results_of(run(arms_only(tmp_path, "weak"), out, writer))
    alone, never_read = row_of(results, "weak"), run(arms_only(tmp_path, "weak"), tmp_path / "alone", writer)
    assert row_of(results_of(never_read), "weak").verdict == "better", "the test needs an arm that this would decide"
    assert (before.verdict, alone.verdict, alone.level, alone.look) == ("undecided", "undecided", before.level, 1)
    assert "were dropped after a look, and still count" in results.method
    assert row_of(report_study(out).results, "weak").level == before.level
    more = results_of(run(arms_only(tmp_path, "weak", seeds=str(list(range(8)))), out, writer))
    level = row_of(more, "weak").level
    assert level == pytest.approx(1 - 0.05 * 0.1 * 0.8 / len(ARMS)), "four arms share the tenth of the second look"


def test_looks_that_are_not_recorded_give_no_error_back(tmp_path: Path) -> None:
    """Without the family of the last report, dropped arms would not count, and added ones would have been paid for."""
    out, writer = tmp_path / "out", Writer({"weak": -2.2})
    before = row_of(results_of(run(arms_only(tmp_path, "weak", "nothing"), out, writer)), "weak")
    (out / "looks.json").unlink()
    alone = row_of(results_of(run(arms_only(tmp_path, "weak"), out, writer)), "weak")
    assert (alone.level, alone.look) == (before.level, 1)
    (out / "looks.json").unlink()  # the last report has one arm
    added = row_of(results_of(run(arms_only(tmp_path, "weak", "strong"), out, writer)), "strong")
    assert added.look == 2 and added.level == pytest.approx(1 - 0.05 * 0.1 * 0.8)
    (out / "looks.json").unlink()
    with pytest.raises(UserError, match="has results that were read with other settings of weak"):
        run(study_with(tmp_path, "seeds=[0, 1, 2, 3]", "arms=[{name: weak, set: [optimizer.lr=0.5]}]"), out, writer)


def test_arms_that_are_added_after_a_look_are_another_look_and_change_no_verdict(tmp_path: Path) -> None:
    out, writer = tmp_path / "out", Writer({"weak": -2.8})
    before = results_of(run(arms_only(tmp_path, "weak", "nothing"), out, writer))
    assert row_of(before, "weak").verdict == "better"
    results = results_of(run(arms_only(tmp_path, *ARMS), out, writer))
    assert [look.share for look in results.looks] == pytest.approx([0.8, 0.1])
    for name in ("weak", "nothing"):
        assert row_of(results, name) == row_of(before, name)
    added = row_of(results, "other")
    assert added.look == 2
    assert added.level == pytest.approx(1 - 0.05 * 0.1 * 0.8 / 2), "two arms share the tenth"


def test_an_arm_that_was_looked_at_keeps_its_settings(tmp_path: Path) -> None:
    """Other settings under the same name would be tried without being counted."""
    out, changed = tmp_path / "out", "arms=[{name: weak, set: [optimizer.lr=0.5]}]"
    run(arms_only(tmp_path, "weak", "nothing"), out, Writer(stop_after=2))
    run(study_with(tmp_path, "seeds=[0, 1, 2, 3]", changed), out, Writer())  # nothing had been read
    with pytest.raises(UserError, match="has results that were read with other settings of weak; an arm"):
        run(arms_only(tmp_path, "weak", "nothing"), out, Writer())
    renamed = changed.replace("weak", "weaker")
    results = results_of(run(study_with(tmp_path, "seeds=[0, 1, 2, 3]", renamed), out, Writer()))
    assert row_of(results, "weaker").look == 2, "another name is another arm, which pays"


def test_planned_looks_have_nothing_left_for_arms_that_are_added(tmp_path: Path) -> None:
    out, plan = tmp_path / "out", "{first: 4, most: 8}"
    both = results_of(run(arms_only(tmp_path, "strong", "nothing", seeds=plan), out, Writer(EFFECTS)))
    with pytest.raises(UserError, match="has results that were read without weak, and the arms of the planned looks"):
        run(arms_only(tmp_path, "strong", "weak", "nothing", seeds=plan), out, Writer(EFFECTS))
    fewer = results_of(run(arms_only(tmp_path, "nothing", seeds=plan), out, Writer(EFFECTS)))
    assert row_of(fewer, "nothing").level == row_of(both, "nothing").level


def test_a_report_of_before_looks_were_recorded_counts_as_one(tmp_path: Path) -> None:
    out, writer = tmp_path / "out", Writer()
    run(study_with(tmp_path, "seeds=[0, 1, 2, 3]"), out, writer)
    (out / "looks.json").unlink()
    more = results_of(run(study_with(tmp_path, "seeds=[0, 1, 2, 3, 4]"), out, writer))
    assert [(len(look.seeds), look.share) for look in more.looks] == [(4, 0.8), (5, pytest.approx(0.1))]


def test_a_half_done_study_is_no_look(tmp_path: Path) -> None:
    out, writer = tmp_path / "out", Writer(stop_after=1)
    run(study_with(tmp_path, "seeds=[0, 1, 2, 3]"), out, writer)
    assert read_looks(out) is None
    results = results_of(run(study_with(tmp_path, "seeds=[0, 1]"), out, Writer()))
    assert [(len(look.seeds), look.share) for look in results.looks] == [(2, 0.8)]


def looked_at(out: Path) -> list[int]:
    """Return the number of seeds of each look."""
    return [len(look.seeds) for look in read_looks(out) or ()]


def row(verdict: Verdict, p: float | None, lost: str = "") -> Comparison:
    return Comparison(mean=1, baseline_mean=1, differences=[], difference=0, p=p, verdict=verdict, lost=lost)


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([row("better", 0.001), row("worse", 0.001)], "decided"),
        ([row("better", 0.001), row("undecided", 0.1)], ""),
        ([row("better", 0.001), row("undecided", 0.9)], "nothing more in sight"),
        ([row("undecided", 0.51), row("undecided", 0.9)], "nothing in sight"),
        ([row("undecided", 0.49), row("undecided", 0.9)], ""),
        ([row("diverged", None, "diverged 1 of 4"), row("undecided", 0.1)], "diverged 1 of 4"),
        ([row("unstable", 0.1).model_copy(update={"collapsed": [1]})], "decided"),
        ([row("unstable", 0.1).model_copy(update={"baseline_collapsed": [1]})], ""),
        ([], "no primary metric can be compared"),
    ],
)
def test_an_arm_stops_where_more_seeds_would_not_help(rows: list[Comparison], words: str) -> None:
    assert why_stop(rows, 16) == words


def test_an_arm_goes_on_where_more_seeds_would_show_that_it_is_the_same() -> None:
    near, far = (row("undecided", 0.9).model_copy(update={"seeds_needed": count}) for count in (16, 17))
    assert why_stop([near], 16) == ""
    assert why_stop([far], 16) == "nothing in sight"


def test_a_run_that_was_stopped_between_its_scores_along_training_comes_first(tmp_path: Path) -> None:
    """Its look is complete by the scores of the end, and without this nobody would come back to it."""
    study, out = study_with(tmp_path, "score_at=[0.5]"), tmp_path / "out"
    task = next_runs(study, out).tasks[1]
    train(task.plan, task.folder, Interrupt(), keep_at=(3,))
    assert [one.key for one in next_runs(study, out).tasks] == [task.key]
    assert task.key not in [one.key for one in next_runs(study, out, [task.key]).tasks]
    drop_kept(RunRecord(task.folder).kept, 3)
    assert len(next_runs(study, out).tasks) == 5 * 4


def factorial_study(folder: Path, *assignments: str) -> Study:
    (folder / "plan.yaml").write_text(TINY)
    text = STUDY.replace("PLAN", str(folder / "plan.yaml")).split("arms:")
    factors = "factorial: [[optimizer.lr=0.01], [train.clip_norm=2.0]]\nprimary:" + text[1].split("primary:")[1]
    (folder / "study.yaml").write_text(text[0] + factors)
    return load_study(str(folder / "study.yaml"), assignments)


def test_a_decided_arm_goes_on_while_its_interaction_is_open(tmp_path: Path) -> None:
    """Both factors and their combination are decided at once; what they do together needs more seeds."""
    study = factorial_study(tmp_path)
    names = [arm.name for arm in study.arms if arm.role == "arm"]
    effects = dict(zip(names, (-10.0, -10.0, -14.0), strict=True))
    results = results_of(run(study, tmp_path / "out", Writer(effects)))
    assert all(arm.comparisons[METRIC].look == 1 for arm in results.arms if arm.role == "arm")
    assert counts(results)[names[0]] > 4


def test_a_failed_run_of_a_combination_stops_no_other_arm(tmp_path: Path) -> None:
    """The interaction can have no verdict then, but the factor alone is undecided and gets its seeds."""
    study = factorial_study(tmp_path)
    first, second, both = (arm.name for arm in study.arms if arm.role == "arm")
    writer = Writer({first: -1.4, second: -20.0, both: -20.0}, failing={(both, 2)})
    arms = {arm.name: arm for arm in results_of(run(study, tmp_path / "out", writer)).arms}
    assert arms[both].stopped == "stopped after 4 seeds: failed 1 of 4"
    assert arms[second].stopped == "stopped after 4 seeds: decided"
    assert len(arms[first].runs) == 16 and not arms[first].stopped


def test_a_decided_interaction_keeps_the_means_of_its_look(tmp_path: Path) -> None:
    """Fresh seeds in which the combination is no better than its parts make no other verdict of a decided one."""
    out, shown = tmp_path / "out", []
    for count, of_both in ((4, -12.0), (8, -8.0)):
        study = factorial_study(tmp_path, f"seeds={list(range(count))}")
        effects = dict(zip([arm.name for arm in study.arms[1:]], (-10.0, -10.0, of_both), strict=True))
        results = results_of(run(study, out, Writer(effects)))
        (found,) = (one for one in results.factors if len(one.parts) == 2)
        shown.append((found.verdict, found.comparison, found.means, found.expected))
    assert shown[0] == shown[1]
    assert (shown[1][0], shown[1][1].verdict, shown[1][1].look) == ("overlaps", "worse", 1)
    assert len(results.arms[-1].runs) == 8
