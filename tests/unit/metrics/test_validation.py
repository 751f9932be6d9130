from __future__ import annotations

import pytest
import torch

from tests.tiny import tiny_plan
from tintype.metrics.evaluate import Protocol, evaluation_source
from tintype.metrics.throughput import images_per_s, time_split
from tintype.metrics.validation import TIMES, validation_loss
from tintype.seams import Draws
from tintype.train.clock import PARTS
from tintype.train.parts import build_parts

PROTOCOL = Protocol(count=8, short_count=0, reference_count=8, validation_count=6)


def test_the_untrained_model_has_the_loss_of_predicting_nothing() -> None:
    """Its velocity is zero, so the loss at each time is the mean square of noise - x."""
    parts = build_parts(tiny_plan())
    source = evaluation_source(parts.plan.data, PROTOCOL)
    loss, at_time = validation_loss(parts, source, 6, 6, seed=3)
    x = parts.tokenizer.encode(source.images(range(6)))
    noise = Draws(3, torch.arange(6)).normal("validation", (3, 16, 16))
    expected = float((noise - x).square().mean())
    assert at_time == pytest.approx([expected] * 8, rel=1e-5) and loss == pytest.approx(expected, rel=1e-5)


def test_it_does_not_depend_on_the_batch_size() -> None:
    parts = build_parts(tiny_plan())
    torch.manual_seed(0)
    for parameter in parts.modules.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    source = evaluation_source(parts.plan.data, PROTOCOL)
    whole, cut = (validation_loss(parts, source, 6, batch, seed=0) for batch in (6, 4))
    assert whole[1] == pytest.approx(cut[1], rel=1e-5)
    assert len(set(whole[1])) == len(TIMES)


def test_throughput_is_the_median_after_the_first_tenth() -> None:
    def line(speed: float) -> dict[str, object]:
        return {"images_per_s": speed, "seconds": 2.0, "parts": dict.fromkeys(PARTS, 0.3)}

    lines = [line(speed) for speed in (1.0, 100, 90, 110, 5, 100, 100, 100, 100, 100)]
    assert images_per_s(lines) == 100
    split = time_split(lines)
    assert split["forward"] == pytest.approx(0.15) and split["other"] == pytest.approx(0.1)
    assert sum(split.values()) == pytest.approx(1)
