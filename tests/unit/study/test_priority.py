"""Priority of arms: gain, cost, ranks and the front, in small made-up studies."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from rich.console import Console

from tests.unit.study.example_results import RESOLUTION
from tests.unit.study.plain_rows import asked_arm, roles_of, runs_of
from tintype.library.studies import Results
from tintype.study.compare import compare
from tintype.study.priority import Priority, no_order, priorities
from tintype.study.report.html import to_html
from tintype.study.report.markdown import to_markdown
from tintype.study.results import (
    Alone,
    AlongArm,
    Arm,
    Between,
    EqualTime,
    Interval,
    LookInfo,
    MetricInfo,
    Reach,
    Run,
    StudyResults,
)
from tintype.terminal.documents import PriorityRow
from tintype.terminal.studies import show_verdicts

LOSS = MetricInfo(name="m", label="M", direction="lower", definition="", primary=True)
BASE = [1.00, 1.02, 0.98, 1.01, 0.99]
NOISE = [0.00, -0.02, 0.02, 0.01, -0.01]
OTHER = [0.02, 0.00, -0.01, -0.02, 0.01]
"""Noise that is not that of the same seeds, so that nothing is paired."""


def at(mean: float, seeds: int = 5, noises: Sequence[float] = NOISE) -> list[float]:
    return [mean + noise for noise in noises[:seeds]]


def study_of(
    values: Mapping[str, Sequence[float] | list[Run]], steps_s: Mapping[str, float | None], **update: object
) -> StudyResults:
    """Return the results of arms with these values, and with these seconds of a step."""
    runs = {name: [*of] if isinstance(of[0], Run) else runs_of(of) for name, of in values.items()}  # type: ignore[arg-type]
    asked = {one.key: one for one in (asked_arm(name) for name in runs if name != "baseline")}
    rows = compare({"": roles_of(runs)}, runs, {"m": LOSS}, asked, ["m"], asked)
    arms = [
        Arm(
            name=name,
            role=role,
            summary="",
            techniques=[],
            papers=[],
            changes=[],
            runs=runs[name],
            comparisons={key.metric: row for key, row in rows.items() if key.arm == name},
            alone=Alone(shape="a", device="GPU", step_s=steps_s.get(name)),
        )
        for name, role in roles_of(runs).items()
    ]
    look = LookInfo(seeds=[0, 1, 2, 3, 4], share=1.0, made=True)
    found = StudyResults(
        name="s",
        question="?",
        seeds=[0, 1, 2, 3, 4],
        sketch=False,
        confidence=0.95,
        method="",
        metrics=[LOSS],
        arms=arms,
        protocol={},
        resolutions=[RESOLUTION],
        looks=[look],
    )
    return found.model_copy(update=update)


def by_arm(results: StudyResults) -> dict[str, Priority]:
    return {row.arm: row for row in priorities(results)}


THREE = {"baseline": BASE, "good": at(0.8), "fair": at(0.9), "bad": at(1.2)}
EQUAL = dict.fromkeys(THREE, 0.02)


def test_ranks_follow_from_the_orders_that_are_shown() -> None:
    found = by_arm(study_of(THREE, EQUAL))
    assert {name: row.rank for name, row in found.items()} == {
        "good": (1, 1),
        "fair": (2, 2),
        "baseline": (3, 3),
        "bad": (4, 4),
    }
    assert {row.of for row in found.values()} == {4}
    good = found["good"]
    assert good.gain and good.gain.value == pytest.approx(0.2, abs=0.01)
    assert good.gain.low is not None and good.gain.high is not None and 0 < good.gain.low < 0.2 < good.gain.high
    assert found["baseline"].gain is None and found["bad"].gain and found["bad"].gain.value < 0


def test_a_better_arm_that_is_no_dearer_dominates() -> None:
    found = by_arm(study_of(THREE, {"baseline": 0.02, "good": 0.019, "fair": 0.02, "bad": 0.01}))
    assert {name: row.dominated_by for name, row in found.items()} == {
        "good": (),
        "fair": ("good",),
        "baseline": ("good", "fair"),
        "bad": (),
    }
    assert found["bad"].front and found["bad"].cost == pytest.approx(0.5), "it is the cheapest"


def test_a_better_arm_that_is_dearer_does_not() -> None:
    found = by_arm(study_of(THREE, {"baseline": 0.02, "good": 0.04, "fair": 0.03, "bad": 0.021}))
    assert found["good"].front and found["fair"].front and found["baseline"].front
    assert found["bad"].dominated_by == ("baseline",)
    near = by_arm(study_of(THREE, {**EQUAL, "good": 0.0203}))
    assert near["fair"].dominated_by == ("good",), "steps within 2% of each other cost the same"


def test_an_unknown_cost_dominates_nothing_and_is_dominated_by_nothing() -> None:
    found = by_arm(study_of(THREE, {**EQUAL, "good": None}))
    assert found["good"].cost is None and found["good"].front
    assert found["baseline"].dominated_by == ("fair",)
    unknown = by_arm(study_of(THREE, {**EQUAL, "bad": None}))
    assert unknown["bad"].front and unknown["bad"].rank == (4, 4)
    none = by_arm(study_of(THREE, {}))
    assert all(row.front for row in none.values()) and none["good"].rank == (1, 1)


def test_where_no_order_is_shown_all_may_have_all_ranks() -> None:
    rows = priorities(study_of({"baseline": BASE, "b": at(1.001), "a": at(0.999)}, EQUAL))
    assert no_order(rows) and [row.arm for row in rows] == ["baseline", "b", "a"], "the study's order stays"
    assert {row.rank for row in rows} == {(1, 3)} and all(row.front for row in rows)
    assert not no_order(priorities(study_of(THREE, EQUAL)))


def test_the_front_comes_first_then_the_rank_and_never_the_estimate() -> None:
    close = {"baseline": BASE, "first": at(0.81), "second": at(0.805), "cheap": at(1.2)}
    rows = priorities(study_of(close, {**dict.fromkeys(close, 0.02), "cheap": 0.01}))
    assert [(row.arm, row.front) for row in rows] == [
        ("first", True),
        ("second", True),
        ("cheap", True),
        ("baseline", False),
    ]
    assert rows[0].rank == rows[1].rank == (1, 2)


def test_one_arm() -> None:
    found = by_arm(study_of({"baseline": BASE, "a": at(0.8)}, {"baseline": 0.02, "a": 0.02}))
    assert found["a"].rank == (1, 1) and found["baseline"].dominated_by == ("a",)


def test_one_seed_orders_nothing() -> None:
    rows = priorities(study_of({name: of[:1] for name, of in THREE.items()}, EQUAL))
    assert no_order(rows) and {row.rank for row in rows} == {(1, 4)}


def test_an_arm_without_runs_or_in_another_space_is_not_ranked() -> None:
    diverged = [Run(seed=seed, hash=str(seed), folder="", state="diverged") for seed in range(5)]
    rows = priorities(study_of({**THREE, "lost": diverged}, EQUAL))
    assert rows[-1].arm == "lost" and rows[-1].rank is None and rows[-1].front is None
    assert rows[-1].verdict == "diverged 5 of 5" and rows[0].of == 4
    results = study_of(THREE, EQUAL)
    good = results.arms[[arm.name for arm in results.arms].index("good")]
    apart = good.model_copy(update={"comparisons": {}, "incomparable": {"m": "another space"}})
    arms = [apart if arm is good else arm for arm in results.arms]
    found = by_arm(results.model_copy(update={"arms": arms}))
    assert found["good"].verdict == "not comparable: another space" and found["good"].front is None
    assert found["fair"].rank == (1, 1) and found["fair"].front


def test_an_arm_that_collapses_more_often_is_no_better_than_another() -> None:
    many = [0.8 + noise for noise in NOISE] * 3
    falls = [*many[:9], *(9.0 + noise for noise in NOISE), 9.1]
    values = {"baseline": BASE * 3, "unstable": falls, "bad": [1.2 + noise for noise in NOISE] * 3}
    found = by_arm(study_of(values, EQUAL | {"unstable": 0.02}))
    assert found["unstable"].verdict.startswith("unstable")
    assert found["baseline"].front and found["unstable"].rank == (1, 3)
    assert found["bad"].dominated_by == ("baseline",)


def test_arms_of_other_numbers_of_seeds_are_held_against_each_other_by_shared_seeds() -> None:
    longer = {"baseline": BASE, "a": [*at(0.6, 3), 0.7, 0.76], "b": at(0.75, 3, OTHER)}
    assert by_arm(study_of(longer, {}))["b"].rank == (2, 2), "the later runs of `a` would hide that it is better"


def test_a_declared_pair_has_its_verdict_and_no_second_chance() -> None:
    results = study_of(THREE, EQUAL)
    row = next(arm.comparisons["m"] for arm in results.arms if arm.name == "good")
    undecided = Between(first="good", second="fair", comparisons={"m": row.model_copy(update={"verdict": "undecided"})})
    found = by_arm(results.model_copy(update={"between": [undecided]}))
    assert found["good"].rank == found["fair"].rank == (1, 2)
    worse = undecided.model_copy(update={"comparisons": {"m": row.model_copy(update={"verdict": "worse"})}})
    found = by_arm(results.model_copy(update={"between": [worse]}))
    assert found["fair"].rank == (1, 1) and found["good"].dominated_by == ("fair",)


def test_what_is_better_than_the_baseline_is_better_than_what_is_worse() -> None:
    results = study_of(THREE, EQUAL)
    row = next(arm.comparisons["m"] for arm in results.arms if arm.name == "good")

    def with_pair(verdict: str) -> dict[str, Priority]:
        pair = Between(first="good", second="bad", comparisons={"m": row.model_copy(update={"verdict": verdict})})
        return by_arm(results.model_copy(update={"between": [pair]}))

    assert with_pair("undecided")["bad"].rank == (4, 4)
    assert {one.rank for one in with_pair("worse").values()} == {(1, 4)}, "orders that contradict each other show none"


def test_pairs_share_their_error_with_all_others_and_with_all_looks() -> None:
    few = {"baseline": BASE, "a": at(0.8), "b": at(0.84, noises=OTHER)}
    assert by_arm(study_of(few, {}))["b"].rank == (2, 2)
    later = LookInfo(seeds=[0, 1, 2, 3, 4], share=0.01, made=True)
    assert by_arm(study_of(few, {}, looks=[later]))["b"].rank == (1, 2)
    many = few | {f"other {number}": at(1.0) for number in range(6)}
    assert by_arm(study_of(many, {}))["b"].rank == (1, 2)


def test_the_gain_at_equal_time_is_a_share_of_the_baselines_end() -> None:
    results = study_of(THREE, EQUAL)
    never = Interval(value=math.inf)
    one = AlongArm(
        arm="good",
        metric="m",
        runs=5,
        of=5,
        target=2.0,
        target_step=10,
        target_seconds=1.0,
        differences=[],
        reach=Reach(step=never, seconds=never, at_first=False),
        equal_time=EqualTime(seconds=1.0, step=8, difference=Interval(value=-0.5, low=-0.6, high=-0.3)),
        crossing="",
    )
    found = by_arm(results.model_copy(update={"along": [one]}))
    then = found["good"].equal_time
    assert then is not None and (then.value, then.low, then.high) == pytest.approx((0.25, 0.15, 0.3))
    assert found["fair"].equal_time is None and found["good"].row["equal_time"] == 0.25


def test_all_forms_of_the_report_show_it_where_steps_were_timed(tmp_path: Path) -> None:
    results = study_of(THREE | {"unknown": at(1.1)}, {"baseline": 0.02, "good": 0.03, "fair": 0.02, "bad": 0.02})
    words = (
        "M: on the front good (rank 1 of 5); fair (rank 2 of 5); unknown (rank 4 of 5). "
        "Shown worse and no cheaper: baseline (than fair); bad (than baseline and 1 more)."
    )
    text, html = to_markdown(results), to_html(results, tmp_path)
    assert words in text and words in html
    (good,) = re.findall(r"\| good \| (.*) \| 30 ms \(\+50\.0.%\) \| – \| 1 of 5 \| on the front \|", text)
    assert re.fullmatch(r"\+20\.0.% \[\+1\d\.\d.%, \+2\d\.\d.%\]", good)
    assert re.search(r"\| unknown \| .* \| – \| – \| 4 of 5 \| on the front \|", text)
    assert "<title>Gain in M against the time of a step</title>" in html and "× not on the front" in html
    figure = html[html.index("Gain in M against") : html.index(words)]
    assert ">good<" in figure and ">unknown<" not in figure, "it has no place on the axis of costs"
    console = Console(width=400, record=True, file=io.StringIO())
    show_verdicts(results, console)
    assert words in console.export_text()
    rows = Results(tmp_path, results).priority()
    assert [row["arm"] for row in rows] == ["good", "fair", "unknown", "baseline", "bad"]
    assert rows[0]["cost"] == pytest.approx(1.5) and rows[3]["dominated_by"] == ["fair"]
    for row in rows:
        assert PriorityRow.model_validate(row, strict=True) and row.keys() == PriorityRow.model_fields.keys()


def test_a_report_without_step_times_has_no_trace_of_it(tmp_path: Path) -> None:
    for steps_s in ({}, dict.fromkeys(THREE) | {"good": 0.02}, dict.fromkeys(THREE) | {"baseline": 0.02}):
        results = study_of(THREE, steps_s)
        assert "adopt first" not in to_markdown(results) and "adopt first" not in to_html(results, tmp_path)
        assert Results(tmp_path, results).priority()[0]["rank_high"] == 1


def test_where_no_order_is_shown_the_report_says_so(tmp_path: Path) -> None:
    results = study_of(
        {"baseline": BASE, "a": at(1.001), "b": at(0.999)}, dict.fromkeys("ab", 0.02) | {"baseline": 0.02}
    )
    assert "M: no order shown." in to_markdown(results)
