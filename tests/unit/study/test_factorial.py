"""Factorial arms: which combinations are run, and the weights of their contrasts."""

from __future__ import annotations

from pathlib import Path

import pytest

from tintype.config.strict import read_yaml, write_yaml
from tintype.errors import UserError
from tintype.settings import plain
from tintype.study.factorial import combinations, contrasts
from tintype.study.study import Study, read_settings, resolve

TEXT = """
question: Do they add up?
recipe: pocket
seeds: [0, 1]
factorial:
  - [x-prediction]
  - [muon, train.clip_norm=2.0]
"""


def study(text: str = TEXT) -> Study:
    document = read_yaml(text, "study.yaml")
    return resolve("test", read_settings(document, Path()), place=document.place)


def test_all_combinations_of_two_and_three_factors_are_arms() -> None:
    assert combinations(0) == []
    assert combinations(2) == [(0,), (1,), (0, 1)]
    assert len(combinations(3)) == 7 and combinations(3)[-1] == (0, 1, 2)


def test_more_factors_are_left_out_one_at_a_time() -> None:
    assert combinations(4) == [
        *[(0,), (1,), (2,), (3,)],
        *[(0, 1, 2), (0, 1, 3), (0, 2, 3), (1, 2, 3)],
        (0, 1, 2, 3),
    ]
    assert len(combinations(6)) == 13


def test_the_contrasts_of_two_factors() -> None:
    first, second, both = contrasts(["a", "b"])
    assert first.weights == {"a": 0.5, "": -0.5, "a + b": 0.5, "b": -0.5}
    assert second.weights == {"b": 0.5, "": -0.5, "a + b": 0.5, "a": -0.5}
    assert both.parts == ("a", "b") and both.weights == {"a + b": 1.0, "a": -1.0, "b": -1.0, "": 1.0}


def test_the_contrasts_of_three_factors() -> None:
    found = contrasts(["a", "b", "c"])
    assert [one.parts for one in found] == [
        *[("a",), ("b",), ("c",)],
        *[("a", "b"), ("a", "c"), ("b", "c")],
        *[("a", "b + c"), ("b", "a + c"), ("c", "a + b")],
    ]
    pairs = {"a": "", "a + b": "b", "a + c": "c", "a + b + c": "b + c"}
    assert found[0].weights == {**dict.fromkeys(pairs, 0.25), **dict.fromkeys(pairs.values(), -0.25)}
    assert found[6].weights == {"a + b + c": 1.0, "a": -1.0, "b + c": -1.0, "": 1.0}


@pytest.mark.parametrize("factors", [2, 3, 4, 5])
def test_contrasts_are_of_arms_that_are_run_and_see_additive_effects_only_as_main_effects(factors: int) -> None:
    labels = [f"f{index}" for index in range(factors)]
    gains = {labels[index]: 10.0**index for index in range(factors)}
    means = {"": 7.0} | {
        " + ".join(labels[index] for index in chosen): 7.0 + sum(10.0**index for index in chosen)
        for chosen in combinations(factors)
    }
    for one in contrasts(labels):
        value = sum(weight * means[name] for name, weight in one.weights.items())
        assert sum(one.weights.values()) == 0.0
        assert value == pytest.approx(0.0 if one.is_interaction else gains[one.parts[0]], abs=1e-9)


def test_combinations_become_arms_with_the_changes_of_their_factors() -> None:
    arms = study().arms
    assert [arm.name for arm in arms] == [
        "baseline",
        "x-prediction",
        "train.clip_norm=2.0 + muon",
        "x-prediction + train.clip_norm=2.0 + muon",
    ]
    parts, both = [set(arm.changes) for arm in arms[1:3]], set(arms[3].changes)
    assert both == parts[0] | parts[1] and "train.clip_norm" in both


def test_a_factor_can_have_a_name_and_survives_the_study_file() -> None:
    named = study(TEXT.replace("[muon, train.clip_norm=2.0]", "{name: fast, techniques: [muon]}"))
    assert [arm.name for arm in named.arms][2:] == ["fast", "x-prediction + fast"]
    again = study(write_yaml(plain(named.settings)))
    assert [arm.plans for arm in again.arms] == [arm.plans for arm in named.arms]


@pytest.mark.parametrize(
    ("new", "message"),
    [
        ("x-prediction", r"line 6: factorial.0: write each factor as a list, \[x-prediction\]"),
        ("[]", "line 6: factorial.0: a factor is a list of techniques and overrides"),
        ("[3]", "line 6: factorial.0: a factor is a list of techniques and overrides"),
        ("[x-predicton]", "line 6: arm 'x-predicton': unknown technique 'x-predicton'; did you mean 'x-prediction'"),
        ("[optimizer.rate=3]", "line 6: arm 'optimizer.rate=3': .*optimizer.rate: unknown key"),
        ("[data.size_px=64]", "line 6: factorial.0: set: data.size_px=64: seed, data, run must be the same"),
        (
            "[train.clip_norm=3.0]",
            "line 5: arm '.*': the factors 'train.clip_norm=3.0' and .* both set train.clip_norm",
        ),
        ("[muon, train.clip_norm=2.0]", "factorial: two factors are called train.clip_norm=2.0 \\+ muon"),
    ],
)
def test_a_factor_that_cannot_be_is_refused_with_its_place(new: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        study(TEXT.replace("[x-prediction]", new))


def test_techniques_that_exclude_each_other_are_refused_by_both_names() -> None:
    text = TEXT.replace("[x-prediction]", "[tread]").replace("[muon, train.clip_norm=2.0]", "[sprint]")
    with pytest.raises(UserError, match="line 5: arm 'tread \\+ sprint': 'tread' and 'sprint' both set the plan's"):
        study(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (TEXT.replace("  - [x-prediction]\n", ""), "is the only factor; add another, or put this one into arms"),
        (
            TEXT + "arms: [{techniques: [x-prediction]}]\n",
            "the arm 'x-prediction' has the same name as a combination of factors",
        ),
    ],
)
def test_a_factorial_needs_two_factors_and_arms_of_its_own(text: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        study(text)
