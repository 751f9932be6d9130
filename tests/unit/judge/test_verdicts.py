"""Verdicts on plain values: what an interval says, what is counted, and that a study says the same."""

from __future__ import annotations

import csv
import math
from pathlib import Path

import pytest

import tintype
from tintype.errors import UserError
from tintype.study.compare import compare
from tintype.study.contrasts import Asked, own_key
from tintype.study.results import Role, Run, read_results_file
from tintype.study.stats.cells import PAD
from tintype.study.stats.contrast import against

ROOT = Path(__file__).parents[3]
BANK = ROOT / "studies" / "2026-11-17_bank-mini"
SPREAD = [0.0, 0.01, -0.01, 0.005, -0.005]


def around(mean: float, times: float = 1.0) -> list[float]:
    return [mean * (1 + times * one) for one in SPREAD]


@pytest.mark.parametrize(
    ("mean", "times", "higher", "lower"),
    [
        (0.62, 1, "better", "worse"),
        (0.5, 1, "worse", "better"),
        (0.552, 1, "same", "same"),
        (0.56, 5, "undecided", "undecided"),
    ],
)
def test_the_interval_is_the_verdict(mean: float, times: float, higher: str, lower: str) -> None:
    for direction, verdict in (("higher", higher), ("lower", lower)):
        values = {"baseline": around(0.55, times), "muon": around(mean, times)[::-1]}  # not paired
        row = tintype.estimate(values, direction=direction)["muon"]  # type: ignore[arg-type]
        assert row.verdict == row.words == verdict
        assert row.low is not None and row.high is not None and row.p is not None
        assert row.low < row.difference < row.high and row.difference == pytest.approx(mean - 0.55)
        assert (row.seeds_needed is not None) == (verdict == "undecided")
        assert row.margin == pytest.approx(0.03 * 0.55)


def test_lists_seeds_and_metrics_are_three_ways_to_say_the_same() -> None:
    lists = {"baseline": around(5), "muon": around(4)}
    seeds = {arm: dict(enumerate(of)) for arm, of in lists.items()}
    metrics = {arm: {"fid": of} for arm, of in lists.items()}
    one, two = (tintype.estimate(given, direction="lower", kind="distance") for given in (lists, seeds))
    three = tintype.estimate(metrics)
    assert (one["muon"].low, one["muon"].scale) == (two["muon"].low, "log") == (three["muon", "fid"].low, "log")
    assert three.metrics[0].guessed and "lower is better in fid (distance)" in three.notes[0]
    assert (
        "fid" in str(three)
        and "better" in three._repr_html_()
        and repr(three) == "<Judgement of 1 arm against baseline>"
    )
    assert three.rows()[0]["verdict"] == "better" and [row.arm for row in three] == ["muon"]


def test_primary_metrics_have_four_fifths_of_the_error() -> None:
    values = {arm: {"fid": around(5), "loss": around(2), "accuracy": around(0.5)} for arm in ("baseline", "a", "b")}
    plain, named = tintype.estimate(values), tintype.estimate(values, primary="fid")
    assert {round(1 - row.level, 6) for row in plain} == {round(0.05 / 6, 6)}
    assert 1 - named["a", "fid"].level == pytest.approx(0.8 * 0.05 / 2)
    assert 1 - named["a", "loss"].level == pytest.approx(0.2 * 0.05 / 4)
    assert "spends the whole error of 5%: 6 comparisons share it, four fifths" in named.notes[1]


def test_one_run_of_each_arm_is_a_sketch() -> None:
    found = tintype.estimate({"baseline": [0.5], "muon": [0.6]}, direction="higher")
    assert found.sketch and found["muon"].verdict == "sketch" and found["muon"].low is None
    assert "One run for each arm: the spread over seeds is unknown" in found.notes[0]


def test_few_seeds_and_other_seeds_are_said() -> None:
    found = tintype.estimate(
        {"baseline": {0: 1.0, 1: 1.1, 2: 1.05}, "a": {5: 3.0, 6: 3.1, 7: 3.05}}, direction="higher"
    )
    assert found["a"].verdict == "better"
    assert any("Verdicts from 3 seeds are a sketch" in note for note in found.notes)
    assert any("Not the seeds of the baseline: a." in note for note in found.notes)


def test_a_difference_within_the_margin_is_said() -> None:
    values = {"baseline": {"loss": around(2, 0.1)}, "a": {"loss": around(1.97, 0.1)}, "b": {"loss": around(2, 0.1)}}
    found = tintype.estimate(values)
    assert [row.verdict for row in found] == ["same", "same"]
    assert any(
        "Same, a in loss: a difference is shown, and it is within the margin of 3%" in one for one in found.notes
    )
    assert tintype.estimate(values, margin="0.5%")["a"].verdict == "better"


def test_a_diverged_run_is_counted_and_not_averaged_away() -> None:
    found = tintype.estimate(
        {"baseline": around(5), "a": [*around(4)[:4], math.inf], "b": around(5)}, direction="lower"
    )
    row = found["a"]
    assert (row.verdict, row.words, row.seeds) == ("diverged", "diverged 1 of 5", 4) and row.low is not None
    assert found["b"].verdict == "same"
    found = tintype.estimate({"baseline": [math.nan, *around(5)], "a": around(4)}, direction="lower")
    assert found["a"].words == "baseline diverged 1 of 6"
    found = tintype.estimate({"baseline": around(5), "a": [math.nan, math.nan], "b": around(3)}, direction="lower")
    assert found["a"].verdict == "diverged" and math.isnan(found["a"].difference) and found["b"].verdict == "better"


def test_a_missing_value_leaves_the_comparison_incomplete() -> None:
    values = {"baseline": {"fid": around(5)}, "a": {"fid": {0: 4.0, 1: 4.1, 2: None}}}
    row = tintype.estimate(values)["a"]  # type: ignore[arg-type]
    assert (row.verdict, row.words) == ("incomplete", "no value 1 of 3")


def test_an_arm_is_unstable_where_it_collapses_more_often_than_the_baseline() -> None:
    one = {"baseline": around(0.6), "a": [*around(0.65), 0.1], "b": around(0.6)}
    found = tintype.estimate(one, direction="higher")
    assert found["a"].verdict != "unstable" and found["a"].collapsed == ("5",)
    assert found["a"].mean > 0.6 and any("a in value, seed 5" in note for note in found.notes)
    many = {"baseline": around(0.6) * 3, "a": [*around(0.65) * 2, 0.1, 0.11, 0.1, 0.12, 0.11, 0.1, 0.1]}
    assert tintype.estimate(many, direction="higher")["a"].words == "unstable: 7 of 17 runs collapsed"


def test_equal_runs_have_no_spread() -> None:
    found = tintype.estimate({"baseline": [1.0, 1.0], "a": [1.0, 1.0], "b": [2.0, 2.0]}, direction="higher")
    assert (found["a"].verdict, found["b"].verdict) == ("identical", "no spread")


@pytest.mark.parametrize(
    ("values", "options", "words"),
    [
        ({}, {}, "no values are given; give the values of each arm"),
        ({"baseline": [1.0, 2.0]}, {"direction": "lower"}, "is the only arm"),
        ({"base": [1.0], "muon": [2.0]}, {"direction": "lower"}, "no arm has the name 'baseline'"),
        ({"adamw": [1.0], "muon": [2.0]}, {"baseline": "adam", "direction": "lower"}, "did you mean 'adamw'?"),
        ({"baseline": [1.0], "muon": [2.0]}, {}, "whether lower or higher values of 'value' are better"),
        ({"baseline": [1.0], "muon": [2.0]}, {"direction": "up"}, "direction 'up'"),
        ({"baseline": [1.0], "muon": [2.0]}, {"direction": "lower", "kind": "x"}, "kind 'x'"),
        ({"baseline": [1.0], "muon": ["x"]}, {"direction": "lower"}, "arm 'muon', seed 0: 'x' is not a number"),
        ({"baseline": [1.0], "muon": 3}, {"direction": "lower"}, "arm 'muon': 3 is neither a list"),
        ({"baseline": [1.0], "muon": []}, {"direction": "lower"}, "arm 'muon' has no runs"),
        (
            {"baseline": [1.0], "muon": [2.0]},
            {"direction": "lower", "margin": "x"},
            'margin="x" is not a valid size of a difference; write a percentage of',
        ),
        ({"baseline": [1.0], "muon": [2.0]}, {"direction": "lower", "primary": "z"}, 'primary="z": no such metric'),
    ],
)
def test_mistakes_say_what_to_do(values: dict[str, object], options: dict[str, object], words: str) -> None:
    with pytest.raises(UserError) as caught:
        tintype.estimate(values, **options)  # type: ignore[arg-type]
    assert words in str(caught.value)


def test_a_row_is_asked_for_by_arm_and_metric() -> None:
    found = tintype.estimate({"baseline": {"fid": around(5), "loss": around(2)}, "a": {"fid": [4.0], "loss": [2.0]}})
    with pytest.raises(UserError, match="several metrics"):
        found["a"]
    with pytest.raises(UserError, match="did you mean 'a'"):
        found["aa", "fid"]


METRICS = {
    "scene_accuracy": "share",
    "precision_scenes": "share",
    "recall_scenes": "share",
    "fd_scenes": "distance",
    "validation_loss": "loss",
}
PRIMARY = ["scene_accuracy", "fd_scenes"]


def test_a_study_says_the_same(tmp_path: Path) -> None:
    """The stored runs of a study, as a table and through the study's own comparison, with one family of comparisons."""
    with (BANK / "results.csv").open() as file:
        stored = [one for one in csv.DictReader(file) if one["role"] != "control" and one["metric"] in METRICS]
    runs: dict[str, dict[int, dict[str, float]]] = {}
    for one in stored:
        runs.setdefault(one["arm"], {}).setdefault(int(one["seed"]), {})[one["metric"]] = float(one["value"])
    table = tmp_path / "bank.csv"
    with table.open("w", newline="") as file:
        writer = csv.DictWriter(file, ["arm", "seed", *METRICS])
        writer.writeheader()
        writer.writerows({"arm": arm, "seed": seed, **of} for arm, by in runs.items() for seed, of in by.items())

    roles: dict[str, Role] = {arm: "baseline" if arm == "baseline" else "arm" for arm in runs}
    infos = read_results_file(BANK / "results.json").metrics
    known = {info.name: info.model_copy(update={"pad": PAD}) for info in infos if info.name in METRICS}
    assert set(known) == set(METRICS)
    asked = {
        key: Asked(key, against(arm, "baseline"), {arm: "", "baseline": "baseline"}, ["baseline"])
        for arm in runs
        if arm != "baseline"
        for key in (own_key(arm, "arm", "", metric) for metric in METRICS)
    }
    by_arm = {
        arm: [Run(seed=seed, hash="", folder="", state="done", metrics=of) for seed, of in by.items()]
        for arm, by in runs.items()
    }
    expected = compare({"": roles}, by_arm, known, asked, PRIMARY, asked)

    specs = [f"{name}:{known[name].direction}:{kind}" for name, kind in METRICS.items()]
    found = tintype.judge(table, metric=specs, primary=PRIMARY)
    assert len(expected) == len(found.verdicts) == 15
    for key, row in expected.items():
        own = found[key.arm, key.metric]
        assert (own.verdict, own.level, own.seeds_needed) == (row.verdict, row.level, row.seeds_needed), key
        numbers = ("mean", "baseline_mean", "difference", "low", "high", "p", "margin", "detectable")
        for name in numbers:
            assert getattr(own, name) == pytest.approx(getattr(row, name), rel=1e-9), (key, name)
        values = [run.metrics[key.metric] for run in by_arm[key.arm] if run.seed not in row.collapsed]
        assert list(own.offsets) == pytest.approx([value - row.baseline_mean for value in values])
        assert [int(seed) for seed in own.collapsed] == row.collapsed
    assert {row.verdict for row in found} >= {"better", "worse"}
