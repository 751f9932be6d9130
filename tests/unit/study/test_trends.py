"""Trends with the number of tokens: the numbers against scipy, and one correction for the whole study."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.unit.study.example_results import METRICS, example, several
from tintype.config.strict import read_yaml
from tintype.evaluation.protocol import definitions
from tintype.study.compare import _compared, _trend, _trend_pairs, metric_infos, planned_comparisons
from tintype.study.pairs import Key, Pair
from tintype.study.report import findings
from tintype.study.results import Comparison, Run, Trend
from tintype.study.shares import count_comparisons, counts_of, is_tested, weights_of
from tintype.study.spread import Groups, against, difference
from tintype.study.study import Study, read_settings, resolve
from tintype.study.trends import NO_RUNS, NOT_POSITIVE, UNPAIRED, Level, relative_effect, trend_key, trend_pair
from tintype.study.verdicts import compare

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


def study(text: str = STUDY) -> Study:
    return resolve("test", read_settings(read_yaml(text, "study.yaml"), Path()))


def runs_of(values: list[float], metric: str = "m") -> list[Run]:
    return [
        Run(seed=seed, hash=str(seed), folder="", state="done", metrics={metric: value})
        for seed, value in enumerate(values)
    ]


def level(new: list[float], old: list[float], resolution: str = "r") -> Level:
    return Level(resolution, runs_of(new), runs_of(old))


FEW = level([2.0, 2.4, 2.1], [1.9, 2.2, 2.2], "coarse")
MOST = level([9.0, 12.0, 10.5], [6.0, 7.0, 8.0], "fine")


def test_a_trend_pairs_the_logarithms_of_the_ratios() -> None:
    pair = trend_pair(FEW, MOST, "m")
    assert isinstance(pair, Pair) and pair.complete and pair.shared_seeds
    fewest = np.log([2.0 / 1.9, 2.4 / 2.2, 2.1 / 2.2])
    most = np.log([9.0 / 6.0, 12.0 / 7.0, 10.5 / 8.0])
    assert pair.new == pytest.approx(most.tolist()) and pair.old == pytest.approx(fewest.tolist())


def test_a_relative_effect_has_the_interval_of_the_logarithms() -> None:
    effect = relative_effect(MOST, "m", True)
    assert effect is not None and effect.resolution == "fine"
    sets = {"arm": dict(enumerate(np.log([9.0, 12.0, 10.5]))), "baseline": dict(enumerate(np.log([6.0, 7.0, 8.0])))}
    expected = difference([against(Groups(sets, {}), "arm", ["baseline"])])
    low, high = expected.interval(0.95) or (0.0, 0.0)
    assert (effect.value, effect.low, effect.high) == pytest.approx((expected.value, low, high))


def test_a_relative_effect_leaves_out_runs_that_fell_off() -> None:
    new, old = [0.74, 0.73, 0.72, 0.75, 0.30], [0.71, 0.73, 0.72, 0.75, 0.74, 0.20]
    effect = relative_effect(replace(level(new, old), fallen=[4], baseline_fallen=[5]), "m", True)
    assert effect is not None and effect.low is not None and effect.high is not None
    assert effect.value == pytest.approx(float(np.mean(np.log(new[:4])) - np.mean(np.log(old[:5]))))
    assert -0.1 < effect.low < effect.value < effect.high < 0.1


@pytest.mark.parametrize("bad", [0.0, -0.1])
def test_where_a_value_is_not_positive_there_is_no_relative_effect(bad: float) -> None:
    assert trend_pair(FEW, level([9.0, bad, 10.5], [6.0, 7.0, 8.0]), "m") == NOT_POSITIVE
    assert trend_pair(level([1.0, 1.0, 1.0], [1.0, 1.0, bad]), MOST, "m") == NOT_POSITIVE
    assert relative_effect(level([1.0, 2.0], [1.0, bad]), "m", True) is None


def test_a_seed_that_lost_a_run_leaves_the_trend_incomplete() -> None:
    pair = trend_pair(FEW, level([9.0, math.nan, 10.5], [6.0, 7.0, 8.0]), "m")
    assert isinstance(pair, Pair) and not pair.complete and len(pair.new) == len(pair.old) == 2
    assert trend_pair(FEW, MOST, "another metric") == NO_RUNS


def test_a_trend_says_how_many_seeds_diverged() -> None:
    def lost(*seeds: int) -> Level:
        runs = list(MOST.new)
        for seed in seeds:
            runs[seed] = Run(seed=seed, hash="", folder="", state="diverged")
        return Level("fine", runs, MOST.old)

    partly, wholly = trend_pair(FEW, lost(1), "m"), trend_pair(FEW, lost(0, 1, 2), "m")
    assert isinstance(partly, Pair) and isinstance(wholly, Pair)
    assert len(partly.new) == 2 and partly.lost == "diverged at 1 of 3 seeds"
    assert wholly.new == [] and wholly.lost == "diverged at 3 of 3 seeds"
    (row,) = compare({("a", "m"): wholly}, {"m": METRICS[0]}).values()
    trend = Trend(arm="a", metric="m", effects=[], comparison=row)
    assert findings.trend_words(trend, METRICS[0]) == "diverged at 3 of 3 seeds"


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


def all_rows(one: Study, runs: dict[str, list[Run]]) -> dict[Key, Comparison]:
    meanings = metric_infos(one)
    return _compared(one, runs, meanings, _trend_pairs(one, runs), planned_comparisons(one, meanings))


def test_every_arm_is_compared_with_the_baseline_of_its_resolution_and_all_are_corrected_together() -> None:
    one = study()
    runs, meanings = made_up(one), definitions(one.settings.evaluation)
    trends, rows = _trend_pairs(one, runs), all_rows(one, runs)
    primary = one.settings.primary
    between = [(arm, metric) for arm in ("x-prediction", "ema") for metric in (*primary, "images_per_s")]
    assert {trend_key(*key) for key in between} <= set(rows)
    assert len(rows) == 3 * 3 * len(meanings) + len(between)
    assert all(trends["control", metric] == UNPAIRED for metric in primary)
    for (label, _), row in rows.items():
        if label.endswith(("coarse", "middle", "fine")):
            assert abs(row.difference / row.baseline_mean) < 0.1
    tested = {key: row for key, row in rows.items() if key[1] != "images_per_s"}
    assert all(row.verdict == "measured" and row.p is None for key, row in rows.items() if key not in tested)
    for key, weight in weights_of(tested, primary).items():
        p, corrected = tested[key].p, tested[key].p_adjusted
        assert p is not None and corrected == pytest.approx(min(1.0, p / weight))


ALONE = STUDY[: STUDY.index("resolutions")] + STUDY[STUDY.index("seeds") :]


def test_what_is_planned_is_what_is_counted() -> None:
    """By the formula that a study is checked with before it has plans, and by the list that is corrected."""
    without = STUDY.replace("control_seeds: [7, 8, 9]\n", "")
    for text, resolutions in ((STUDY, 3), (without, 3), (STUDY + "primary: [images_per_s]\n", 3), (ALONE, 1)):
        one = study(text)
        control, primary = bool(one.settings.control_seeds), one.settings.primary
        meanings = definitions(one.settings.evaluation)
        expected = count_comparisons(2, control, resolutions, primary, list(meanings))
        planned = [key for key in planned_comparisons(one, meanings) if is_tested(key[1])]
        assert counts_of(planned, primary) == expected


def test_the_trend_is_between_the_fewest_and_the_most_tokens() -> None:
    one = study()
    runs = made_up(one)
    pair = _trend_pairs(one, runs)["ema", "fd_scenes"]
    assert isinstance(pair, Pair)
    for effects, where in ((pair.new, "fine"), (pair.old, "coarse")):
        arm, baseline = (
            [run.metrics["fd_scenes"] for run in runs[f"{name} @ {where}"]] for name in ("ema", "baseline")
        )
        assert effects == pytest.approx(np.log(np.array(arm) / np.array(baseline)))


def test_a_run_that_fell_off_makes_the_trend_unstable() -> None:
    """Without this the trend would be better or worse by the runs that are left, at one of its ends."""
    one = study(STUDY.replace("seeds: [0, 1, 2]", "seeds: [0, 1, 2, 3]").replace("[7, 8, 9]", "[6, 7, 8, 9]"))
    runs, key = made_up(one), trend_key("ema", "fd_scenes")
    assert all_rows(one, runs)[key].verdict in ("undecided", "same")
    for arm, words in (
        ("ema", "unstable: 1 of 4 runs fell off"),
        ("baseline", "unstable: runs of the baseline fell off"),
    ):
        fallen = {label: list(of_arm) for label, of_arm in runs.items()}
        label = f"{arm} @ coarse"
        run = fallen[label][2]
        fallen[label][2] = run.model_copy(update={"metrics": {name: 50 * value for name, value in run.metrics.items()}})
        rows = all_rows(one, fallen)
        assert rows[key].verdict == "unstable" and rows[key].words == words
        trend = _trend(("ema", "fd_scenes"), one, fallen, _trend_pairs(one, fallen)["ema", "fd_scenes"], rows)
        assert all(abs(effect.value) < 0.05 for effect in trend.effects), "no mean over fallen and healthy runs"


def test_a_margin_in_the_metrics_unit_is_a_ratio_to_the_baseline() -> None:
    """The baselines' means are near 1 and 100, so 2 of the metric's unit are 2%, and not a factor of three."""
    margins = []
    for margin in ("2", "2%"):
        one = study(STUDY + f"analysis: {{margin: '{margin}'}}\n")
        row = all_rows(one, made_up(one))[trend_key("ema", "fd_scenes")]
        assert row.margin is not None
        margins.append(row.margin)
    assert margins[0] == pytest.approx(margins[1], rel=0.05)


def test_without_resolutions_there_is_no_trend() -> None:
    assert _trend_pairs(study(ALONE), {}) == {}


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
    trend = Trend(arm="a", metric=metric.name, effects=[], comparison=Comparison.model_validate(row.model_dump()))
    assert findings.trend_words(trend, metric) == words
    none = trend.model_copy(update={"comparison": None, "undefined": NOT_POSITIVE})
    assert findings.trend_words(none, metric) == "not defined"
    for reason in (NO_RUNS, ""):
        assert findings.trend_words(none.model_copy(update={"undefined": reason}), metric) == "incomplete"


def test_effects_that_are_the_same_up_to_rounding_are_no_trend() -> None:
    few, three_times = level([0.1, 0.2, 0.3], [0.1, 0.2, 0.3]), level([0.3, 0.6, 0.9], [0.1, 0.2, 0.3])
    pair = trend_pair(few, three_times, "m")
    assert isinstance(pair, Pair)
    row = compare({("a", "m"): pair}, {"m": METRICS[0]})["a", "m"]
    assert row.difference > 1 and row.verdict == "no spread"
    close = [1 + 1e-15, 1 + 3e-15, 1 + 2e-15]
    nearly = trend_pair(few, level(close, [1.0] * 3), "m")  # the logarithms are as small as their rounding
    assert isinstance(nearly, Pair)
    assert compare({("a", "m"): nearly}, {"m": METRICS[0]})["a", "m"].verdict == "identical"


def test_the_made_up_study_finds_its_trend() -> None:
    """Short captions harm five times less at the fine resolution."""
    found = {(t.arm, t.metric): findings.trend_words(t, m) for t, m in findings.compared_trends(several())}
    assert found["short_captions", "scene_accuracy"] == "hurts less"
    assert "control" not in {arm for arm, _ in found}


def test_an_arm_that_diverged_at_every_seed_is_no_incomplete_one() -> None:
    one = study()
    runs = made_up(one)
    arm, half, waiting = (f"{name} @ middle" for name in ("x-prediction", "ema", "control"))
    runs[arm] = [run.model_copy(update={"state": "diverged", "metrics": {}}) for run in runs[arm]]
    runs[half][1] = runs[half][1].model_copy(update={"state": "failed", "metrics": {}})
    runs[waiting][0] = runs[waiting][0].model_copy(update={"state": "missing", "metrics": {}})
    rows = all_rows(one, runs)
    found = {name: (rows[name, "fd_scenes"].verdict, rows[name, "fd_scenes"].words) for name in (arm, half, waiting)}
    assert found == {
        arm: ("diverged", "diverged 3 of 3"),
        half: ("failed", "failed 1 of 3"),
        waiting: ("incomplete", "incomplete"),
    }
    baseline = "baseline @ middle"
    runs = made_up(one) | {
        baseline: [run.model_copy(update={"state": "diverged", "metrics": {}}) for run in runs[baseline]]
    }
    assert all_rows(one, runs)[half, "fd_scenes"].words == "baseline diverged 3 of 3"
