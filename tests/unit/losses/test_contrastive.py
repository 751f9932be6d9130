from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from tests.tiny import tiny_plan
from tintype.errors import UserError
from tintype.losses.contrastive import Contrastive, ContrastiveSettings, negatives
from tintype.runtime.clock import Clock
from tintype.seams import Draws, LossInputs, Output, Sample
from tintype.techniques.apply import apply_techniques
from tintype.train.session import build_session
from tintype.train.update import micro_batch_losses


def draws(count: int, first: int = 0, seed: int = 0) -> Draws:
    return Draws(seed, torch.arange(first, first + count))


def distinct(count: int) -> list[str]:
    return [f"caption {index}" for index in range(count)]


def random_captions(seed: int) -> list[str]:
    """A batch of 2 to 24 in which no caption has more than half."""
    generator = torch.Generator().manual_seed(seed)
    while True:
        count, kinds = (int(torch.randint(2, 25, (), generator=generator)) for _ in range(2))
        captions = [f"caption {int(i)}" for i in torch.randint(kinds, (count,), generator=generator)]
        if 2 * max(Counter(captions).values()) <= count:
            return captions


def test_negatives_are_others_of_another_caption_and_none_is_used_twice() -> None:
    for seed in range(300):
        captions = random_captions(seed)
        index_B, paired_B = negatives(captions, draws(len(captions), first=1000 * seed))
        assert paired_B.all()
        assert sorted(index_B.tolist()) == list(range(len(captions)))
        assert all(captions[own] != captions[other] for own, other in enumerate(index_B.tolist()))


@pytest.mark.parametrize(("captions", "most"), [("aaaaabc", 4), ("baaa", 2), ("aaaa", 0), ("a", 0), ("aab", 2)])
def test_where_one_caption_has_more_than_half_as_many_as_can_be_are_paired(captions: str, most: int) -> None:
    for first in range(0, 50, 10):
        index_B, paired_B = negatives(captions, draws(len(captions), first))
        pairs = [(own, int(index_B[own])) for own in range(len(captions)) if paired_B[own]]
        assert len(pairs) == most
        assert all(captions[own] != captions[other] for own, other in pairs)
        assert len({other for _, other in pairs}) == len(pairs)


def test_negatives_are_a_function_of_seed_position_and_captions() -> None:
    captions = distinct(16)

    def drawn(first: int, seed: int, captions: Sequence[str] = captions) -> list[int]:
        indices: list[int] = negatives(captions, draws(16, first, seed))[0].tolist()
        return indices

    assert drawn(0, 0) == drawn(0, 0)
    assert len({tuple(drawn(first, seed)) for first in (0, 16, 32) for seed in (0, 1, 2)}) == 9
    assert drawn(0, 0, [f"other {index}" for index in range(16)]) == drawn(0, 0), "their words do not matter"


def test_every_other_sample_is_as_likely_a_negative() -> None:
    counts = torch.zeros(6, 6)
    for turn in range(900):
        index_B, _ = negatives(distinct(6), draws(6, 6 * turn))
        counts[torch.arange(6), index_B] += 1
    off = counts[~torch.eye(6, dtype=torch.bool)]
    assert counts.diagonal().sum() == 0
    assert float(((off - 180) ** 2 / 180).sum()) < 60  # chi-squared of 30 numbers


def test_groups_and_their_members_stand_in_random_order() -> None:
    """The negatives of a sample come from all other captions, and from all their samples."""
    captions = ["a", "a", "b", "b", "c", "c"]
    of_first = Counter(int(negatives(captions, draws(6, 6 * turn))[0][0]) for turn in range(800))
    assert set(of_first) == {2, 3, 4, 5}
    assert min(of_first.values()) > 150


def view(captions: Sequence[str], weight_B: Tensor | None = None) -> LossInputs:
    count = len(captions)
    generator = torch.Generator().manual_seed(0)
    predicted, target = (torch.randn(count, 16, 2, 2, dtype=torch.float64, generator=generator) for _ in range(2))
    sample = Sample(target, target, torch.full((count,), 0.5), target)
    output = Output(predicted, {}, None)
    return LossInputs(output, sample, predicted, target, weight_B, target, captions, draws(count), 0)


def test_the_loss_is_the_negative_squared_distance_to_the_negative_target() -> None:
    seen = view(distinct(6))
    index_B, _ = negatives(seen.captions, seen.draws)
    expected = [-(seen.velocity_BCHW[i] - seen.target_BCHW[j]).square().mean() for i, j in enumerate(index_B)]
    assert torch.allclose(Contrastive().loss(seen), torch.stack(expected), rtol=1e-12)


def test_a_sample_without_a_negative_contributes_nothing() -> None:
    seen = view(["a", "a", "a", "b"])
    _, paired_B = negatives(seen.captions, seen.draws)
    assert torch.equal(Contrastive().loss(seen) != 0, paired_B)


def test_the_weight_of_the_objective_is_on_this_half_too() -> None:
    weight_B = torch.tensor([0.0, 0.01, 1.0, 3.0])
    weighted, plain = Contrastive().loss(view(distinct(4), weight_B)), Contrastive().loss(view(distinct(4)))
    assert torch.allclose(weighted, weight_B * plain)


def test_the_training_step_subtracts_it_by_its_weight() -> None:
    parts = build_session(tiny_plan(techniques=["contrastive:weight=0.25"]))
    found = {key: value.item() for key, value in micro_batch_losses(parts, 0, 4, 0, Clock(parts.device)).parts.items()}
    assert found["contrastive"] < 0
    assert found["loss"] == pytest.approx(found["flow"] + 0.25 * found["contrastive"])


def test_the_bias_is_its_weight_at_the_last_step() -> None:
    plan = tiny_plan(techniques=["contrastive:weight=0.2,schedule.kind=ramp,schedule.end=12"])
    (loss,) = plan.losses
    assert [loss.velocity_bias(step) for step in (5, 11, 40)] == pytest.approx([0.1, 0.2, 0.2])
    assert ContrastiveSettings().velocity_bias(0) == 0.05


@pytest.mark.parametrize(
    ("assignments", "spec", "message"),
    [
        ([], "contrastive:weight=1", "must be below 1"),
        ([], "contrastive:weight=0", "must be above 0"),
        (["train.accumulate=4"], "contrastive", r"'contrastive'.* one sample in each"),
        (
            [],
            "contrastive:schedule.kind=ramp,schedule.start=6,schedule.end=9",
            "the weight of this loss is 0 at every step",
        ),
    ],
)
def test_what_cannot_be_is_refused(assignments: list[str], spec: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        apply_techniques(tiny_plan(*assignments), [spec])
    apply_techniques(tiny_plan("train.accumulate=2"), ["contrastive"])


def test_a_plan_is_held_to_the_same() -> None:
    with pytest.raises(UserError, match="must be below 1"):
        tiny_plan("losses=[{kind: contrastive, weight: 1.0}]")
    assert tiny_plan("losses=[{kind: contrastive}]") == tiny_plan(techniques=["contrastive"])
