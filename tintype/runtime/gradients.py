"""Average gradients over the ranks during the backward pass, and measure and clip their norm.

FSDP2 averages the gradients of sharded weights by itself. This module averages the gradients of replicated weights, in
buckets that are sent as soon as they are full.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from tintype.runtime import activity
from tintype.runtime.layout import Layout, is_sharded, local

T = TypeVar("T", bound=Tensor)

_BUCKET_BYTES = 32 << 20


class GradientMean:
    def __init__(self, parameters: Sequence[nn.Parameter], layout: Layout) -> None:
        self._ranks = layout.world.size
        copied = [parameter for parameter in parameters if not is_sharded(parameter)]
        self._buckets = _buckets(copied) if self._ranks > 1 else []
        self._armed = False
        for bucket in self._buckets:
            for parameter in bucket.parameters:
                parameter.register_post_accumulate_grad_hook(self._note)

    @contextmanager
    def over(self, last: bool) -> Iterator[None]:
        """Wrap the backward pass of a micro-batch. In the last one of a step, average the accumulated gradients."""
        if not last or not self._buckets:
            yield
            return
        self._armed = True
        for bucket in self._buckets:
            bucket.expect()
        yield
        self._armed = False
        activity.mark("all-reduce")
        for bucket in self._buckets:  # buckets with weights that got no gradient in this pass are not sent yet
            bucket.send(self._ranks)
        for bucket in self._buckets:
            bucket.receive()

    def _note(self, parameter: Tensor) -> None:
        """Record that a weight has its gradient. Send full buckets, in the same order on all ranks."""
        if not self._armed:
            return
        for bucket in self._buckets:
            bucket.waiting.discard(id(parameter))
        for bucket in self._buckets:
            if bucket.waiting:
                return
            bucket.send(self._ranks)


class _Bucket:
    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        self.parameters = parameters
        self.waiting: set[int] = set()
        self._flat: Tensor | None = None
        self._work: dist.Work | None = None

    def expect(self) -> None:
        self.waiting = {id(parameter) for parameter in self.parameters}

    def send(self, ranks: int) -> None:
        """Start the bucket's all_reduce. Missing gradients count as zeros, so that all ranks send equal sizes."""
        if self._work is not None:
            return
        gradients = [torch.zeros_like(one) if one.grad is None else one.grad for one in self.parameters]
        self._flat = torch.cat([gradient.flatten() for gradient in gradients]).float().div_(ranks)
        self._work = dist.all_reduce(self._flat, async_op=True)

    def receive(self) -> None:
        assert self._flat is not None and self._work is not None
        self._work.wait()
        sizes = [parameter.numel() for parameter in self.parameters]
        pairs = zip(self.parameters, self._flat.split(sizes), strict=True)
        found = [(one.grad, mean.view_as(one)) for one, mean in pairs if one.grad is not None]
        torch._foreach_copy_([grad for grad, _ in found], [mean for _, mean in found])
        self._flat = self._work = None


def _buckets(parameters: Sequence[nn.Parameter]) -> list[_Bucket]:
    """Return buckets of one dtype and device in the order of the backward pass, which begins with the last weights."""
    kinds = groupby(reversed(parameters), lambda one: (one.dtype, one.device))
    return [_Bucket(some) for _, alike in kinds for some in portions(alike, lambda one: one.nbytes, _BUCKET_BYTES)]


def portions(tensors: Iterable[T], size: Callable[[T], int], most: int) -> list[list[T]]:
    """Split a list into groups with a total size of at most `most`. A tensor larger than `most` is its own group."""
    found: list[list[T]] = []
    room = 0
    for tensor in tensors:
        if not found or size(tensor) > room:
            found.append([])
            room = most
        found[-1].append(tensor)
        room -= size(tensor)
    return found


def backward_start(loss: Tensor) -> Tensor:
    """Return the gradient with which the backward pass begins: 1, or NaN if the loss is not finite.

    An infinite loss can have finite gradients. With NaN, all gradients become NaN, and after averaging they are NaN on
    all ranks.
    """
    return torch.where(loss.detach().isfinite(), 1.0, math.nan).to(loss)


def clip(parameters: Sequence[Tensor], most: float | None, layout: Layout) -> Tensor:
    """Clip the norm of all gradients over all shards. Return the norm before clipping, in fp32."""
    norm = gradient_norm(parameters, layout)
    multiply_gradients(parameters, clip_factor(norm, most))
    return norm


def clip_factor(norm: Tensor, most: float | None) -> Tensor:
    """Return the factor that reduces a norm above `most` to `most`."""
    return torch.clamp((math.inf if most is None else most) / (norm + 1e-6), max=1.0)


def multiply_gradients(parameters: Sequence[Tensor], factor: Tensor) -> None:
    torch._foreach_mul_([local(one.grad) for one in parameters if one.grad is not None], factor)


def gradient_norm(parameters: Sequence[Tensor], layout: Layout) -> Tensor:
    """Return the norm of all gradients, over all shards, in fp32."""
    given = [parameter for parameter in parameters if parameter.grad is not None]
    cut = [local(one.grad) for one in given if is_sharded(one) and one.grad is not None]
    copied = [one.grad for one in given if not is_sharded(one) and one.grad is not None]
    norm = _norm(copied) if copied else None
    if cut:
        square = _norm(cut).square()
        dist.all_reduce(square, group=layout.shard_group)
        norm = (square if norm is None else square + norm.square()).sqrt()
        # Replicas may have summed in different orders. All must clip by the same norm, or their weights drift apart.
        if layout.replicas > 1:
            dist.all_reduce(norm, dist.ReduceOp.MAX, group=layout.replica_group)
    assert norm is not None
    return norm


def _norm(gradients: list[Tensor]) -> Tensor:
    norm: Tensor = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients, 2, dtype=torch.float32)))
    return norm
