"""The Triton kernel of `symmetric`. The kernel is in a separate module, so that only systems with a GPU import Triton.

N: matrices of a batch, R: rows, C: columns.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

_SMALL_ROWS = 1024
_DEPTH = 64
"""Length of the blocks in which all configurations sum, so that all give the same bits."""


def product(x_NRC: Tensor, gram_NRR: Tensor | None, norm_N: Tensor, a: float, b: float, c: float) -> Tensor:
    """Return X Xᵀ. If X is symmetric and also given as `gram_NRR`, return the bracket of `symmetric.bracket`."""
    matrices, rows, columns = x_NRC.shape
    turned = x_NRC.stride(2) != 1
    stored = x_NRC.mT if turned else x_NRC
    # Two views of one tensor, of which the kernel takes blocks of different shapes.
    left, right = (TensorDescriptor(stored, list(stored.shape), list(stored.stride()), [1, 1, 1]) for _ in range(2))
    out_NRR = x_NRC.new_empty(matrices, rows, rows)

    def grid(meta: Mapping[str, Any]) -> tuple[int, int]:
        groups = triton.cdiv(rows, meta["WIDE"])
        return (meta["WIDE"] // meta["HIGH"] * groups * (groups + 1) // 2, matrices)

    with torch.cuda.device_of(x_NRC):
        _tuned[grid](
            left,
            right,
            x_NRC if gram_NRR is None else gram_NRR,
            norm_N,
            out_NRR,
            rows,
            columns,
            a,
            b,
            c,
            TURNED=turned,
            BRACKET=gram_NRR is not None,
        )
    return out_NRR


@triton.jit  # type: ignore[untyped-decorator]
def lower_triangle(  # type: ignore[no-untyped-def]
    left,
    right,
    gram,
    norm,
    out,
    rows,
    columns,
    a,
    b,
    c,
    TURNED: tl.constexpr,
    BRACKET: tl.constexpr,
    HIGH: tl.constexpr,
    WIDE: tl.constexpr,
    DEPTH: tl.constexpr,
):
    """Compute one tile on or below the diagonal. Store it at its position and, transposed, at the mirrored position.

    Tiles are grouped by WIDE rows, and group p has p + 1 tiles per row. Tiles of one matrix run at the same time and
    process its columns in the same order, so they share rows in the cache. A tile on the diagonal writes some positions
    twice. Both writes have the same bits, since x y equals y x.
    """
    PER_GROUP: tl.constexpr = WIDE // HIGH
    tile = tl.program_id(0)
    matrix = tl.program_id(1)
    group = ((tl.sqrt_rn((8 * (tile // PER_GROUP) + 1).to(tl.float32)) - 1) / 2).to(tl.int32)
    within = tile - PER_GROUP * (group * (group + 1) // 2)
    row = group * WIDE + within % PER_GROUP * HIGH
    column = within // PER_GROUP * WIDE
    if row >= rows:
        return

    total = tl.zeros((HIGH, WIDE), tl.float32)
    for at in range(0, columns, DEPTH):
        if TURNED:
            one = left.load([matrix, at, row]).reshape(DEPTH, HIGH).T
            other = right.load([matrix, at, column]).reshape(DEPTH, WIDE)
        else:
            one = left.load([matrix, row, at]).reshape(HIGH, DEPTH)
            other = right.load([matrix, column, at]).reshape(WIDE, DEPTH).T
        total = tl.dot(one, other, total)

    first = matrix.to(tl.int64) * rows * rows
    r = row + tl.arange(0, HIGH)
    s = column + tl.arange(0, WIDE)
    if BRACKET:
        r_ = r[:, None]
        s_ = s[None, :]
        size = tl.load(norm + matrix)
        square = size * size
        known = tl.load(gram + first + r_ * rows + s_, mask=(r_ < rows) & (s_ < rows), other=0.0).to(tl.float32)
        total = (b / square / size) * known + (c / square / square / size) * total
        total = tl.where(r_ == s_, total + a / size, total)
    value = total.to(out.dtype.element_ty)
    tl.store(out + first + r[:, None] * rows + s[None, :], value, mask=(r[:, None] < rows) & (s[None, :] < rows))
    tl.store(out + first + s[:, None] * rows + r[None, :], value.T, mask=(s[:, None] < rows) & (r[None, :] < rows))


def _set_blocks(arguments: dict[str, Any]) -> None:
    """Set the size of bulk copies to the configuration's tile size."""
    for name, side in (("left", "HIGH"), ("right", "WIDE")):
        sides = [arguments[side], arguments["DEPTH"]]
        arguments[name].block_shape = [1, *(reversed(sides) if arguments["TURNED"] else sides)]


def _config(high: int, wide: int, warps: int, stages: int) -> Any:
    tiles = {"HIGH": high, "WIDE": wide, "DEPTH": _DEPTH}
    return triton.Config(tiles, num_warps=warps, num_stages=stages, pre_hook=_set_blocks)


CONFIGS = [_config(128, 256, 8, 3), _config(128, 256, 8, 4), _config(128, 128, 8, 4), _config(128, 128, 4, 3)]
SMALL_CONFIGS = [_config(128, 128, 8, 4), _config(64, 128, 4, 4), _config(64, 64, 4, 4)]


def _worth_trying(_: list[Any], arguments: dict[str, Any], **__: Any) -> list[Any]:
    return SMALL_CONFIGS if arguments["rows"] < _SMALL_ROWS else CONFIGS


def _time(call: Any, quantiles: Any) -> Any:
    return triton.testing.do_bench(call, warmup=3, rep=15, quantiles=quantiles)


_tuned = triton.autotune(
    CONFIGS,
    key=["rows", "TURNED", "BRACKET"],  # the number of columns changes how long each takes, and not which is the first
    prune_configs_by={"early_config_prune": _worth_trying},
    do_bench=_time,
)(lower_triangle)
