"""Spreads work on whole matrices over the ranks: each is gathered once, worked on by one rank, and sent back once.

The ranks are a grid of copies × pieces (`layout`). A matrix belongs to one row, whose ranks send their pieces to that
one of them that works on it. Its result goes back in pieces, and from there to the same pieces of the other rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from tintype.runtime.layout import Layout, rows_of_piece

Work = Callable[[Sequence[int], list[Tensor]], list[Tensor]]
"""(which matrices, the matrices) -> their results, of the same shapes and type."""


@dataclass(frozen=True)
class Spread:
    shapes: Sequence[torch.Size]
    """Of the whole matrices."""
    first: int
    """How many matrices others have spread before: turns go on where those ended."""
    layout: Layout

    def work(self, work: Work, held: list[Tensor]) -> list[Tensor]:
        """What this rank holds of the results, given what it holds of the matrices."""
        if self.layout.world.size == 1:
            return work(range(len(held)), held)
        mine, wholes = self._owned_by(self.layout.piece), self._to_owners(held)
        results = work(mine, wholes) if mine else []
        found = self._from_owners(results, held[0])
        return self._to_copies(found, held[0]) if self.layout.copies > 1 else found

    def _row(self, copy: int) -> list[int]:
        """The matrices that belong to a copy."""
        return [index for index in range(len(self.shapes)) if (self.first + index) % self.layout.copies == copy]

    def _owned_by(self, piece: int) -> list[int]:
        """Those of this rank's row that a piece's rank works on."""
        copies, pieces = self.layout.copies, self.layout.pieces
        return [index for index in self._row(self.layout.copy) if (self.first + index) // copies % pieces == piece]

    def _shape(self, index: int, piece: int) -> tuple[int, ...]:
        """Of a piece of a matrix."""
        rows, *others = self.shapes[index]
        return rows_of_piece(rows, piece, self.layout.pieces), *others

    def _to_owners(self, held: list[Tensor]) -> list[Tensor]:
        """The whole matrices that this rank works on."""
        pieces, mine = range(self.layout.pieces), self._owned_by(self.layout.piece)
        if len(pieces) == 1:
            return [held[index] for index in mine]
        sent = [[held[index] for index in self._owned_by(piece)] for piece in pieces]
        received = self._exchange(sent, [[self._shape(index, piece) for index in mine] for piece in pieces], held[0])
        return [torch.cat(parts) for parts in zip(*received, strict=True)]

    def _from_owners(self, results: list[Tensor], like: Tensor) -> list[Tensor]:
        """This rank's pieces of the results of its row, in order."""
        pieces, mine = range(self.layout.pieces), self._owned_by(self.layout.piece)
        if len(pieces) == 1:
            return results
        cut = [
            result.split([self._shape(index, piece)[0] for piece in pieces])
            for index, result in zip(mine, results, strict=True)
        ]
        shapes = [[self._shape(index, self.layout.piece) for index in self._owned_by(piece)] for piece in pieces]
        received = self._exchange([[one[piece] for one in cut] for piece in pieces], shapes, like)
        found = {
            index: part for piece in pieces for index, part in zip(self._owned_by(piece), received[piece], strict=True)
        }
        return [found[index] for index in sorted(found)]

    def _exchange(
        self, sent: list[list[Tensor]], shapes: list[list[tuple[int, ...]]], like: Tensor
    ) -> list[list[Tensor]]:
        """Sends a list of tensors to each rank of the row; returns what came from each, of these shapes."""
        outgoing = [_flat(some, like) for some in sent]
        sizes = [sum(map(_numbers, some)) * like.element_size() for some in shapes]
        incoming = outgoing[0].new_empty(sum(sizes))
        lengths = [len(some) for some in outgoing]
        dist.all_to_all_single(incoming, torch.cat(outgoing), sizes, lengths, group=self.layout.of_one_copy)
        return [_unflat(some, which, like) for some, which in zip(incoming.split(sizes), shapes, strict=True)]

    def _to_copies(self, found: list[Tensor], like: Tensor) -> list[Tensor]:
        """All results' pieces, of which every row has some."""
        rows = [self._row(copy) for copy in range(self.layout.copies)]
        shapes = [[self._shape(index, self.layout.piece) for index in row] for row in rows]
        most = max(sum(map(_numbers, some)) for some in shapes) * like.element_size()
        mine = _flat(found, like)
        padded = torch.cat([mine, mine.new_zeros(most - len(mine))])
        everyones = [torch.empty_like(padded) for _ in rows]
        dist.all_gather(everyones, padded, group=self.layout.of_one_piece)
        parts = {
            index: part
            for row, which, some in zip(rows, shapes, everyones, strict=True)
            for index, part in zip(row, _unflat(some, which, like), strict=True)
        }
        return [parts[index] for index in range(len(self.shapes))]


def _flat(tensors: list[Tensor], like: Tensor) -> Tensor:
    """As bytes, since not every backend sends every type."""
    return torch.cat([like.new_empty(0), *(tensor.to(like.dtype).flatten() for tensor in tensors)]).view(torch.uint8)


def _unflat(flat: Tensor, shapes: list[tuple[int, ...]], like: Tensor) -> list[Tensor]:
    sizes = [_numbers(shape) for shape in shapes]
    numbers = flat[: sum(sizes) * like.element_size()].view(like.dtype)
    return [part.view(shape) for part, shape in zip(numbers.split(sizes), shapes, strict=True)]


def _numbers(shape: tuple[int, ...]) -> int:
    return torch.Size(shape).numel()
