"""The islands of a precision plan are operations of the denoiser whose precision is set separately.

With the value `bf16`, every operand and every result of an island is rounded to bf16, as in separate bf16 operations of
torch. A sum is accumulated in fp32 and then rounded. Between operations, the rounded numbers are stored in fp32. If
numbers were stored in bf16, a compiler that fuses operations would omit the roundings. The island would then silently
compute in fp32.

B: samples, L: queries, K: keys, H: head size.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, scaled_dot_product_attention

_HALF_BELOW = 0x7FFF
_UPPER_BITS = -0x10000


class _Rounded(torch.autograd.Function):
    """Round fp32 to the nearest bf16, ties to even, by operations on the bits.

    Compilers would remove a cast to bf16 and back. The gradient is rounded too, like the gradient of a bf16 tensor.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return _nearest(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return _nearest(gradient)


def _nearest(x: Tensor) -> Tensor:
    bits = x.view(torch.int32)
    moved = (bits + (_HALF_BELOW + ((bits >> 16) & 1))) & _UPPER_BITS
    return torch.where(x.isnan(), x, moved.view(torch.float32))


def rounded(x: Tensor) -> Tensor:
    """Return the nearest bf16 numbers, stored as fp32."""
    nearest: Tensor = _Rounded.apply(x.float())  # type: ignore[no-untyped-call]
    return nearest


def compile_rounding_whole() -> None:
    """Make the compiler treat each rounding as one operation. Tracing dozens per block would take minutes."""
    torch._dynamo.allow_in_graph(rounded)


def wide(x: Tensor) -> Tensor:
    """Return the tensor in fp32 or better."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def held(x: Tensor, position: str) -> Tensor:
    """Return a tensor in the island's precision, which is rounded to bf16, fp32, or unchanged (`autocast`)."""
    if position == "autocast":
        return x
    return rounded(x) if position == "bf16" else wide(x)


def project(x: Tensor, layer: nn.Linear, position: str) -> Tensor:
    """Apply a linear layer in the island's precision. Unless this is `autocast`, torch's autocast has no effect."""
    if position == "autocast":
        out: Tensor = layer(x)
        return out
    kind = torch.bfloat16 if position == "bf16" else wide(x).dtype
    with torch.autocast(x.device.type, enabled=False):
        return linear(x.to(kind), layer.weight.to(kind), layer.bias.to(kind))


def attend(query_BLH: Tensor, key_BKH: Tensor, value_BKH: Tensor, mask: Tensor | None, softmax: str) -> Tensor:
    """Compute attention with scores, softmax and weighted sum in the island's precision. The head axis comes after B.

    With `fused`, torch's kernel keeps the dtype of its inputs and output, and computes sums and softmax in fp32.
    """
    if softmax == "fused":
        return scaled_dot_product_attention(query_BLH, key_BKH, value_BKH, attn_mask=mask)
    with torch.autocast(query_BLH.device.type, enabled=False):
        if softmax == "bf16":
            seen = _attend_in_bf16(query_BLH.bfloat16(), key_BKH.bfloat16(), value_BKH.bfloat16(), mask)
        else:
            seen = scaled_dot_product_attention(wide(query_BLH), wide(key_BKH), wide(value_BKH), attn_mask=mask)
    return seen.to(query_BLH.dtype)


def _attend_in_bf16(query_BLH: Tensor, key_BKH: Tensor, value_BKH: Tensor, mask: Tensor | None) -> Tensor:
    score_BLK = rounded((query_BLH @ key_BKH.mT).float() * query_BLH.shape[-1] ** -0.5)
    if mask is not None:
        score_BLK = score_BLK.masked_fill(~mask, -torch.inf)
    largest_BL1 = score_BLK.detach().amax(-1, keepdim=True)
    power_BLK = rounded(torch.exp(rounded(score_BLK - largest_BL1)))
    share_BLK = rounded(power_BLK / rounded(power_BLK.sum(-1, keepdim=True)))
    return share_BLK.bfloat16() @ value_BKH
