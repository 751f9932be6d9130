from __future__ import annotations

import math
from typing import Any

import pytest
from pydantic import ValidationError

from tintype.schedule import Schedule


def factors(schedule: Schedule, steps: int = 8) -> list[float]:
    return [schedule.factor(step) for step in range(steps)]


def test_constant_is_always_one_and_never_over() -> None:
    assert factors(Schedule()) == [1.0] * 8
    assert not Schedule().over(10**9)


def test_until_is_on_from_its_start_to_just_before_its_end() -> None:
    schedule = Schedule(kind="until", start=2, end=5)
    assert factors(schedule) == [0, 0, 1, 1, 1, 0, 0, 0]
    assert [schedule.over(step) for step in (0, 4, 5)] == [False, False, True]


def test_ramp_rises_in_a_line_and_stays() -> None:
    schedule = Schedule(kind="ramp", start=1, end=5)
    assert factors(schedule) == [0, 0.25, 0.5, 0.75, 1, 1, 1, 1]
    assert not schedule.over(100)


def test_cosine_falls_from_one_to_nothing() -> None:
    schedule = Schedule(kind="cosine", start=2, end=6)
    expected = [1, 1, *(0.5 * (1 + math.cos(math.pi * i / 4)) for i in range(4)), 0, 0]
    assert factors(schedule) == pytest.approx(expected)
    assert schedule.over(6) and not schedule.over(5)


@pytest.mark.parametrize("kind", ["constant", "until", "ramp", "fall", "cosine"])
@pytest.mark.parametrize("steps", [1, 2, 5])
def test_the_extremes_of_a_run_are_among_the_factors_at_the_edges(kind: Any, steps: int) -> None:
    pairs = [(0, None)] if kind == "constant" else [(start, end) for end in range(1, 8) for start in range(end)]
    for start, end in pairs:
        schedule = Schedule(kind=kind, start=start, end=end)
        found, every = schedule.factors_in(steps), set(factors(schedule, steps))
        assert found <= every and (min(found), max(found)) == (min(every), max(every))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"kind": "until", "start": 5, "end": 5}, "must end .step 5. after it starts .step 5."),
        ({"kind": "cosine", "start": 9, "end": 3}, "must end .step 3. after it starts .step 9."),
        ({"kind": "ramp"}, "needs an end"),
        ({"kind": "constant", "end": 3}, "no start and no end"),
    ],
)
def test_what_cannot_be_is_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        Schedule.model_validate(settings)
