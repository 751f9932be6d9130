from __future__ import annotations

import pytest
import torch

from tests.tiny import tiny_plan
from tintype.evaluation.protocol import Protocol
from tintype.evaluation.reference import ScoredData, held_out
from tintype.metrics.throughput import images_per_s, time_split
from tintype.metrics.validation import TIMES, velocity_errors
from tintype.runtime.clock import PARTS
from tintype.sampling.velocity_bias import mean_target
from tintype.seams import Draws
from tintype.train.session import build_session


def test_the_untrained_model_has_the_loss_of_predicting_nothing() -> None:
    """Its velocity is zero, so the loss at each time is the mean square of noise - x."""
    parts = build_session(tiny_plan())
    source = held_out(ScoredData(parts.plan.data), Protocol(count=8, reference_count=8, validation_count=6))
    error_TN = velocity_errors(parts, source, 6, 6, seed=3)
    x = parts.tokenizer.encode(source.images(range(6)), Draws(0, torch.arange(6)))
    noise = Draws(3, torch.arange(6)).normal("validation", (3, 16, 16))
    expected_N = (noise - x).square().mean((1, 2, 3)).double()
    torch.testing.assert_close(error_TN, expected_N.expand(8, 6), rtol=1e-5, atol=0)


def test_the_bias_of_a_contrastive_loss_is_undone() -> None:
    """The best velocity of such a loss, (v - λ m) / (1 - λ), has no error. The untrained one, zero, becomes λ m."""
    parts = build_session(tiny_plan(techniques=["contrastive:weight=0.25"]))
    source = held_out(ScoredData(parts.plan.data), Protocol(count=8, reference_count=8, validation_count=6))
    found_TN = velocity_errors(parts, source, 6, 6, seed=3)
    x = parts.tokenizer.encode(source.images(range(6)), Draws(0, torch.arange(6)))
    noise = Draws(3, torch.arange(6)).normal("validation", (3, 16, 16))
    expected_N = (noise - x - 0.25 * mean_target(parts, 16)).square().mean((1, 2, 3)).double()
    torch.testing.assert_close(found_TN, expected_N.expand(8, 6), rtol=1e-5, atol=0)


def test_it_does_not_depend_on_the_batch_size() -> None:
    parts = build_session(tiny_plan())
    torch.manual_seed(0)
    for parameter in parts.modules.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    source = held_out(ScoredData(parts.plan.data), Protocol(count=8, reference_count=8, validation_count=6))
    whole, cut = (velocity_errors(parts, source, 6, batch, seed=0) for batch in (6, 4))
    torch.testing.assert_close(whole, cut, rtol=1e-5, atol=0)
    assert len(set(whole.flatten().tolist())) == len(TIMES) * 6


def window(images: float, seconds: float, compute_s: float, data_s: float) -> dict[str, object]:
    parts = {"data": data_s, "forward": 0.4 * compute_s, "backward": 0.6 * compute_s}
    return {"images_per_s": images / seconds, "seconds": seconds, "parts": parts}


def test_throughput_is_of_the_steps_parts_without_the_data_beside_them() -> None:
    beside = [window(64, 0.010, 0.010, 0.003)] * 20  # a GPU at work while the host sees to the data
    after = [window(64, 0.013, 0.010, 0.003)] * 20  # a CPU, one after the other
    assert images_per_s(beside) == pytest.approx(6400) and images_per_s(after) == pytest.approx(6400)


def test_throughput_is_that_of_the_whole_run_after_its_first_tenth() -> None:
    """A dense last stage counts by its length; a compilation does not count."""
    warm_up, fast, slow = window(64, 9, 9, 0), window(64, 0.01, 0.01, 0), window(64, 0.02, 0.02, 0)
    assert images_per_s([warm_up, *[fast] * 8, slow]) == pytest.approx(64 * 9 / (8 * 0.01 + 0.02))
    assert images_per_s([warm_up, *[fast] * 4, warm_up, *[fast] * 4]) == pytest.approx(6400)


def test_the_time_split_sums_to_one_whatever_runs_beside() -> None:
    def line(speed: float, of_part: float = 0.2) -> dict[str, object]:
        return {"images_per_s": speed, "seconds": 2.0, "parts": dict.fromkeys(PARTS, of_part)}

    lines = [line(speed) for speed in (1.0, 100, 90, 110, 5, 100, 100, 100, 100, 100)]
    split = time_split(lines)
    assert split["forward"] == pytest.approx(0.1) and split["other"] == pytest.approx(1 - 0.1 * len(PARTS))
    assert sum(split.values()) == pytest.approx(1)
    assert time_split([{"seconds": 2.0, "parts": {"forward": 1.0}}])["teacher"] == 0  # a run of an older version
    overlapping = time_split([line(100, of_part=0.4)])  # the host's time beside the GPU's
    assert overlapping["forward"] == pytest.approx(1 / len(PARTS)) and overlapping["other"] == pytest.approx(0)
