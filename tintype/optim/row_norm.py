"""Give all rows of a matrix equal step sizes, by NorMuon's second moment (arXiv 2510.05491, algorithm 1).

A row of a weight belongs to one neuron. For each row, a running mean of the orthogonalised step's mean square is kept.
Each row is divided by the root of its running mean. After this division, the whole step is scaled back to its earlier
norm. The running means, one number per row, are replicated. If rows are sharded, each rank of a replica writes its
means into a vector of zeros, and these vectors are added. After that, every rank can compute the norms.

R: rows of a parameter, all parts stacked. P: parts. N: rows of a part.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch.distributed as dist
from torch import Tensor

from tintype.optim.spread import Spread
from tintype.runtime.forms import Form
from tintype.runtime.layout import rows_of_shard

_EPS = 1e-10


def row_slot(parameter: Tensor) -> Form:
    return Form(parameter.shape[:1], parameter.dtype)


def even_rows(
    steps: list[Tensor], means: list[Tensor], parts: Sequence[int], decay: float, moves: Tensor, spread: Spread
) -> list[Tensor]:
    """Return this rank's shards of the steps with equal step sizes of all rows.

    Unless `moves` is 0, update the running means.
    """
    found = []
    firsts = [_first_row(spread, index) for index in range(len(steps))]
    squares = _whole([step.float().square().mean(1) for step in steps], firsts, spread)
    for step, mean_R, square_R, count, first in zip(steps, means, squares, parts, firsts, strict=True):
        moved_R = mean_R.float() + (square_R - mean_R.float()) * ((1 - decay) * moves)
        mean_R.copy_(moved_R)
        divided_R = 1 / (moved_R.sqrt() + _EPS)
        before_P = square_R.view(count, -1).sum(1).sqrt()
        after_P = (square_R * divided_R.square()).view(count, -1).sum(1).sqrt()
        scale_R = divided_R * (before_P / (after_P + _EPS)).repeat_interleave(len(square_R) // count)
        own_R = scale_R[first : first + len(step)]
        found.append((step.float() * own_R[:, None]).to(step.dtype))
    return found


def _first_row(spread: Spread, index: int) -> int:
    """Return the index of the first row of a matrix in this rank's shard."""
    layout, rows = spread.layout, spread.shapes[index][0]
    return sum(rows_of_shard(rows, shard, layout.shards) for shard in range(layout.shard))


def _whole(squares: list[Tensor], firsts: Sequence[int], spread: Spread) -> list[Tensor]:
    """Return the numbers of all rows, given the numbers of this rank's rows."""
    if spread.layout.shards == 1:
        return squares
    sizes = [shape[0] for shape in spread.shapes]
    all_R = squares[0].new_zeros(sum(sizes))
    wholes = list(all_R.split(sizes))
    for whole_R, own_R, first in zip(wholes, squares, firsts, strict=True):
        whole_R[first : first + len(own_R)] = own_R
    dist.all_reduce(all_R, group=spread.layout.shard_group)
    return wholes
