from __future__ import annotations

import math
from pathlib import Path

import pytest

from tests.edit_checked import edit_json
from tintype.errors import DamagedFileError, UserError
from tintype.study.looks import (
    LOOKS_FILE,
    MadeLook,
    SeedPlan,
    listed_seeds,
    planned_looks,
    read_looks,
    record_looks,
    replay,
    unplanned_looks,
    with_look,
)
from tintype.study.results import Comparison, SeedSet, Verdict
from tintype.study.stats.contrast import Key
from tintype.study.study import load_study
from tools.calibration.looks import false_verdicts


def seeds(count: int, *arms: str) -> MadeLook:
    found = SeedSet(seeds=list(range(count)), control_seeds=list(range(100, 100 + count)))
    return MadeLook.of(found, [Key(arm, "m") for arm in arms])


def row(verdict: Verdict, difference: float = 0.0) -> Comparison:
    return Comparison(mean=1.0, baseline_mean=1.0, differences=[], difference=difference, verdict=verdict)


@pytest.mark.parametrize(
    ("first", "most", "looks"), [(4, 16, (4, 8, 16)), (3, 10, (3, 6, 10)), (5, 5, (5,)), (4, 7, (4, 7))]
)
def test_the_seeds_double_from_look_to_look_until_they_are_the_most(
    first: int, most: int, looks: tuple[int, ...]
) -> None:
    plan = SeedPlan(first=first, most=most)
    assert plan.counts == looks
    assert math.isclose(sum(look.share for look in planned_looks(plan)), 1.0)


def test_planned_looks_add_seeds_and_never_share_them_with_the_control() -> None:
    looks = planned_looks(SeedPlan(first=4, most=16, start=3, looks=(4, 12, 16)))
    assert [look.seeds for look in looks] == [tuple(range(3, 3 + count)) for count in (4, 12, 16)]
    assert [len(look.control_seeds) for look in looks] == [4, 12, 16]
    assert not set(looks[-1].seeds) & set(looks[-1].control_seeds)
    assert [look.share for look in looks] == [4 / 32, 12 / 32, 16 / 32]


def test_a_study_without_control_has_no_control_seeds() -> None:
    assert not SeedPlan(first=2, most=4, control=False).control_seeds


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        ("{first: 4, most: 2}", "seeds: first is 4 and most is 2"),
        ("{first: 4, most: 16, looks: [4, 8]}", r"seeds: looks must begin with first \(4\) and end with most \(16\)"),
        ("{first: 4, most: 16, looks: [4, 8, 8, 16]}", "seeds: looks must increase"),
        ("{first: 1, most: 4}", r"seeds\.first: must be at least 2"),
        ("{first: 4, most: 16, look: [4]}", r"seeds\.look: unknown key; did you mean 'looks'"),
        ("3", r"seeds: give a list, as \[0, 1, 2\], or a plan of looks, as {first: 4, most: 16}"),
    ],
)
def test_a_plan_of_looks_that_makes_no_sense_is_refused(plan: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        load_study("pocket", [f"seeds={plan}", "control_seeds=[]"])


def test_a_study_with_planned_looks_chooses_the_seeds_of_its_control() -> None:
    study = load_study("pocket", ["seeds={first: 4, most: 16}", "control_seeds=[]"])
    assert {arm.name: [plan.seed for plan in arm.plans][::15] for arm in study.arms} == {
        "baseline": [0, 15],
        "control": [1000, 1015],
        "short-captions": [0, 15],
        "x-prediction": [0, 15],
    }
    with pytest.raises(UserError, match=r"control_seeds: with seeds {first, most}, the control's seeds are chosen"):
        load_study("pocket", ["seeds={first: 4, most: 16}"])


def test_looks_that_nobody_planned_never_spend_more_than_the_whole_error() -> None:
    looks = unplanned_looks([seeds(count) for count in range(3, 40)])
    assert [look.share for look in looks[:3]] == pytest.approx([0.8, 0.1, 0.05])
    assert sum(look.share for look in looks) < 1.0
    assert all(look.share > 0 for look in looks)


def test_the_same_seeds_again_are_the_same_look() -> None:
    planned = [Key("a", "m"), Key("b", "m")]
    read = with_look(with_look([], seeds(3), planned), seeds(5), planned)
    assert with_look(read, seeds(3), planned) == read == [seeds(3, "a", "b"), seeds(5, "a", "b")]


def test_the_family_of_a_look_never_shrinks() -> None:
    """Fewer arms at the same seeds are the same look; at other seeds, all that were read before still count."""
    read = [seeds(3, "a", "b", "c")]
    assert with_look(read, seeds(3), [Key("a", "m")]) == read
    assert with_look(read, seeds(5), [Key("a", "m"), Key("d", "m")])[1:] == [seeds(5, "a", "d", "b", "c")]


def test_arms_that_are_added_to_seeds_that_were_read_are_a_look_of_their_own() -> None:
    read = [seeds(3, "a", "b"), seeds(5, "a", "b")]
    more = with_look(read, seeds(5), [Key("a", "m"), Key("c", "m"), Key("d", "m")])
    assert more == [*read, seeds(5, "c", "d")]
    assert with_look(more, seeds(5), [Key("a", "m"), Key("d", "m")]) == more


def test_a_family_is_recorded_by_arm_and_keeps_its_order() -> None:
    keys = [
        Key("a", "m"),
        Key("a", "n", "few"),
        Key("a", "n"),
        Key("a", "m", "", "trend"),
        Key("a × b", "m", "", "interaction"),
    ]
    look = MadeLook.of(seeds(3), keys)
    assert look.keys == [keys[0], keys[2], keys[1], *keys[3:]]
    assert MadeLook.model_validate(look.model_dump(mode="json")).keys == look.keys


def test_the_first_decided_verdict_stands() -> None:
    key, other, late = Key("arm", "a"), Key("arm", "b"), Key("arm", "c")
    found = replay(
        [
            {key: row("undecided"), other: row("better", 1.0)},
            {key: row("worse", 2.0), other: row("worse", 2.0), late: row("undecided", 2.0)},
            {key: row("worse", 3.0), other: row("undecided", 3.0), late: row("undecided", 3.0)},
        ]
    )
    assert {one: (row.verdict, row.difference, row.look) for one, row in found.items()} == {
        key: ("worse", 2.0, 2),
        other: ("better", 1.0, 1),
        late: ("undecided", 3.0, 3),
    }


def test_a_decided_row_knows_the_runs_that_fell_after_its_look() -> None:
    """The last look counts: a run that an earlier one held for collapsed may be none with more seeds."""
    key, other = Key("arm", "a"), Key("arm", "b")
    rows = [
        row("unstable").model_copy(update={"collapsed": falls, "baseline_collapsed": of_baseline})
        for falls, of_baseline in (([1], []), ([6, 1], [4]), ([5, 6, 1], []))
    ]
    found = replay({key: one, other: row("better")} for one in rows)
    assert (found[key].collapsed, found[key].collapsed_later, found[key].look) == ([1], [5, 6], 1)
    assert (found[key].baseline_collapsed_later, found[other].collapsed_later) == ([], [])
    assert replay([{key: one} for one in rows[:2]])[key].baseline_collapsed_later == [4]


def test_looks_are_read_as_they_were_recorded_and_an_edit_is_refused(tmp_path: Path) -> None:
    assert read_looks(tmp_path) is None
    record_looks([seeds(3, "a"), seeds(5, "a", "b")], tmp_path)
    assert read_looks(tmp_path) == [seeds(3, "a"), seeds(5, "a", "b")]
    text = (tmp_path / LOOKS_FILE).read_text()
    (tmp_path / LOOKS_FILE).write_text(text.replace("104", "105"))
    with pytest.raises(DamagedFileError, match="the looks of the last report are taken"):
        read_looks(tmp_path)
    record_looks([seeds(3)], tmp_path)
    edit_json(tmp_path / LOOKS_FILE, lambda content: content.pop("looks"))
    with pytest.raises(DamagedFileError, match="the looks of the last report are taken"):
        read_looks(tmp_path)


def test_reading_a_study_again_costs_error_unless_each_look_pays() -> None:
    """Null studies read at 3, 5 and 8 seeds: 5% and three standard errors of 400 studies where looks are paid for."""
    assert false_verdicts((3, 5, 8), 400, paid=True) <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / 400)
    assert false_verdicts((3, 5, 8), 400, paid=False) > 0.08


@pytest.mark.parametrize(
    ("seeds", "words"),
    [
        ([0, 1, 2], "0, 1, 2"),
        ([0, 1, 2, 3], "0 to 3"),
        ([7, 10, 11, 12, 13, 20], "7, 10 to 13, 20"),
        ([3, 2, 1, 0], "3, 2, 1, 0"),
        ([], ""),
    ],
)
def test_many_seeds_in_a_row_are_written_by_their_ends(seeds: list[int], words: str) -> None:
    assert listed_seeds(seeds) == words
