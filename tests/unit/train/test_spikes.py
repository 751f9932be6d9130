from __future__ import annotations

import math
import statistics

import pytest
import torch

from tintype.settings import SpikeSettings
from tintype.train.spikes import SpikeWindow


def window(deviations: float = 6.0, steps: int = 8) -> SpikeWindow:
    return SpikeWindow(SpikeSettings(deviations=deviations, window=steps), torch.device("cpu"))


def take(spikes: SpikeWindow, loss: float, norm: float = 1.0) -> bool:
    return bool(spikes.is_spike(torch.tensor(loss), torch.tensor(norm)))


USUAL = [1.0, 1.2, 0.9, 1.1, 1.3, 0.8, 1.0, 1.1]


def filled() -> SpikeWindow:
    made = window()
    assert not any(take(made, loss) for loss in USUAL)
    return made


def test_the_limit_is_a_number_of_deviations_above_the_mean_of_the_window() -> None:
    limit = statistics.fmean(USUAL) + 6 * statistics.stdev(USUAL)
    assert not take(filled(), limit - 1e-6) and take(filled(), limit + 1e-6)
    assert take(filled(), 1.0, norm=1.07), "the norms were all 1: their deviation counts as 1%"
    assert not take(filled(), 1.0, norm=1.05)
    assert not take(filled(), -1e9), "a loss that falls is no spike"


def test_values_that_left_the_window_count_no_more() -> None:
    made = filled()
    assert not any(take(made, 1.3) for _ in range(8))
    assert take(made, 1.4), "1.3 is all that the window holds by now"


def test_nothing_is_a_spike_before_half_of_the_window_is_filled() -> None:
    made = window()
    assert [take(made, loss) for loss in (1.0, 1e9, 1.0, 1.0)] == [False] * 4
    made = window()
    assert [take(made, loss) for loss in (1.0, 1.1, 0.9, 1.0, 1e9)] == [False] * 4 + [True]


def test_one_spike_does_not_hide_the_next() -> None:
    made = filled()
    assert [take(made, loss) for loss in (1e9, 1e9, 100.0, 1.0)] == [True, True, True, False]


def test_a_loss_that_stays_higher_is_accepted_after_some_steps() -> None:
    made = filled()
    skipped = [take(made, 20.0) for _ in range(8)]
    assert skipped[0] and not skipped[-1] and sorted(skipped, reverse=True) == skipped


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_leaves_no_trace(bad: float) -> None:
    made = filled()
    before = {name: tensor.clone() for name, tensor in made.tensors().items()}
    take(made, bad)
    take(made, 1.0, norm=bad)
    assert all(torch.equal(tensor, before[name]) for name, tensor in made.tensors().items())
