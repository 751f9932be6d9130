"""Trends with the number of tokens: the numbers against numpy, and one correction for the whole study."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from tests.unit.study.example_results import METRICS, example, several
from tintype.config.strict import read_yaml
from tintype.evaluation.protocol import definitions
from tintype.study import numbers
from tintype.study.compare import Reading, read_at_looks
from tintype.study.contrasts import UNPAIRED, asked_of, count_comparisons, is_tested, own_key, trend_key
from tintype.study.results import Comparison, Run, Trend
from tintype.study.runs import metric_infos
from tintype.study.stats.cells import LOG, Cells
from tintype.study.stats.contrast import OF_ARMS, against
from tintype.study.stats.estimate import estimate
from tintype.study.stats.family import counts_of, weights_of
from tintype.study.study import Study, read_settings, resolve
from tintype.study.verdicts import NO_RUNS, NOT_POSITIVE, Matched, match

STUDY = """
question: why?
recipe: pocket
resolutions:
  - {name: fine, set: [model.patch=2]}
  - {name: coarse, set: [model.patch=8]}
  - {name: middle}
seeds: [0, 1, 2]
control_seeds: [7, 8, 9]
arms: [{techniques: [x-prediction]}, {techniques: [ema]}]
"""


METRIC = "fd_scenes"
EMA = trend_key("ema", METRIC)


def study(text: str = STUDY) -> Study:
    return resolve("test", read_settings(read_yaml(text, "study.yaml"), Path()))


def made_up(one: Study) -> dict[str, list[Run]]:
    """Runs with every metric; each baseline has a level of its own, so a wrong partner would be seen."""
    draw, meanings = np.random.default_rng(0), definitions(one.settings.evaluation)
    scale = {"coarse": 1.0, "middle": 10.0, "fine": 100.0}
    return {
        arm.label: [
            Run(
                seed=plan.seed,
                hash=plan.hash,
                folder="",
                state="done",
                metrics={name: scale[arm.resolution] * (1 + 0.01 * draw.normal()) for name in meanings},
            )
            for plan in arm.plans
        ]
        for arm in one.arms
    }


def with_values(runs: dict[str, list[Run]], **values: Sequence[float | None]) -> dict[str, list[Run]]:
    """Return the runs with other values of the metric, as `ema_fine`. None: the run diverged."""
    changed = dict(runs)
    for name, of_arm in values.items():
        label = name.replace("_", " @ ")
        changed[label] = [
            run.model_copy(update={"state": "diverged", "metrics": {}})
            if value is None
            else run.model_copy(update={"metrics": {**run.metrics, METRIC: value}})
            for run, value in zip(runs[label], of_arm, strict=True)
        ]
    return changed


def read(one: Study, runs: dict[str, list[Run]]) -> Reading:
    return read_at_looks(one, runs, metric_infos(one), [])


def trends_of(reading: Reading) -> dict[tuple[str, str], Trend]:
    return {(trend.arm, trend.metric): trend for trend in reading.verdicts()["trends"]}


def matched(runs: dict[str, list[Run]], one: Study | None = None) -> Matched | str:
    return match(asked_of(one or study(), [METRIC])[EMA], runs, METRIC)


FEW = {"ema_coarse": [2.0, 2.4, 2.1], "baseline_coarse": [1.9, 2.2, 2.2]}
MOST = {"ema_fine": [9.0, 12.0, 10.5], "baseline_fine": [6.0, 7.0, 8.0]}


def test_a_trend_is_between_the_logarithms_of_the_ratios_at_the_fewest_and_the_most_tokens() -> None:
    one = study()
    runs = with_values(made_up(one), **FEW, **MOST)
    found = matched(runs)
    fewest = np.log([2.0 / 1.9, 2.4 / 2.2, 2.1 / 2.2])
    most = np.log([9.0 / 6.0, 12.0 / 7.0, 10.5 / 8.0])
    assert isinstance(found, Matched) and found.complete
    assert found.old == pytest.approx(fewest.tolist()) and found.differences == pytest.approx((most - fewest).tolist())


def test_the_effects_of_a_trend_are_in_the_middle_of_its_difference() -> None:
    one = study(STUDY.replace("control_seeds: [7, 8, 9]\n", ""))
    runs = with_values(made_up(one), **FEW, **MOST)
    trend = trends_of(read(one, runs))["ema", METRIC]
    assert list(trend.effects) == ["coarse", "middle", "fine"] and trend.comparison
    fewest, most = trend.effects["coarse"], trend.effects["fine"]
    assert trend.comparison.scale == "ratio" and trend.comparison.baseline_mean == pytest.approx(fewest.value)
    assert trend.comparison.mean == pytest.approx(most.value)
    assert trend.comparison.difference == pytest.approx(most.value - fewest.value)
    sets = {"arm": np.log([9.0, 12.0, 10.5]), "baseline": np.log([6.0, 7.0, 8.0])}
    expected = estimate(Cells({n: dict(enumerate(of)) for n, of in sets.items()}, LOG), against("arm", "baseline"))
    assert most.ends == pytest.approx(expected.interval)


@pytest.mark.parametrize("bad", [0.0, -0.1])
def test_where_a_value_is_not_positive_there_is_no_relative_effect(bad: float) -> None:
    one = study()
    for where in ("ema_fine", "baseline_coarse"):
        runs = with_values(made_up(one), **{where: [9.0, bad, 10.5]})
        assert matched(runs) == NOT_POSITIVE
        reading = read(one, runs)
        trend = trends_of(reading)["ema", METRIC]
        assert trend.undefined == NOT_POSITIVE and trend.comparison is None and EMA not in reading.rows
        assert where.split("_")[1] not in trend.effects


@pytest.mark.parametrize("bad", ["ema_fine", "baseline_fine"])
def test_a_value_that_is_not_positive_beside_a_lost_run_leaves_the_trend_undefined(bad: str) -> None:
    one = study(STUDY.replace("control_seeds: [7, 8, 9]\n", ""))
    runs = with_values(made_up(one), **FEW, **MOST)
    lost = {name: 0.0 if name == bad else None for name in MOST}
    changed = with_values(runs, **{name: [of[0], lost[name], of[2]] for name, of in MOST.items()})
    reading = read(one, changed)
    assert EMA not in reading.rows and trends_of(reading)["ema", METRIC].undefined == NOT_POSITIVE


def test_a_seed_that_lost_a_run_leaves_the_trend_without_a_verdict() -> None:
    one = study()
    runs = with_values(made_up(one), **FEW, ema_fine=[9.0, None, 10.5])
    found = matched(runs)
    assert isinstance(found, Matched) and not found.complete and len(found.old) == len(found.differences) == 2
    assert found.lost == "ema @ fine diverged 1 of 3" and read(one, runs).rows[EMA].verdict == "diverged"
    wholly = with_values(runs, ema_fine=[None] * 3)
    trend = trends_of(read(one, wholly))["ema", METRIC]
    assert numbers.trend_words(trend, metric_infos(one)[METRIC]) == "ema @ fine diverged 3 of 3"
    missing = [run.model_copy(update={"state": "missing", "metrics": {}}) for run in runs["ema @ fine"]]
    assert matched({**runs, "ema @ fine": missing}) == NO_RUNS


def test_every_arm_is_compared_with_the_baseline_of_its_resolution_and_all_are_corrected_together() -> None:
    one = study()
    reading, meanings = read(one, made_up(one)), definitions(one.settings.evaluation)
    rows, primary = reading.rows, one.settings.primary
    between = [trend_key(arm, metric) for arm in ("x-prediction", "ema") for metric in (*primary, "images_per_s")]
    assert set(between) <= set(rows)
    assert len(rows) == 3 * 3 * len(meanings) + len(between)
    assert all(trends_of(reading)["control", metric].undefined == UNPAIRED for metric in primary)
    for row in (row for key, row in rows.items() if key.kind in OF_ARMS):
        assert abs(row.difference / row.baseline_mean) < 0.1
    tested = {key: row for key, row in rows.items() if key.metric != "images_per_s"}
    assert all(row.verdict == "measured" and row.p is None for key, row in rows.items() if key not in tested)
    first_look = 0.8
    for key, weight in weights_of(tested, primary).items():
        p, corrected = tested[key].p, tested[key].p_adjusted
        assert p is not None and corrected == pytest.approx(min(1.0, p / weight / first_look))


ALONE = STUDY[: STUDY.index("resolutions")] + STUDY[STUDY.index("seeds") :]


def test_what_is_planned_is_what_is_counted() -> None:
    """By the formula that a study is checked with before it has plans, and by the list that is corrected."""
    without = STUDY.replace("control_seeds: [7, 8, 9]\n", "")
    for text, resolutions in ((STUDY, 3), (without, 3), (STUDY + "primary: [images_per_s]\n", 3), (ALONE, 1)):
        one = study(text)
        control, primary = bool(one.settings.control_seeds), one.settings.primary
        meanings = definitions(one.settings.evaluation)
        expected = count_comparisons(2, control, resolutions, primary, list(meanings))
        planned = [key for key in asked_of(one, meanings) if is_tested(key.metric)]
        assert counts_of(planned, primary) == expected
        assert (resolutions > 1) == any(key.kind == "trend" for key in asked_of(one, meanings))


def test_a_collapsed_run_is_left_out_of_the_trend() -> None:
    """Its difference with all runs is shown beside it."""
    one = study(STUDY.replace("seeds: [0, 1, 2]", "seeds: [0, 1, 2, 3]").replace("[7, 8, 9]", "[6, 7, 8, 9]"))
    runs = made_up(one)
    whole = read(one, runs).rows[EMA]
    assert whole.verdict in ("undecided", "same") and whole.all_runs is None
    for arm in ("ema", "baseline"):
        label = f"{arm} @ coarse"
        values = [run.metrics[METRIC] * (50 if index == 2 else 1) for index, run in enumerate(runs[label])]
        reading = read(one, with_values(runs, **{f"{arm}_coarse": list(values)}))
        row = reading.rows[EMA]
        assert row.verdict in ("undecided", "same") and len(row.collapsed + row.baseline_collapsed) == 1
        assert row.all_runs is not None and abs(row.all_runs.value - row.difference) > 0.4
        effects = trends_of(reading)["ema", METRIC].effects
        assert len(effects) == 3
        assert all(abs(effect.value) < 0.05 for effect in effects.values()), "no mean over collapsed and healthy runs"


def test_a_margin_in_the_metrics_unit_is_a_ratio_to_the_baseline() -> None:
    """The baselines' means are near 1 and 100, so 2 of the metric's unit are 2%, and not a factor of three."""
    margins = []
    for margin in ("2", "2%"):
        one = study(STUDY + f"analysis: {{margin: '{margin}'}}\n")
        row = read(one, made_up(one)).rows[EMA]
        assert row.margin is not None
        margins.append(row.margin)
    assert margins[0] == pytest.approx(margins[1], rel=0.05)


@pytest.mark.parametrize(
    ("direction", "at_fewest", "at_most", "verdict", "words"),
    [
        ("higher", 0.1, 0.3, "better", "helps more"),
        ("higher", -0.3, -0.1, "better", "hurts less"),
        ("higher", 0.3, 0.1, "worse", "helps less"),
        ("higher", -0.1, -0.3, "worse", "hurts more"),
        ("lower", -0.1, -0.3, "better", "helps more"),
        ("lower", 0.1, 0.3, "worse", "hurts more"),
        ("lower", 0.1, 0.3, "undecided", "undecided"),
        ("lower", 0.1, 0.3, "sketch", "sketch"),
    ],
)
def test_the_verdict_in_words(direction: str, at_fewest: float, at_most: float, verdict: str, words: str) -> None:
    row = (
        example()
        .arms[2]
        .comparisons["recall"]
        .model_copy(update={"mean": at_most, "baseline_mean": at_fewest, "verdict": verdict})
    )
    metric = METRICS[0].model_copy(update={"direction": direction})
    trend = Trend(arm="a", metric=metric.name, effects={}, comparison=Comparison.model_validate(row.model_dump()))
    assert numbers.trend_words(trend, metric) == words
    none = trend.model_copy(update={"comparison": None, "undefined": NOT_POSITIVE})
    assert numbers.trend_words(none, metric) == "not defined"
    for reason in (NO_RUNS, ""):
        assert numbers.trend_words(none.model_copy(update={"undefined": reason}), metric) == "incomplete"


def test_effects_that_are_the_same_up_to_rounding_are_no_trend() -> None:
    """Ratios of three everywhere, and logarithms as small as their rounding, have no spread."""
    one = study(STUDY.replace("control_seeds: [7, 8, 9]\n", ""))
    close, ones = [1 + 1e-15, 1 + 3e-15, 1 + 2e-15], [1.0] * 3
    for fine, verdict in (([3.0] * 3, "no spread"), (close, "identical")):
        values = {"ema_coarse": ones, "baseline_coarse": ones, "ema_fine": fine, "baseline_fine": ones}
        values |= {f"x-prediction_{where}": ones for where in ("coarse", "fine")}
        row = read(one, with_values(made_up(one), **values)).rows[EMA]
        assert row.verdict == verdict and row.p is row.low is None
        assert row.difference == pytest.approx(math.log(fine[0]), abs=1e-12)


def test_the_made_up_study_finds_its_trend() -> None:
    """Short captions harm five times less at the fine resolution."""
    found = {(t.arm, t.metric): numbers.trend_words(t, m) for t, m in numbers.compared_trends(several())}
    assert found["short_captions", "scene_accuracy"] == "hurts less"
    assert "control" not in {arm for arm, _ in found}


def test_an_arm_that_diverged_at_every_seed_is_no_incomplete_one() -> None:
    one = study()
    keys = {name: own_key(name, "control" if name == "control" else "arm", "middle", METRIC) for name in ROLES}
    runs = with_values(made_up(one), **{"x-prediction_middle": [None] * 3})
    for name, seed, state in (("ema", 1, "failed"), ("control", 0, "missing")):
        of_arm = runs[f"{name} @ middle"]
        of_arm[seed] = of_arm[seed].model_copy(update={"state": state, "metrics": {}})
    rows = read(one, runs).rows
    assert {name: (rows[key].verdict, rows[key].words) for name, key in keys.items()} == {
        "x-prediction": ("diverged", "diverged 3 of 3"),
        "ema": ("failed", "failed 1 of 3"),
        "control": ("incomplete", "incomplete"),
    }
    runs = with_values(made_up(one), baseline_middle=[None] * 3)
    assert read(one, runs).rows[keys["ema"]].words == "baseline diverged 3 of 3"


ROLES = ("x-prediction", "ema", "control")
