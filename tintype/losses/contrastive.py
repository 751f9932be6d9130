"""contrastive: a sample's velocity is pushed away from the velocities of other captions (arXiv 2506.05350).

L = |v̂ - v|² - λ |v̂ - v_neg|², where v_neg is the target velocity of another sample of the micro-batch. The first
summand is the objective. The second summand is this loss term, with the weight λ. Both summands use the objective's
velocities, with the same clamp and the same weight for each t. If only the first summand had a weight w(t), L would
have no minimum at any t with w(t) < λ. For the same reason, λ must be below 1.

Samples of the micro-batch are paired at random with negatives. A sample's negative has another caption, and each sample
is the negative of at most one sample. If more than half of the micro-batch has the same caption, some samples get no
negative and contribute zero. Differs: the paper draws another sample at random, which may be of the same class.

Gradient accumulation makes micro-batches smaller, so it changes the result. The number of ranks does not change the
result, since all ranks share a micro-batch.

The minimiser is v* = (E[v | x_t, c] - λ m) / (1 - λ), where m = E[v_neg] is the mean target velocity of the other
captions. With many captions, m is the mean over all data. The authors undo this bias in sampling. In tintype, the
setting `unbias` of guidance undoes this bias.

B: samples of a micro-batch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from tintype import rng
from tintype.flow.objective import mean_square
from tintype.losses.part import LossPart, PlanView
from tintype.runtime.transfer import send
from tintype.seams import Draws, LossContext, LossInputs, LossTerm


class ContrastiveSettings(LossPart):
    any_shape: ClassVar[bool] = True

    kind: Literal["contrastive"] = "contrastive"
    weight: float = Field(
        0.05, gt=0, lt=1, description="Weight λ of the contrastive term; must be below 1, or the loss has no minimum"
    )

    def check(self, plan: PlanView) -> None:
        super().check(plan)
        if plan.main_loss.kind != "square":
            raise ValueError(
                f"contrastive: this term subtracts a squared error, so the main loss must be a squared error "
                f"too, but main_loss.kind is '{plan.main_loss.kind}'; leave one of the two out"
            )
        train, batch = plan.train, min(plan.train.batches)
        if batch // train.accumulate < 2:
            raise ValueError(
                f"contrastive: a sample needs another sample of its micro-batch as its negative, but train.batch "
                f"{batch} in train.accumulate {train.accumulate} micro-batches leaves one sample in each; "
                "lower train.accumulate, or use a larger train.batch"
            )

    def velocity_bias(self, last_step: int) -> float:
        return self.weight_at(last_step)

    def build(self, context: LossContext) -> Contrastive:
        return Contrastive()


class Contrastive(LossTerm):
    needs_images = False

    def loss(self, inputs: LossInputs) -> Tensor:
        world, count = inputs.world, len(inputs.captions)
        captions = [caption for some in world.all_gather(list(inputs.captions)) for caption in some]
        draws = Draws(inputs.draws.seed, world.all_gather_tensor(inputs.draws.position_B))
        mine = slice(world.rank * count, (world.rank + 1) * count)
        negative_B, paired_B = (of_all[mine] for of_all in negatives(captions, draws))
        target_BCHW = world.all_gather_tensor(inputs.target_BCHW)[negative_B]
        loss_B = -(paired_B * mean_square(inputs.velocity_BCHW, target_BCHW))
        return loss_B if inputs.weight_B is None else inputs.weight_B * loss_B


def negatives(captions: Sequence[str], draws: Draws) -> tuple[Tensor, Tensor]:
    """Return the index of each sample's negative, and whether the negative is valid: its caption differs.

    All samples are arranged in a circle in random order, grouped by caption. A sample's negative is m positions
    further, where m is the size of the largest group. So the negative is outside of the sample's group, unless this
    group has more than half of all samples. The host never waits for the device.
    """
    device = draws.position_B.device
    first = {caption: index for index, caption in reversed(list(enumerate(captions)))}
    group_B = send(torch.tensor([first[caption] for caption in captions]), device)
    key_B, key_of_group_B = rng.bits(draws.seed, "negatives", draws.position_B, 2).unbind(1)  # no two keys are equal
    shuffled_B = key_B.argsort()
    circle_B = shuffled_B[key_of_group_B[group_B][shuffled_B].argsort(stable=True)]
    negative_B = torch.empty_like(circle_B)
    negative_B[circle_B] = circle_B.roll(-max(Counter(captions).values()))
    return negative_B, group_B[negative_B] != group_B
