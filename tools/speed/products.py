"""`python -m tools.speed.products FILE`: time the matrix products of a step in bf16 and in FP8.

The products are those of the image tokens in a step of the 1.17B model at micro-batch 128: forward and for the
gradients of their inputs, with a scale for each row and with one for each tensor, and for the gradients of the weights,
where FP8 needs both operands transposed. Finding the scales is left out: the kernels that write the rows find them in
passing.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import torch
from torch import Tensor

from tintype.bench.clock import StepClock
from tintype.model.fp8 import runs_on
from tintype.model.fused.products import E4M3, E5M2, Operand, quantised, weight_gradient
from tintype.runtime.files import Json, write_json
from tintype.runtime.machine import choose_device, environment

_WARM_UP, _TIMED = 3, 20


@dataclass(frozen=True)
class Sizes:
    """Image tokens of a micro-batch, and the sizes of the blocks."""

    rows: int = 128 * 256
    depth: int = 16
    width: int = 1792
    inner: int = 6272

    @property
    def layers(self) -> list[tuple[int, int]]:
        """Sizes in and out of a block's layers."""
        width, inner = self.width, self.inner
        return [(width, 3 * width), (width, width), (width, 2 * inner), (inner, width)]


TINY = Sizes(rows=16, depth=1, width=16, inner=32)
Product = Callable[[], Tensor]


def measure(sizes: Sizes, device: torch.device) -> dict[str, Json]:
    """Return the milliseconds that the products of all blocks take, by their arithmetic."""
    totals_ms: dict[str, float] = defaultdict(float)
    for size_in, size_out in sizes.layers:
        products = [
            *_products(sizes.rows, size_in, size_out, device),
            *_products(sizes.rows, size_out, size_in, device),
        ]
        for name, product in [*products, *_weight_gradients(sizes.rows, size_in, size_out, device)]:
            totals_ms[name] += 1000 * sizes.depth * _median_s(product, device)
    return {f"{name}, ms": total for name, total in totals_ms.items()}


def _products(rows: int, size_in: int, size_out: int, device: torch.device) -> Iterator[tuple[str, Product]]:
    """Yield the ways to multiply rows of one size by a weight; the gradient of its input is one of the sizes turned."""
    left_RK, right_NK = (torch.randn(side, size_in, device=device).bfloat16() for side in (rows, size_out))
    yield "bf16", lambda: left_RK @ right_NK.t()
    if not runs_on(device):
        return
    left_8, right_8 = (one.to(torch.float8_e4m3fn) for one in (left_RK, right_NK))
    for fast in (True, False):
        sums = "fewer bits" if fast else "fp32"
        for name, left_scales, right_scales in (("row", (rows, 1), (1, size_out)), ("tensor", (), ())):
            left_scale, right_scale = (torch.ones(shape, device=device) for shape in (left_scales, right_scales))

            def product(left: Tensor = left_scale, right: Tensor = right_scale, fast: bool = fast) -> Tensor:
                return torch._scaled_mm(left_8, right_8.t(), left, right, out_dtype=torch.bfloat16, use_fast_accum=fast)

            yield f"FP8, a scale for each {name}, sums in {sums}", product


def _weight_gradients(rows: int, size_in: int, size_out: int, device: torch.device) -> Iterator[tuple[str, Product]]:
    """Yield the ways to compute the gradient of a weight, as fused blocks do."""
    d_RN, x_RK = (torch.randn(rows, size, device=device).bfloat16() for size in (size_out, size_in))
    none = torch.empty(0, device=device)
    yield "weights' gradients, bf16", lambda: weight_gradient(Operand(d_RN, none), Operand(x_RK, none), torch.float32)
    if runs_on(device):
        d, x = quantised(d_RN, E5M2), quantised(x_RK, E4M3)
        yield "weights' gradients, FP8 with its transposes", lambda: weight_gradient(d, x, torch.float32)


def _median_s(product: Product, device: torch.device) -> float:
    clock = StepClock(device)
    for step in range(_WARM_UP + _TIMED):
        if step == _WARM_UP:
            clock.start()
        product()
        clock.end_step()
    return median(step.whole_s for step in clock.steps())


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.speed.products", description=__doc__)
    parser.add_argument("out", type=Path, help="the JSON file to write")
    parser.add_argument("--tiny", action="store_true", help="measure next to nothing, on any device: for tests")
    options = parser.parse_args()
    device = choose_device("auto")
    found = measure(TINY if options.tiny else Sizes(), device)
    write_json(options.out, {"environment": environment(device), "tiny": options.tiny, **found})


if __name__ == "__main__":
    main()
