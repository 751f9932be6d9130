from __future__ import annotations

import torch

from tests.tiny import tiny_plan
from tintype.evaluation.protocol import Protocol
from tintype.evaluation.reference import ScoredData, held_out
from tintype.metrics.validation import TIMES, velocity_errors
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
