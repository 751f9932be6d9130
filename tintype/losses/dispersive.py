"""dispersive: the samples of a micro-batch are pushed apart inside the denoiser, without a teacher (arXiv 2506.09027).

L = log mean over i, j of exp(-d_ij / τ), with d_ij = |z_i - z_j|² / n, where z_i are the n numbers of sample i after a
block. The loss L is InfoNCE without positive pairs. As in the authors' code, the mean includes all pairs of the batch,
also each sample with itself, so L is between -log B and 0. The squared distance is divided by n. Without this division,
distances in a wide block would be too large for any gradient. The authors' code uses τ = 1, a weight of 0.25 and the
last block. Weight and τ here are those of the paper.

The loss includes the samples of the micro-batch on all ranks, and all of them get gradients. Gradient accumulation
makes micro-batches smaller, so it changes the result. The number of ranks does not change the result, since all ranks
share a micro-batch.

B: samples of this rank. N: samples of all ranks. L: tokens. D: width of the denoiser. F: numbers of a sample.
"""

from __future__ import annotations

import math
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from tintype.errors import UserError
from tintype.losses.alignment import check_block
from tintype.losses.part import LossPart, PlanView, Scheduled
from tintype.runtime.dist import World
from tintype.seams import LossContext, LossInputs, LossTerm
from tintype.settings import Plain


class DispersiveOptions(Scheduled):
    weight: float = Field(0.5, gt=0, description="Weight of this term in the sum of the losses")
    block: int | None = Field(
        None,
        description="Block in whose output the samples are spread, counted from 1; by default a quarter of the depth",
    )
    temperature: float = Field(
        0.5,
        gt=0,
        description="Temperature τ; pairs of samples that are much farther apart than τ add almost nothing to the loss",
    )

    def resolved(self, plan: PlanView) -> Plain:
        block = max(1, round(plan.model.depth / 4)) if self.block is None else self.block
        return {**dict(self), "block": block}


class DispersiveSettings(DispersiveOptions, LossPart):
    any_shape: ClassVar[bool] = True

    kind: Literal["dispersive"] = "dispersive"
    weight: float = Field(0.5, gt=0, description="Weight of this term in the sum of the losses")
    block: int = Field(description="Block in whose output the samples are spread, counted from 1")

    def check(self, plan: PlanView) -> None:
        super().check(plan)
        check_block(self.kind, self.block, plan)
        train = plan.train
        if train.batch // train.accumulate < 2:
            raise ValueError(
                f"dispersive: the loss pushes samples of a micro-batch apart, but train.batch {train.batch} in "
                f"train.accumulate {train.accumulate} micro-batches leaves one sample in each; lower "
                f"train.accumulate, or use a larger train.batch"
            )
        if plan.route is not None and self.block - 1 in plan.route.sparse_blocks(self.schedule.start):
            raise ValueError(_routed(self.block, f"a part of the tokens (route.kind '{plan.route.kind}')"))

    def build(self, context: LossContext) -> Dispersive:
        return Dispersive(self)


class Dispersive(LossTerm):
    needs_images = False

    def __init__(self, settings: DispersiveSettings) -> None:
        self._block, self._temperature = settings.block, settings.temperature
        self.taps = frozenset({settings.block - 1})

    def loss(self, inputs: LossInputs) -> Tensor:
        token_BLD = inputs.output.features[self._block - 1]
        if inputs.output.tokens_at(self._block - 1) is not None:
            raise UserError(_routed(self._block, f"{token_BLD.shape[1]} tokens, others of each sample"))
        with torch.autocast(token_BLD.device.type, enabled=False):
            loss = dispersive_loss(token_BLD.flatten(1), self._temperature, inputs.world)
        return loss.expand(len(token_BLD))


def dispersive_loss(feature_BF: Tensor, temperature: float, world: World) -> Tensor:
    """Return the loss over the samples of all ranks, equal on every rank. A rank computes its own samples' rows.

    Subtracting the mean of all samples from the features keeps distances, and improves the precision.
    """
    feature_BF = feature_BF if feature_BF.dtype == torch.float64 else feature_BF.float()
    feature_NF = world.all_gather_tensor(feature_BF)
    mean_F = feature_NF.detach().mean(0)
    own_BF, all_NF = feature_BF - mean_F, feature_NF - mean_F
    length2_BN = own_BF.square().sum(1)[:, None] + all_NF.square().sum(1)
    distance_BN = (length2_BN - 2 * own_BF @ all_NF.T).clamp_min(0) / feature_BF.shape[1]
    row_N = world.all_gather_tensor(torch.logsumexp(-distance_BN / temperature, 1))
    return torch.logsumexp(row_N, 0) - 2 * math.log(len(feature_NF))


def _routed(block: int, seen: str) -> str:
    return (
        f"dispersive compares whole samples, but block {block} sees {seen}; take a block outside the route "
        "(dispersive:block=N)"
    )
