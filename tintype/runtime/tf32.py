"""Apply layers in fp32 while the rest of the model is autocast to bf16. On a GPU, their matrix products use TF32.

TF32 products have factors with 10 mantissa bits and fp32 sums. These products run on tensor cores, which are faster
than other units. Each bf16 number is also a TF32 number, so TF32 does not round the tokens of a bf16 denoiser.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn


@contextmanager
def tf32_products() -> Iterator[None]:
    """Allow TF32 for fp32 products on a GPU, including convolutions, for which cuDNN has a separate setting."""
    products, convolutions = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.allow_tf32 = True
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(products)
        torch.backends.cudnn.allow_tf32 = convolutions


def in_fp32(layers: nn.Module, x: Tensor) -> Tensor:
    """Apply layers in fp32, even under autocast. Under autocast on a GPU, use TF32 products in both passes."""
    fast = x.is_cuda and torch.is_autocast_enabled("cuda")
    kind = x.device.type if torch.amp.is_autocast_available(x.device.type) else "cpu"  # meta has none of its own
    with torch.autocast(kind, enabled=False):
        out: Tensor = in_tf32(layers, x.float()) if fast else layers(x.float())
    return out


def in_tf32(layers: nn.Module, x: Tensor) -> Tensor:
    out: Tensor = _InTf32.apply(layers, x, *layers.parameters())  # type: ignore[no-untyped-call]
    return out


class _InTf32(torch.autograd.Function):
    """Run both passes with TF32. The backward pass sets TF32 again, since the forward pass has restored the setting."""

    @staticmethod
    def forward(ctx: Any, layers: nn.Module, x: Tensor, *parameters: Tensor) -> Tensor:
        inside = x.detach().requires_grad_(x.requires_grad)
        with torch.enable_grad(), tf32_products():
            out = layers(inside)
        ctx.out, ctx.inputs = out, (inside, *parameters)
        result: Tensor = out.detach()
        return result

    @staticmethod
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor | None, ...]:
        wanted = [one for one, needed in zip(ctx.inputs, ctx.needs_input_grad[1:], strict=True) if needed]
        with tf32_products():
            found = iter(torch.autograd.grad(ctx.out, wanted, d_out))
        return None, *(next(found) if needed else None for needed in ctx.needs_input_grad[1:])
