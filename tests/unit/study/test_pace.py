"""How many runs share a GPU: more where they raise the sum of their speeds, fewer where they do not."""

from __future__ import annotations

from collections.abc import Callable

from tintype.study.pace import Pace, Pulse

STEP_S = 0.02


def simulate(pace: Pace, rate: Callable[[int], float], seconds: int = 600) -> list[int]:
    """Let as many runs train as the pace wants; `rate` is what so many get done, in steps of a run alone."""
    targets, steps = [], dict[str, float]()
    for second in range(seconds):
        running = [f"run {index}" for index in range(pace.target)]
        for name in running:
            steps[name] = steps.get(name, 0.0) + rate(len(running)) / len(running) / STEP_S
        pace.note({name: Pulse(int(steps[name]), STEP_S) for name in running}, float(second))
        targets.append(pace.target)
    return targets


def test_runs_are_added_while_they_raise_the_throughput() -> None:
    assert simulate(Pace(), lambda count: min(count, 11) / 4)[-1] == 11
    assert simulate(Pace(start=2, most=6), lambda count: 0.9 * count)[-1] == 6, "no more than may be"


def test_a_gpu_that_is_full_with_one_run_gets_one() -> None:
    targets = simulate(Pace(), lambda count: 1.0)
    assert targets[0] == 8 and targets[-1] == 1


def test_a_run_that_costs_the_others_as_much_as_it_gains_is_not_kept() -> None:
    targets = simulate(Pace(start=4), lambda count: {4: 2.0, 5: 2.01}.get(count, 2.0))
    assert max(targets) == 5 and targets[-1] == 4


def test_nothing_is_measured_while_runs_begin_and_end() -> None:
    pace = Pace()
    for second in range(100):
        pace.note({f"run {second}": Pulse(second, STEP_S)}, float(second))
    assert not pace.rates and pace.target == 8
