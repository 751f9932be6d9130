from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from tests import tiny_dino
from tests.offline import with_technique
from tests.tiny import tiny_plan
from tests.unit.losses.alignment_views import GRID, SAMPLES, normal, place, view
from tintype.errors import UserError
from tintype.losses.attention import AttentionSettings, among, cross_entropy
from tintype.losses.repa import RepaSettings
from tintype.seams import Route
from tintype.techniques.apply import apply_techniques
from tintype.vision.dino import Dinov2TeacherSettings

CPU = torch.device("cpu")
TOKENS, LAYERS = GRID[0] * GRID[1], 2


def teacher() -> Dinov2TeacherSettings:
    return Dinov2TeacherSettings(source=str(tiny_dino.write_dino()))


def maps(heads: int, tokens: int = TOKENS, seed: int = 3) -> Tensor:
    return normal(SAMPLES, LAYERS, heads, tokens, tokens, seed=seed).softmax(-1)


def written_out(logit_ALL: Tensor, map_ALL: Tensor) -> float:
    """The cross entropy token by token, with a softmax of its own, of the heads that both have."""
    total, count = 0.0, 0
    for logits, targets in zip(logit_ALL.tolist(), map_ALL.tolist(), strict=False):
        for row, target in zip(logits, targets, strict=True):
            whole = math.log(sum(math.exp(one) for one in row))
            total -= sum(p * (one - whole) for p, one in zip(target, row, strict=True))
            count += 1
    return total / count


@pytest.mark.parametrize(("student", "teachers"), [(2, 2), (3, 2), (2, 4)])
def test_the_loss_is_the_cross_entropy_of_the_common_heads(student: int, teachers: int) -> None:
    logit_BALL, map_BALL = normal(SAMPLES, student, TOKENS, TOKENS), maps(teachers)[:, 0]
    expected = [written_out(*pair) for pair in zip(logit_BALL, map_BALL, strict=True)]
    assert cross_entropy(logit_BALL, map_BALL).tolist() == pytest.approx(expected, rel=1e-5)


def test_it_is_least_where_both_look_alike() -> None:
    map_BALL = maps(2)[:, 0]
    entropy = -(map_BALL * map_BALL.log()).sum(-1).mean((1, 2))
    torch.testing.assert_close(cross_entropy(map_BALL.log() + 5.0, map_BALL), entropy)
    assert (cross_entropy(normal(SAMPLES, 2, TOKENS, TOKENS), map_BALL) > entropy).all()


def test_layers_and_blocks_are_compared_in_their_order() -> None:
    term = AttentionSettings(block=3, layers=LAYERS, teacher=teacher()).build(place())
    assert term.attention_taps == {1, 2}
    inputs, seen = view(normal(SAMPLES, TOKENS, 8), maps(2)), maps(2)
    logits = {block: normal(SAMPLES, 2, TOKENS, TOKENS, seed=block) for block in (1, 2)}
    found = term.loss(replace(inputs, output=replace(inputs.output, attention=logits)))
    torch.testing.assert_close(found, (cross_entropy(logits[1], seen[:, 0]) + cross_entropy(logits[2], seen[:, 1])) / 2)


def test_kept_tokens_are_compared_among_themselves() -> None:
    kept_BK, map_BALL = torch.tensor([[0, 2, 5], [1, 5, 0], [3, 4, 1], [0, 5, 2]]), maps(2)[:, 0]
    expected = torch.stack([one[:, kept][:, :, kept] for one, kept in zip(map_BALL, kept_BK, strict=True)])
    expected = expected / expected.sum(-1, keepdim=True)
    torch.testing.assert_close(among(map_BALL, kept_BK), expected)
    term = AttentionSettings(block=2, layers=1, teacher=teacher()).build(place())
    inputs = view(normal(SAMPLES, 3, 8), maps(2)[:, :1], Route(1, 2, kept_BK))
    logits = {1: normal(SAMPLES, 2, 3, 3)}
    found = term.loss(replace(inputs, output=replace(inputs.output, attention=logits)))
    torch.testing.assert_close(found, cross_entropy(logits[1], expected))


def test_the_teachers_maps_are_its_logits_over_the_patches_alone() -> None:
    """Queries and keys of the last layer, found in the network itself: a softmax over the patches."""
    built = teacher().build(GRID, CPU)
    image = torch.randint(0, 256, (2, 3, 20, 30), generator=torch.Generator().manual_seed(0)).byte()
    found = built.attention(image, LAYERS)  # type: ignore[attr-defined]
    assert found.shape == (2, LAYERS, 2, TOKENS, TOKENS)
    torch.testing.assert_close(found.sum(-1), torch.ones(2, LAYERS, 2, TOKENS))
    model, kept = tiny_dino.dino_model(), dict[str, Tensor]()
    for name, module in model.named_modules():  # the last layer comes last
        if (kind := name.rpartition(".")[2]) in ("q_proj", "k_proj"):
            module.register_forward_hook(lambda module, given, out, kind=kind: kept.update({kind: out}))
    with torch.no_grad():
        model(pixel_values=built.prepare(image))
    query, key = (kept[name][:, -TOKENS:].unflatten(2, (2, 8)).transpose(1, 2) for name in ("q_proj", "k_proj"))
    torch.testing.assert_close(found[:, -1], (query @ key.mT / 8**0.5).softmax(-1), rtol=1e-4, atol=1e-5)


def test_asking_for_maps_leaves_the_tokens_as_they_are() -> None:
    built, image = teacher().build(GRID, CPU), torch.full((1, 3, 20, 30), 90, dtype=torch.uint8)
    before = built.tokens(image)
    built.attention(image, 1)  # type: ignore[attr-defined]
    torch.testing.assert_close(built.tokens(image), before, rtol=1e-4, atol=1e-4)


def test_both_losses_stop_together() -> None:
    plan = with_technique("haste")
    repa, maps_ = plan.losses
    assert isinstance(repa, RepaSettings) and isinstance(maps_, AttentionSettings)
    assert (repa.block, maps_.block, maps_.layers) == (2, 2, 2) and repa.teacher == maps_.teacher
    assert [one.weight_at(step) for one in plan.losses for step in (3, 4)] == [0.5, 0, 0.5, 0]


FEW = f"haste:teacher.kind=dinov2,teacher.source={tiny_dino.FOLDER},hidden=32"


@pytest.mark.parametrize(
    ("assignments", "spec", "message"),
    [
        ([], "haste:teacher=scenes", "'scenes' is a convolutional network without attention"),
        ([], f"{FEW},layers=3", "layers is 3, but there are only 2 blocks"),
        ([], f"{FEW},stop=6", "the alignment would stop at step 6"),
        ([], f"{FEW},stop=2,share=0.5", "not both"),
        (["run.distribution.kind=fsdp"], FEW, "fsdp does not give"),
    ],
    ids=["convolutional", "too few blocks", "stop too late", "two ends", "fsdp"],
)
def test_what_cannot_be_is_refused(assignments: list[str], spec: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        apply_techniques(tiny_plan(*assignments), [spec])


def test_a_teacher_with_fewer_layers_is_refused_before_the_first_step() -> None:
    with pytest.raises(UserError, match="has 2 layers, but the attention maps of the last 3 layers are needed"):
        AttentionSettings(block=3, layers=3, teacher=teacher()).build(place()).ready()
