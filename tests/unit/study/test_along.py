"""Arms against the baseline along training."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest

from tintype.study.along import NO_CROSSING, difference_at, first_reached, with_along
from tintype.study.results import (
    AlongArm,
    Arm,
    Comparison,
    Interval,
    MetricInfo,
    Resolution,
    Role,
    Run,
    ScoreAt,
    StudyResults,
)
from tintype.study.stats.cells import LOG, RAW

STEPS = (100, 200, 300, 400)
Values = Sequence[Sequence[float]]
"""By run, one value at each step."""


def arm(name: str, values: Values, role: Role = "arm", per_step_s: float = 0.1, steps: Sequence[int] = STEPS) -> Arm:
    runs = [
        Run(
            seed=seed,
            hash=f"{name}-{seed}",
            folder="",
            state="done",
            metrics={"fd": of_run[-1]},
            along=[
                ScoreAt(step=step, seconds=per_step_s * step, images=step, metrics={"fd": value})
                for step, value in zip(steps, of_run, strict=False)
            ],
        )
        for seed, of_run in enumerate(values)
    ]
    return Arm(name=name, role=role, summary="", techniques=[], papers=[], changes=[], runs=runs, comparisons={})


def study(*arms: Arm, direction: str = "lower") -> StudyResults:
    metric = MetricInfo.model_validate(
        {"name": "fd", "label": "FD", "direction": direction, "definition": "", "primary": True}
    )
    return StudyResults(
        name="a",
        question="",
        seeds=[0, 1, 2],
        sketch=False,
        confidence=0.95,
        method="",
        metrics=[metric],
        arms=list(arms),
        protocol={},
        resolutions=[Resolution(name="", plan="", prompts=[], real_previews=[], reference={})],
    )


def _then(found: AlongArm) -> float:
    """Return the difference at equal time."""
    assert found.equal_time.difference is not None
    return found.equal_time.difference.value


def around(means: Sequence[float], spread: float = 0.1) -> list[list[float]]:
    """Return three runs with these means."""
    return [[mean + offset for mean in means] for offset in (-spread, 0.0, spread)]


BASELINE = arm("baseline", around([8, 6, 4, 3]), "baseline")


def along(new: Arm, old: Arm = BASELINE, direction: str = "lower") -> AlongArm:
    (found,) = with_along(study(old, new, direction=direction)).along
    return found


def test_without_scores_along_training_nothing_is_added() -> None:
    bare = [
        one.model_copy(update={"runs": [run.model_copy(update={"along": []}) for run in one.runs]})
        for one in (BASELINE, arm("new", around([1, 1, 1, 1])))
    ]
    assert with_along(study(*bare)).along == []


def test_differences_are_at_the_steps_that_both_have() -> None:
    found = along(arm("new", around([7, 5, 3.5, 3]), steps=(100, 250, 300, 400)))
    assert {one.step: one.difference.value for one in found.differences} == pytest.approx({100: -1, 300: -0.5, 400: 0})
    ends = found.differences[0].difference.ends
    assert ends is not None and ends[0] < -1 < ends[1]


def test_a_difference_shares_the_spread_of_all_arms() -> None:
    """One arm's runs agree by luck; a third arm shows how much runs differ."""
    values = {"baseline": [7.9, 8.0, 8.1], "lucky": [7.0, 7.0, 7.0], "other": [5.0, 6.0, 7.0]}

    def width(*names: str) -> float:
        one = difference_at("lucky", ["baseline"], {name: values[name] for name in names}, RAW, 0.95)
        assert one.value == pytest.approx(-1) and one.ends is not None
        return one.ends[1] - one.ends[0]

    assert width("baseline", "lucky", "other") > width("baseline", "lucky")


def test_distances_are_compared_on_logarithms_and_shown_in_their_unit() -> None:
    values = {"baseline": [1.0, 4.0], "control": [2.0, 2.0], "new": [3.0, 12.0]}
    new = difference_at("new", ["baseline", "control"], values, LOG, 0.95)
    assert new.value == pytest.approx(6 - 2), "geometric means of 6, and of 2 in the baseline and its control"
    assert new.ends is not None and -2 < new.ends[0] < 4 < new.ends[1]
    assert difference_at("control", ["baseline", "control"], values, LOG, 0.95).value == pytest.approx(0)
    results = study(BASELINE, arm("new", around([7, 5, 2, 1], 0.9)))
    metric = results.metrics[0].model_copy(update={"scale": "log"})
    (found,) = with_along(results.model_copy(update={"metrics": [metric]})).along
    for one in found.differences:
        assert one.mean - one.baseline_mean == pytest.approx(one.difference.value), (
            "the means are those of the difference"
        )


def test_a_reach_is_interpolated_between_scored_steps_and_seconds() -> None:
    found = along(arm("new", around([7, 5, 2, 1]), per_step_s=0.2))
    assert found.reach.step.value == pytest.approx(200 + 100 * 2 / 3)
    assert found.reach.seconds.value == pytest.approx(40 + 20 * 2 / 3)
    ends = found.reach.step.ends
    assert ends is not None and 200 < ends[0] < 200 + 100 * 2 / 3 < ends[1] < 300
    assert (found.target, found.target_step, found.target_seconds) == pytest.approx((3, 400, 40))


def test_a_reach_at_the_first_score_may_have_been_before_it() -> None:
    assert along(arm("new", around([2, 2, 2, 2]))).reach.at_first
    assert not along(arm("new", around([4, 2, 2, 2]))).reach.at_first


def test_a_quality_that_is_never_reached_has_no_step() -> None:
    found = along(arm("new", around([9, 8, 7, 6])))
    never = Interval(value=math.inf, low=math.inf, high=math.inf)
    assert found.reach.step == found.reach.seconds == never
    nearly = along(arm("new", around([9, 8, 7, 3.05]))).reach.step
    assert nearly.value == nearly.high == math.inf and nearly.low is not None and nearly.low < 400, "it may be reached"


def test_a_metric_may_be_better_where_it_is_higher() -> None:
    old = arm("baseline", around([0.1, 0.2, 0.3, 0.4], 0.01), "baseline")
    found = along(arm("new", around([0.2, 0.4, 0.5, 0.6], 0.01)), old, "higher")
    assert found.reach.step.value == pytest.approx(200)
    assert found.crossing == NO_CROSSING


@pytest.mark.parametrize(("ahead", "place"), [([-1, 1], 1.5), ([1, -1], 1.0), ([-1, -3], math.inf), ([-2, -1, 0], 3.0)])
def test_the_first_place_at_zero_or_above(ahead: Sequence[float], place: float) -> None:
    assert first_reached([1, 2, 3][: len(ahead)], ahead) == place


def test_at_equal_time_a_slower_arm_is_taken_before_its_end() -> None:
    found = along(arm("new", around([7, 5, 2, 1]), per_step_s=0.16)).equal_time
    assert (found.seconds, found.step) == pytest.approx((40, 250)) and not found.refused
    assert found.difference is not None and found.difference.value == pytest.approx(3.5 - 3)
    assert found.difference.ends is not None and found.difference.ends[0] < 0.5 < found.difference.ends[1]


def test_at_equal_time_nothing_is_extrapolated() -> None:
    faster = along(arm("new", around([7, 5, 2, 1]), per_step_s=0.05)).equal_time
    assert faster.difference is None and faster.refused == "the arm ended at 20 s of the baseline's 40 s"
    slower = along(arm("new", around([7, 5, 2, 1]), per_step_s=0.5)).equal_time
    assert slower.difference is None and slower.refused == "the arm's first score is at 50 s, after the baseline's 40 s"


def test_an_arm_that_is_a_little_faster_took_the_same_time() -> None:
    found = along(arm("new", around([7, 5, 2, 1]), per_step_s=0.099))
    assert (_then(found), found.equal_time.step) == pytest.approx((-2, 400))


def test_a_crossing_is_shown_where_intervals_exclude_zero_on_both_sides() -> None:
    assert along(arm("new", around([6, 5, 4.05, 5]))).crossing == "ahead until step 200, behind from step 400"
    twice = along(arm("new", around([6, 8, 8, 1]))).crossing
    assert twice == "ahead until step 100, behind from step 200 to 300, ahead from step 400"
    assert along(arm("new", around([7.9, 6.1, 3.9, 3.1]))).crossing == NO_CROSSING
    assert along(arm("new", around([6, 5, 4, 3]))).crossing == NO_CROSSING, "ahead, and then not behind"


def test_a_crossing_needs_all_runs_and_a_spread() -> None:
    fewer = arm("new", [*around([6, 5, 4, 5])[:2], [6.0]])
    found = along(fewer)
    assert (found.runs, found.of) == (2, 3)
    assert found.crossing.startswith("no verdict: not all runs")
    one = along(arm("new", [[6, 5, 4, 5]]), arm("baseline", [[8, 6, 4, 3]], "baseline"))
    assert one.crossing == "no verdict without a seed spread"
    assert one.reach.step.value == pytest.approx(400) or one.reach.step.value == math.inf
    assert one.reach.step.ends is None and one.differences[0].difference.ends is None and _then(one) == pytest.approx(2)


def test_a_crossing_of_an_arm_whose_runs_fell_off_is_no_verdict() -> None:
    comparison = Comparison(mean=1, baseline_mean=1, differences=[], difference=0, verdict="unstable", collapsed=[2])
    fell = arm("new", around([6, 5, 4.05, 5])).model_copy(update={"comparisons": {"fd": comparison}})
    assert along(fell).crossing == "no verdict: some of the arm's runs collapsed"


@pytest.mark.parametrize("who", ["arm", "baseline"])
def test_runs_that_fell_off_are_left_out_of_means_target_and_spread(who: str) -> None:
    """Each set gets a fourth run that collapsed: the numbers are those of the other three."""
    ends = {"arm": around([7, 5, 2, 1]), "baseline": around([8, 6, 4, 3])}
    expected = along(arm("new", ends["arm"]), arm("baseline", ends["baseline"], "baseline"))
    fell = {**ends, who: [*ends[who], [40.0, 40.0, 40.0, 40.0]]}
    of = {"collapsed": [3] if who == "arm" else [], "baseline_collapsed": [3] if who == "baseline" else []}
    row = Comparison.model_validate(
        {"mean": 1, "baseline_mean": 1, "differences": [], "difference": 0, "verdict": "unstable", **of}
    )
    new = arm("new", fell["arm"]).model_copy(update={"comparisons": {"fd": row}})
    found = along(new, arm("baseline", fell["baseline"], "baseline"))
    same = {"crossing", "of"}
    assert found.model_dump(exclude=same) == expected.model_dump(exclude=same)
    assert found.crossing == f"no verdict: some of the {who}'s runs collapsed"
    assert (found.runs, found.of) == (3, 4 if who == "arm" else 3)


def test_a_crossing_is_rarely_shown_by_chance() -> None:
    """A false crossing needs a false difference, which has 5% over all steps: 10 in 200, above 20 with p < 0.002."""
    draw = np.random.default_rng(0)
    shown = 0
    for _ in range(200):
        old, new = (draw.normal(5, 1, (4, len(STEPS))).tolist() for _ in range(2))
        shown += along(arm("new", new), arm("baseline", old, "baseline")).crossing != NO_CROSSING
    assert shown <= 20


def test_arms_are_compared_with_the_baseline_of_their_resolution_only_where_they_can_be() -> None:
    other = arm("new", around([6, 5, 4, 5])).model_copy(update={"incomparable": {"fd": "another space"}})
    assert with_along(study(BASELINE, other)).along == []


def of_sizes(one: Arm, sizes: Sequence[int]) -> Arm:
    """Return the arm with scores on images of these sizes, one for each step."""
    runs = [
        run.model_copy(
            update={"along": [at.model_copy(update={"size_px": px}) for at, px in zip(run.along, sizes, strict=False)]}
        )
        for run in one.runs
    ]
    return one.model_copy(update={"runs": runs})


LARGE = of_sizes(BASELINE, [64] * 4)


def test_scores_on_images_of_two_sizes_are_not_compared() -> None:
    """The arm is better than the baseline's end at its first step, on smaller images: that says nothing."""
    staged = of_sizes(arm("new", around([0.5, 0.4, 5, 2.5])), [32, 32, 64, 64])
    found = along(staged, LARGE)
    assert [(one.step, one.size_px) for one in found.differences] == [(300, 64), (400, 64)]
    assert found.reach.step.value == pytest.approx(300 + 100 * 2 / 2.5)
    assert found.crossing == "behind until step 300, ahead from step 400"
    stuck = of_sizes(arm("stuck", around([9, 1, 9, 1], 5)), [32] * 4)
    assert with_along(study(LARGE, staged, stuck)).along == [found], "it ended on smaller images"
    assert _then(found) == pytest.approx(2.5 - 3)
    early = along(of_sizes(arm("new", around([7, 5, 3, 1]), per_step_s=0.16), [32, 32, 32, 64]), LARGE).equal_time
    assert early.refused == "the arm's first score at its last size is at 64 s, after the baseline's 40 s"
    last = along(of_sizes(arm("new", around([7, 5, 3, 1])), [32, 32, 32, 64]), LARGE)
    assert _then(last) == pytest.approx(1 - 3) and [one.step for one in last.differences] == [400]
    assert with_along(study(LARGE, of_sizes(arm("new", around([7, 5, 3, 1])), [32] * 4))).along == []


def test_arms_of_the_same_stages_are_compared_in_each() -> None:
    sizes = [32, 32, 64, 64]
    old, new = of_sizes(BASELINE, sizes), of_sizes(arm("new", around([7, 5, 3.5, 3])), sizes)
    found = along(new, old)
    plain = along(arm("new", around([7, 5, 3.5, 3])))
    without = [one.model_copy(update={"size_px": None}) for one in found.differences]
    assert without == plain.differences and [one.size_px for one in found.differences] == sizes
    assert found.reach.step.value == pytest.approx(400), "what is held against the end is of the last stage"
    other = of_sizes(arm("other", around([1, 9, 9, 9], 3)), [16, 16, 64, 64])
    shared = next(one for one in with_along(study(old, new, other)).along if one.arm == "new").differences
    assert shared[0] == found.differences[0] and shared[2] != found.differences[2], "a spread is of one size too"
    turned = of_sizes(arm("new", around([9, 7, 3, 2])), sizes)
    assert along(turned, old).crossing == NO_CROSSING, "behind on small images and ahead on large ones is none"
    assert along(arm("new", around([9, 7, 3, 2]))).crossing == "behind until step 200, ahead from step 300"
