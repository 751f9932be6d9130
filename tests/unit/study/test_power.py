"""Planning from past studies: known spreads in, the power that scipy and a simulation give out."""

from __future__ import annotations

import io
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from scipy import stats as scipy_stats
from typer.testing import CliRunner

from tests.unit.study.example_results import at_resolution, example, several
from tintype.cli import app
from tintype.errors import UserError
from tintype.evaluation.protocol import Protocol
from tintype.runtime.files import write_checked
from tintype.settings import plain
from tintype.study import power
from tintype.study.advice import reach
from tintype.study.effect import Effect
from tintype.study.power import plan_power
from tintype.study.results import StudyResults
from tintype.study.stats.cells import Cells
from tintype.study.stats.contrast import against
from tintype.study.stats.estimate import estimate, planned_widening
from tintype.terminal.power import Seeds

STUDIES = Path(__file__).parents[3] / "studies" / "2026-11-15_captions-and-target-mini"


def stored(results: StudyResults, folder: Path, name: str = "past") -> Path:
    (folder / name).mkdir(parents=True)
    write_checked(folder / name / "results.json", results.dump())
    return folder / name


def shown(plan: power.PowerPlan) -> str:
    console = Console(width=200, record=True, file=io.StringIO())
    Seeds(console, {}, as_json=False).show(plan)
    return console.export_text()


def test_a_single_past_study_gives_the_number_of_arms(tmp_path: Path) -> None:
    """And whether there is a control; several studies give neither."""
    results = example()
    one = stored(results, tmp_path)
    roles = [arm.role for arm in results.arms if arm.role != "baseline"]
    plan = plan_power([one], "5%", 3, None, None)
    assert (plan.arms, plan.control) == (len(roles), "control" in roles)
    stored(with_seeds_from(results, 50, "later"), tmp_path, "later")
    assert (plan_power([tmp_path], "5%", 3, None, None).arms, plan_power([one], "5%", 3, None, 7).arms) == (3, 7)


def with_seeds_from(results: StudyResults, first: int, name: str) -> StudyResults:
    """Another study of the same baseline: its seeds begin at `first`."""
    arms = [
        arm.model_copy(
            update={
                "runs": [
                    run.model_copy(update={"seed": run.seed + first, "hash": f"{run.hash} {first}"}) for run in arm.runs
                ]
            }
        )
        for arm in results.arms
    ]
    seeds = [seed + first for seed in results.seeds]
    return results.model_copy(update={"arms": arms, "seeds": seeds, "name": name})


def row(plan: power.PowerPlan, metric: str) -> power.MetricPower:
    (found,) = [one for group in plan.groups for one in group.metrics if one.metric.name == metric]
    return found


def test_the_spread_of_single_runs_is_pooled_over_the_baseline_and_all_arms(tmp_path: Path) -> None:
    results = example()
    found = row(plan_power([stored(results, tmp_path)], "5%", 3, None, 3), "fd_scenes")
    runs = [[run.metrics["fd_scenes"] for run in arm.runs] for arm in results.arms]
    assert found.deviation == pytest.approx(np.sqrt(np.mean([np.var(values, ddof=1) for values in runs])))
    assert found.spread.freedom == 8 and found.scale == "raw"
    assert found.baseline == pytest.approx(np.mean([*runs[0], *runs[1]])), "as arms are compared with it"


def test_distances_are_planned_on_logarithms(tmp_path: Path) -> None:
    results = example()
    bounded = [one.model_copy(update={"scale": "log"}) for one in results.metrics]
    folder = stored(results.model_copy(update={"metrics": bounded}), tmp_path)
    found = row(plan_power([folder], "5%", 3, "fd_scenes", 3), "fd_scenes")
    logs = [np.log([run.metrics["fd_scenes"] for run in arm.runs]) for arm in results.arms]
    assert found.scale == "log" and found.baseline == pytest.approx(math.exp(np.mean([*logs[0], *logs[1]])))
    assert found.spread.deviation == pytest.approx(np.sqrt(np.mean([np.var(values, ddof=1) for values in logs])))


def test_shares_are_planned_on_logits_and_shown_in_their_unit(tmp_path: Path) -> None:
    """A deviation on logits is p (1 - p) times as large, and the change that is planned for is up or down."""
    results = example()
    shares = [one.model_copy(update={"scale": "logit"}) for one in results.metrics if one.name == "recall"]
    folder = stored(results.model_copy(update={"metrics": shares}), tmp_path)
    plan = plan_power([folder], "5%", 3, "recall", 3)
    found = row(plan, "recall")
    size = found.baseline * (1 - found.baseline) * found.spread.deviation
    assert found.scale == "logit" and found.deviation == pytest.approx(size, rel=0.02)
    detected = row(plan_power([folder], str(found.detectable[0]), 3, "recall", 3), "recall")
    assert detected.power is not None and detected.power[0] == pytest.approx(0.8, abs=1e-3)


def test_runs_that_fell_off_are_no_spread(tmp_path: Path) -> None:
    results = example()
    arm = results.arms[2]
    collapsed = arm.comparisons["recall"].model_copy(update={"collapsed": [arm.runs[1].seed]})
    changed = arm.model_copy(update={"comparisons": {**arm.comparisons, "recall": collapsed}})
    folder = stored(results.model_copy(update={"arms": [*results.arms[:2], changed, results.arms[3]]}), tmp_path)
    assert row(plan_power([folder], "5%", 3, "recall", 3), "recall").spread.freedom == 7


def test_runs_of_the_baseline_that_fell_off_are_no_spread(tmp_path: Path) -> None:
    """The comparisons of the arms name them; the baseline has none of its own."""
    results = example()
    baseline, control, *arms = results.arms
    (low, *others), fell = [run.metrics["recall"] for run in baseline.runs], baseline.runs[0]
    worse = fell.model_copy(update={"metrics": {**fell.metrics, "recall": low / 10}})
    first = baseline.model_copy(update={"runs": [worse, *baseline.runs[1:]]})
    row_of = arms[0].comparisons["recall"].model_copy(update={"baseline_collapsed": [fell.seed]})
    changed = arms[0].model_copy(update={"comparisons": {**arms[0].comparisons, "recall": row_of}})
    folder = stored(results.model_copy(update={"arms": [first, control, changed, *arms[1:]]}), tmp_path)
    found = row(plan_power([folder], "5%", 3, "recall", 3), "recall")
    healthy = [*others, *(run.metrics["recall"] for run in control.runs)]
    assert found.spread.freedom == 7 and found.baseline == pytest.approx(np.mean(healthy))


@pytest.mark.parametrize(("seeds", "control"), [(3, True), (5, False)])
def test_simulated_studies_find_what_is_planned(seeds: int, control: bool) -> None:
    """Studies of one metric find the smallest change less often than the four times in five that are promised.

    The formula takes the degrees of freedom of equal measured variances, and one metric says nothing of how alike they
    are. Studies of nine metrics find 78 to 84% (docs/calibration.json).
    """
    arms = ["baseline", *["control"] * control, "a", "b"]
    confidence, draw, studies, found = 1 - 0.04 / 6, np.random.default_rng(seeds), 1_000, 0
    plan = power.PowerPlan(Effect(1, False), seeds, len(arms) - 1, control, 1, [], [])
    effect = plan.detectable(1.0, confidence, seeds)
    for _ in range(studies):
        values = {arm: dict(enumerate(draw.normal(size=seeds) + effect * (arm == "a"))) for arm in arms}
        cells = Cells(values, plans={"control": "baseline"} if control else {})
        low, _ = estimate(cells, against("a", "baseline"), confidence).interval or (0.0, 0.0)
        found += low > 0
    assert 0.64 < found / studies < 0.84


def test_power_and_seeds_against_the_noncentral_t(tmp_path: Path) -> None:
    """Three arms on two primary metrics: 80% of the 4% of error over six comparisons, at the first look."""
    plan = plan_power([stored(example(), tmp_path)], "0.5", 5, "fd_scenes", 3)
    found = row(plan, "fd_scenes")
    assert found.level == pytest.approx(0.8 * 0.04 / 6)

    def oracle(seeds: int, spread: float, effect: float = 0.5) -> float:
        error = plan.error(seeds)
        shift, critical = (
            effect / spread / math.sqrt(error.value) / planned_widening(seeds, 2, True, 1 - found.level),
            scipy_stats.t.ppf(1 - found.level / 2, error.freedom),
        )
        other_tail = np.nan_to_num(scipy_stats.nct.cdf(-critical, error.freedom, shift))  # scipy fails on nothing
        return float(scipy_stats.nct.sf(critical, error.freedom, shift) + other_tail)

    assert found.power is not None and found.seeds_needed is not None
    unit = found.deviation / found.spread.deviation
    spreads = [unit * one for one in (found.spread.deviation, *found.spread.range)]
    for power_, spread, needed in zip(found.power, spreads, found.seeds_needed, strict=True):
        assert power_ == pytest.approx(oracle(5, spread), abs=1e-3)
        assert needed is not None and oracle(needed, spread) >= 0.8 > oracle(needed - 1, spread)
    low, high = found.spread.range
    tails = scipy_stats.chi2.ppf([0.975, 0.025], 8)
    assert (low, high) == pytest.approx(tuple(found.spread.deviation * np.sqrt(8 / tails)))
    assert oracle(5, spreads[0], found.detectable[0]) == pytest.approx(0.8, abs=2e-3)


def test_the_level_is_for_all_comparisons_of_all_resolutions_and_between_them(tmp_path: Path) -> None:
    """Two arms and a control, 2 primary of 8 metrics: 3 × 2 × 2 and 2 × 2 trends; without a control 3 × 2 trends."""
    folder = stored(example(), tmp_path)
    for control, primary, others in ((True, 16, 36), (False, 18, 36)):
        plan = plan_power([folder], "5%", 3, None, 3, resolutions=2, control=control)
        assert row(plan, "fd_scenes").level == pytest.approx(0.8 * 0.04 / primary)
        assert row(plan, "recall").level == pytest.approx(0.8 * 0.01 / others)
        said = f"The levels are for {primary + others} comparisons: {primary} on primary metrics, {others} on others."
        assert said in shown(plan) and "at 2 resolutions" in shown(plan)
    assert "The levels are for 24 comparisons" in shown(plan_power([folder], "5%", 3, None, 3))
    lone = plan_power([folder], "5%", 3, None, 1, resolutions=2)
    assert row(lone, "fd_scenes").level == pytest.approx(0.8 * 0.04 / (4 + 2))  # one arm is no control


def test_a_spread_that_rounding_made_is_none(tmp_path: Path) -> None:
    results = example()
    arms = []
    for arm in results.arms:
        runs = [
            run.model_copy(update={"metrics": {**run.metrics, "recall": value}})
            for run, value in zip(arm.runs, [0.1, 0.1 + 3e-16, 0.1 - 2e-16], strict=True)
        ]
        arms.append(arm.model_copy(update={"runs": runs}))
    plan = plan_power([stored(results.model_copy(update={"arms": arms}), tmp_path)], "5%", 3, None, 3)
    assert "recall" not in {one.metric.name for group in plan.groups for one in group.metrics}


def test_relative_and_absolute_effects_agree(tmp_path: Path) -> None:
    folder = stored(example(), tmp_path)
    relative = row(plan_power([folder], "10%", 3, "recall", 3), "recall")
    absolute = row(plan_power([folder], str(0.1 * relative.baseline), 3, "recall", 3), "recall")
    assert relative.power == pytest.approx(absolute.power)


def test_more_arms_need_more_seeds_and_more_seeds_find_more(tmp_path: Path) -> None:
    folder = stored(example(), tmp_path)
    few, many = (row(plan_power([folder], "5%", 5, "fd_scenes", arms), "fd_scenes") for arms in (1, 10))
    assert few.power is not None and many.power is not None and few.power[0] > many.power[0]
    more = row(plan_power([folder], "5%", 12, "fd_scenes", 10), "fd_scenes")
    assert more.power is not None and more.power[0] > many.power[0] and more.detectable[0] < many.detectable[0]


def test_studies_of_one_baseline_are_pooled_and_others_kept_apart(tmp_path: Path) -> None:
    results = example()
    stored(results, tmp_path, "a")
    other = with_seeds_from(results, 5, "others")
    stored(at_resolution(other, plan="seed: 5\n" + results.resolution.plan), tmp_path, "b")
    small = at_resolution(results, plan=results.resolution.plan.replace("192", "96"))
    stored(small.model_copy(update={"name": "small"}), tmp_path, "c")
    plan = plan_power([tmp_path], "5%", 3, None, 3)
    assert [len(group.studies) for group in plan.groups] == [2, 1]
    assert [group.metrics[0].spread.freedom for group in plan.groups] == pytest.approx([16, 8])


def test_settings_of_the_protocol_that_joined_later_keep_no_studies_apart(tmp_path: Path) -> None:
    results, protocol = example(), plain(Protocol(count=64))
    older = {key: value for key, value in protocol.items() if key not in ("size", "shapes", "training_count")}
    stored(results.model_copy(update={"protocol": older}), tmp_path, "a")
    later = with_seeds_from(results, 5, "later")
    stored(later.model_copy(update={"protocol": protocol}), tmp_path, "b")
    stages = with_seeds_from(results, 50, "stages")  # all final scores are at the size of the data
    stored(stages.model_copy(update={"protocol": {**protocol, "size": "stage"}, "name": "stages"}), tmp_path, "c")
    stored(stages.model_copy(update={"protocol": {**protocol, "seed": 1}, "name": "other noise"}), tmp_path, "d")
    unknown = {**protocol, "metrics": ["of_a_plugin"]}
    stored(stages.model_copy(update={"protocol": unknown, "name": "plugin"}), tmp_path, "e")
    assert [len(group.studies) for group in plan_power([tmp_path], "5%", 3, None, 3).groups] == [3, 1, 1]


def test_a_metric_that_was_defined_anew_is_kept_apart(tmp_path: Path) -> None:
    results = example()
    stored(results, tmp_path, "a")
    revised = [one.model_copy(update={"revision": 2}) for one in results.metrics]
    stored(with_seeds_from(results, 5, "later").model_copy(update={"metrics": revised}), tmp_path, "b")
    assert [len(group.studies) for group in plan_power([tmp_path], "5%", 3, None, 3).groups] == [1, 1]


def test_each_resolution_is_a_study_of_its_own(tmp_path: Path) -> None:
    results = several()
    plan = plan_power([stored(results, tmp_path)], "5%", 3, "fd_scenes", 3)
    assert [group.studies for group in plan.groups] == [[f"{results.name} @ coarse"], [f"{results.name} @ fine"]]
    for group, view in zip(plan.groups, results.by_resolution(), strict=True):
        variances = [np.var([run.metrics["fd_scenes"] for run in arm.runs], ddof=1) for arm in view.arms]
        assert group.metrics[0].deviation == pytest.approx(np.sqrt(np.mean(variances)))
    assert "Spread measured in: pocket: captions and times @ fine" in shown(plan)


@pytest.mark.parametrize(("arms", "seeds"), [(2, 3), (7, 3), (7, 5)])
def test_the_range_of_the_spread_holds_the_true_one_in_95_of_100_studies(arms: int, seeds: int) -> None:
    draw, studies = np.random.default_rng(0), 1500
    held = 0
    for _ in range(studies):
        spread = power.pooled(draw.normal(size=(arms, seeds)).tolist())
        assert spread is not None
        held += spread.range[0] <= 1 <= spread.range[1]
    assert 0.935 < held / studies < 0.985


def test_a_study_that_is_given_twice_counts_once(tmp_path: Path) -> None:
    past = stored(example(), tmp_path)
    once = plan_power([past], "5%", 3, None, 3)
    (tmp_path / "link").symlink_to(past)
    again = [past, past / "results.json", past / ".." / "past", tmp_path / "link"]
    assert plan_power(again, "5%", 3, None, 3) == once

    copied = plan_power([past, stored(example(), tmp_path, "copy")], "5%", 3, None, 3)
    assert copied.groups == once.groups
    assert copied.skipped == ["copy: the same runs as in pocket: captions and times, and each run counts once"]


def test_runs_that_two_studies_share_count_once(tmp_path: Path) -> None:
    """One study has both arms, one has the first arm with the same runs, one has another arm at the same seeds."""
    results = example()
    both = stored(results, tmp_path)
    part = stored(results.model_copy(update={"arms": results.arms[:3]}), tmp_path, "part")

    def recall(*folders: Path) -> power.MetricPower:
        return row(plan_power(folders, "5%", 3, "recall", 3), "recall")

    assert recall(both, part) == recall(part, both) == recall(both)

    last = results.arms[3]
    runs = [run.model_copy(update={"hash": f"{run.hash} new"}) for run in last.runs]
    new = last.model_copy(update={"name": "new", "runs": runs})
    third = stored(results.model_copy(update={"arms": [*results.arms[:2], new]}), tmp_path, "third")
    found = recall(both, third)
    assert found.spread.freedom == 10 and found.baseline == recall(both).baseline


def test_an_arm_that_rules_the_spread_is_named_and_can_be_left_out(tmp_path: Path) -> None:
    assert "--without short-captions" in shown(plan_power([STUDIES], "5%", 3, "recall_scenes", 3))
    results = example()
    wide = [
        run.model_copy(update={"metrics": {**run.metrics, "recall": value}})
        for run, value in zip(results.arms[2].runs, (0.1, 0.5, 0.9), strict=True)
    ]
    arm = results.arms[2].model_copy(update={"name": "muon 3e-4", "runs": wide})
    folder = stored(results.model_copy(update={"arms": [*results.arms[:2], arm, results.arms[3]]}), tmp_path)
    plan = plan_power([folder], "5%", 3, "recall", 3)
    assert '--without "muon 3e-4"' in shown(plan), "as a shell takes it"
    less = plan_power([folder], "5%", 3, "recall", 3, without=["muon 3e-4"])
    assert row(less, "recall").deviation < row(plan, "recall").deviation / 3
    assert "Left out of the spread: muon 3e-4" in shown(less)


def test_the_table_says_what_to_do_and_how_sure_it_is() -> None:
    text = shown(plan_power([STUDIES], "5%", 3, None, 3))
    assert "scene_accuracy: 3 seeds find 5% in" in text and "Take 4 to find it in 80%, or 9 to be safe" in text
    assert "fd_scenes: 3 seeds find 5% in 0.6" in text and ". Plan for a larger change (" in text
    assert "8 degrees of freedom only" in text
    assert "at its first look, which spends 80% of the study's error" in text
    enough = shown(plan_power([STUDIES], "1000%", 3, "scene_accuracy", 3))
    assert "3 seeds are enough for 1000%, even if the spread is as large as it may be" in enough


def test_the_table_has_the_change_that_each_number_of_seeds_finds() -> None:
    """More seeds find less, the numbers are those of a study of so many seeds, and no cell is beyond the metric."""
    plan = plan_power([STUDIES], "5%", 4, None, 3)
    for found in plan.groups[0].metrics:
        assert list(found.by_seeds) == [3, 4, 5, 8, 16, 32] and found.by_seeds[4] == found.detectable
        changes = [reach[0] for reach in found.by_seeds.values()]
        assert changes == sorted(changes, reverse=True)
        other = row(plan_power([STUDIES], "5%", 8, None, 3), found.metric.name)
        assert found.by_seeds[8] == other.detectable
    lines = {line.split()[0]: line.split() for line in shown(plan).splitlines() if line.startswith(("scene_a", "kid"))}
    assert lines["scene_accuracy"][2:5] == ["0.92", "1.3%", "6.9%"] and lines["kid_scenes"][3] == ">100%"
    bank = plan_power([STUDIES.with_name("2026-11-17_bank-mini")], "0.02", 3, "scene_accuracy", 3)
    found = row(bank, "scene_accuracy")
    share = replace(found, metric=found.metric.model_copy(update={"range": (0.0, 1.0)}))
    assert [reach(change, share, bank.effect) for change in (0.5, 0.6)] == ["0.5", "–"], "from 0.546 on"


def test_the_command_says_that_there_is_no_control() -> None:
    shown = CliRunner().invoke(app, ["power", str(STUDIES), "--no-control"]).stdout
    assert "(no control)" in shown and "(one of them the control)" not in shown


def test_the_table_fits_a_terminal_of_80_columns() -> None:
    console = Console(width=80, record=True, file=io.StringIO())
    plan = plan_power([STUDIES.with_name("2026-11-17_bank-mini")], "5%", 3, None, None)
    Seeds(console, {}, as_json=False).show(plan)
    assert "…" not in console.export_text()


def test_a_baseline_of_zero_has_no_relative_effect(tmp_path: Path) -> None:
    results = example()
    arms = []
    for arm in results.arms[:2]:  # the baseline and the control
        runs = [
            run.model_copy(update={"metrics": {**run.metrics, "recall": value}})
            for run, value in zip(arm.runs, (-1.0, 0.0, 1.0), strict=True)
        ]
        arms.append(arm.model_copy(update={"runs": runs}))
    changed = results.model_copy(update={"arms": [*arms, *results.arms[2:]]})
    plan = plan_power([stored(changed, tmp_path)], "5%", 3, "recall", 3)
    assert row(plan, "recall").power is None
    assert "give --effect as a difference" in shown(plan)


@pytest.mark.parametrize(
    ("effect", "seeds", "metric", "arms", "message"),
    [
        ("0", 3, None, 3, "give a positive size"),
        ("0%", 3, None, 3, "give a positive size"),
        ("-5%", 3, None, 3, "give a positive size"),
        ("nan", 3, None, 3, "give a positive size"),
        ("five", 3, None, 3, "write a percentage of"),
        ("5%", 1, None, 3, "--seeds 1 is too small; give 2 or more"),
        ("5%", 3, None, 0, "--arms 0 is too small; give 1 or more"),
        ("5%", 3, "recal", 3, "unknown metric 'recal'; did you mean 'recall'"),
    ],
)
def test_bad_questions_are_refused_in_words(
    tmp_path: Path, effect: str, seeds: int, metric: str | None, arms: int, message: str
) -> None:
    folder = stored(example(), tmp_path)
    with pytest.raises(UserError) as refused:
        plan_power([folder], effect, seeds, metric, arms)
    assert message in str(refused.value)


def test_folders_without_a_spread_are_refused_in_words(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="no studies found"):
        plan_power([tmp_path / "empty"], "5%", 3, None, 3)
    with pytest.raises(UserError, match="no studies found"):
        plan_power([tmp_path / "nowhere"], "5%", 3, None, 3)
    sketch = stored(example((0,)), tmp_path, "sketch")
    with pytest.raises(UserError, match="sketch: one seed only, so its spread is not known"):
        plan_power([sketch], "5%", 3, None, 3)
    (tmp_path / "broken.json").write_text('{"name": 3}')
    with pytest.raises(UserError, match=r"broken.json is damaged \(it has no checksum"):
        plan_power([tmp_path / "broken.json"], "5%", 3, None, 3)
    good = stored(example(), tmp_path, "good")
    with pytest.raises(UserError, match="unknown arm 'uniform-time'; did you mean 'uniform_time'"):
        plan_power([good], "5%", 3, None, 3, without=["uniform-time"])
    assert plan_power([sketch, good], "5%", 3, None, 3).skipped == ["sketch: one seed only, so its spread is not known"]


def test_stored_runs_of_the_baseline_are_planned_with(tmp_path: Path) -> None:
    """The past baseline's runs, each once, serve the new study as `analysis.bank` lets them."""
    folder = stored(example(), tmp_path)
    alone, served = (plan_power([folder], "5%", 5, "fd_scenes", 3, control=False, bank=bank) for bank in (False, True))
    assert [plan.groups[0].stored for plan in (alone, served)] == [0, 6]
    assert row(served, "fd_scenes").detectable[0] < row(alone, "fd_scenes").detectable[0]
    assert "With analysis.bank: 6 stored runs" in shown(served) and "analysis.bank" not in shown(alone)
