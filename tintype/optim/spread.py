"""Distribute work on full matrices among the ranks.

Each matrix is gathered once, processed by one rank, and sent back once. The ranks form a grid of replicas × shards
(`layout`). Each matrix is assigned to one row of the grid. The ranks of this row send their shards to the rank of the
row that processes the matrix. The result is sent back as shards, and then to the same shards of the other rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from tintype.runtime.layout import Layout, rows_of_shard

Work = Callable[[Sequence[int], list[Tensor]], list[Tensor]]
"""Function of (indices of matrices, the matrices) that returns their results, with the same shapes and dtype."""


@dataclass(frozen=True)
class Spread:
    shapes: Sequence[torch.Size]
    """Shapes of the full matrices."""
    first: int
    """Number of matrices that were distributed earlier. The assignment continues after them."""
    layout: Layout

    def work(self, work: Work, held: list[Tensor]) -> list[Tensor]:
        """Return this rank's shards of the results, given its shards of the matrices."""
        if self.layout.world.size == 1:
            return work(range(len(held)), held)
        mine, wholes = self._owned_by(self.layout.shard), self._to_owners(held)
        results = work(mine, wholes) if mine else []
        found = self._from_owners(results, held[0])
        return self._to_replicas(found, held[0]) if self.layout.replicas > 1 else found

    def _row(self, replica: int) -> list[int]:
        return [index for index in range(len(self.shapes)) if (self.first + index) % self.layout.replicas == replica]

    def _owned_by(self, shard: int) -> list[int]:
        """Return those matrices of this rank's row that the rank of a given shard processes."""
        replicas, shards = self.layout.replicas, self.layout.shards
        return [index for index in self._row(self.layout.replica) if (self.first + index) // replicas % shards == shard]

    def _shape(self, index: int, shard: int) -> tuple[int, ...]:
        rows, *others = self.shapes[index]
        return rows_of_shard(rows, shard, self.layout.shards), *others

    def _to_owners(self, held: list[Tensor]) -> list[Tensor]:
        """Return the full matrices that this rank processes."""
        shards, mine = range(self.layout.shards), self._owned_by(self.layout.shard)
        if len(shards) == 1:
            return [held[index] for index in mine]
        sent = [[held[index] for index in self._owned_by(shard)] for shard in shards]
        received = self._exchange(sent, [[self._shape(index, shard) for index in mine] for shard in shards], held[0])
        return [torch.cat(parts) for parts in zip(*received, strict=True)]

    def _from_owners(self, results: list[Tensor], like: Tensor) -> list[Tensor]:
        """Return this rank's shards of the results of its row, in order."""
        shards, mine = range(self.layout.shards), self._owned_by(self.layout.shard)
        if len(shards) == 1:
            return results
        cut = [
            result.split([self._shape(index, shard)[0] for shard in shards])
            for index, result in zip(mine, results, strict=True)
        ]
        shapes = [[self._shape(index, self.layout.shard) for index in self._owned_by(shard)] for shard in shards]
        received = self._exchange([[one[shard] for one in cut] for shard in shards], shapes, like)
        found = {
            index: part for shard in shards for index, part in zip(self._owned_by(shard), received[shard], strict=True)
        }
        return [found[index] for index in sorted(found)]

    def _exchange(
        self, sent: list[list[Tensor]], shapes: list[list[tuple[int, ...]]], like: Tensor
    ) -> list[list[Tensor]]:
        """Send a list of tensors to each rank of the row. Return the received tensors, which have the given shapes."""
        outgoing = [_flat(some, like) for some in sent]
        sizes = [sum(map(math.prod, some)) * like.element_size() for some in shapes]
        incoming = outgoing[0].new_empty(sum(sizes))
        lengths = [len(some) for some in outgoing]
        dist.all_to_all_single(incoming, torch.cat(outgoing), sizes, lengths, group=self.layout.shard_group)
        return [_unflat(some, which, like) for some, which in zip(incoming.split(sizes), shapes, strict=True)]

    def _to_replicas(self, found: list[Tensor], like: Tensor) -> list[Tensor]:
        """Return the shards of all results, gathered from all rows."""
        rows = [self._row(replica) for replica in range(self.layout.replicas)]
        shapes = [[self._shape(index, self.layout.shard) for index in row] for row in rows]
        most = max(sum(map(math.prod, some)) for some in shapes) * like.element_size()
        mine = _flat(found, like)
        padded = torch.cat([mine, mine.new_zeros(most - len(mine))])
        everyones = [torch.empty_like(padded) for _ in rows]
        dist.all_gather(everyones, padded, group=self.layout.replica_group)
        parts = {
            index: part
            for row, which, some in zip(rows, shapes, everyones, strict=True)
            for index, part in zip(row, _unflat(some, which, like), strict=True)
        }
        return [parts[index] for index in range(len(self.shapes))]


def _flat(tensors: list[Tensor], like: Tensor) -> Tensor:
    """Return the tensors as bytes, since some backends cannot send every dtype."""
    return torch.cat([like.new_empty(0), *(tensor.to(like.dtype).flatten() for tensor in tensors)]).view(torch.uint8)


def _unflat(flat: Tensor, shapes: list[tuple[int, ...]], like: Tensor) -> list[Tensor]:
    sizes = [math.prod(shape) for shape in shapes]
    numbers = flat[: sum(sizes) * like.element_size()].view(like.dtype)
    return [part.view(shape) for part, shape in zip(numbers.split(sizes), shapes, strict=True)]
