"""Rounds like another machine: `pytest --other-rounding SEED`.

Another CPU, library or thread count adds the terms of a sum in another order. Its results differ from this machine's by
rounding errors of about the same size, and they differ between two shapes of the same operation. A bound that only
this machine meets is a bug of the test. This mode finds it here: it computes each operation that sums, or that a
library approximates, in float64 too, and replaces the rounding error by another one.

- The new error is that of this machine, times a random factor of up to `AMPLITUDE` in either direction. A sum that is
  exact (of small integers, of zeros, of one term) stays exact, as on every machine.
- The factors are a function of the seed, the operation, its shapes and the column. So the same operation on the same
  values gives the same bits, as on every machine, and the rows of a batch of two are not the bits of a batch of one.
  A row of a batch has the same bits wherever it stands in it: frozen networks, which always get batches of one size on
  a CPU, rely on that, and the kernels of all CPUs that were tried do so.

It works for fp32, in this process, and for operations outside compiled code.
"""

from __future__ import annotations

import zlib
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

AMPLITUDE = 4.0
"""A slower order of summing makes errors a few times those of a blocked one with many lanes."""
_SUM_NAMES = """
    mm addmm bmm baddbmm mv addmv dot convolution convolution_backward
    _scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_flash_attention_for_cpu_backward
    sum mean var var_mean std std_mean linalg_vector_norm cumsum logsumexp
    native_layer_norm native_layer_norm_backward native_group_norm native_group_norm_backward
    native_batch_norm native_batch_norm_backward _fused_rms_norm _fused_rms_norm_backward
    _softmax _log_softmax _softmax_backward_data _log_softmax_backward_data
""".split()  # noqa: SIM905
_SUMS = {getattr(torch.ops.aten, name) for name in _SUM_NAMES if hasattr(torch.ops.aten, name)}
_FUNCTION_NAMES = """
    exp log sin cos tanh sigmoid gelu gelu_backward silu silu_backward rsqrt pow erf
    upsample_bilinear2d upsample_bicubic2d _upsample_bilinear2d_aa _upsample_bicubic2d_aa
""".split()  # noqa: SIM905
_FUNCTIONS = {getattr(torch.ops.aten, name) for name in _FUNCTION_NAMES}


class OtherRounding(TorchDispatchMode):
    def __init__(self, seed: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seed = seed

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        found = func(*args, **kwargs)
        if func.overloadpacket not in _SUMS | _FUNCTIONS or not _is_fp32(found):
            return found
        exact = func(*_doubled(args), **_doubled(kwargs))
        if func.overloadpacket in _FUNCTIONS:
            return _rounded(found, exact, self._factor_of_value(found))
        draw = torch.Generator().manual_seed(
            zlib.crc32(f"{self.seed} {func} {tree_map(_shape, (args, kwargs))}".encode())
        )
        if isinstance(found, Tensor):
            return _rounded(found, exact, _factor(found, draw))
        pairs = zip(found, exact, strict=True)
        return tuple(_rounded(one, other, _factor(one, draw)) if _is_fp32(one) else one for one, other in pairs)

    def _factor_of_value(self, found: Tensor) -> Tensor:
        """Return a factor that depends on the digits alone, not on their place or on a power of two."""
        digits = found.contiguous().view(torch.int32) & 0x7FFFFF
        mixed = (digits.long() + self.seed) * 2654435761 % 2**32
        return AMPLITUDE * (mixed / 2**31 - 1)


def _factor(found: Tensor, draw: torch.Generator) -> Tensor:
    """Return random factors, the same for every row."""
    shape = (1, *found.shape[1:]) if found.dim() else ()
    return AMPLITUDE * (2 * torch.rand(shape, generator=draw) - 1)


def _rounded(found: Tensor, exact: Tensor, factor: Tensor) -> Tensor:
    error = found.double() - exact
    return torch.where(error.isfinite() & (error != 0), (exact + factor * error).float(), found)


def _is_fp32(found: Any) -> bool:
    first = found[0] if isinstance(found, tuple | list) and found else found
    return isinstance(first, Tensor) and first.dtype == torch.float32 and first.device.type == "cpu"


def _doubled(value: Any) -> Any:
    return tree_map(lambda one: one.double() if isinstance(one, Tensor) and one.dtype == torch.float32 else one, value)


def _shape(value: Any) -> Any:
    """With the strides and the alignment: kernels choose the order of a sum by them too."""
    return (tuple(value.shape), tuple(value.stride()), value.data_ptr() % 64) if isinstance(value, Tensor) else value
