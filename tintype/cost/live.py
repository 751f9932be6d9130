"""Count the peak memory of a computation on networks without values (torch's meta device).

As on a GPU, tensors count until they are freed; autograd keeps some for backward. Older tensors do not count.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tintype.pretrained.packages import Untyped

META = torch.device("meta")
WORKSPACE = 2
"""cuDNN's workspace relative to a convolution's input and output, measured for VGG16 with TF32 on an H200.

The workspace is the largest part of the peak memory of a convolutional teacher.
"""
_PRODUCTS = (nn.functional.linear, torch.matmul, Tensor.matmul, Tensor.__matmul__, torch.bmm, nn.functional.conv2d)
"""Operations that autocast computes in bf16."""


def peak_bytes(work: Callable[[], object], bf16: bool = False) -> int:
    """Return the largest total size of new tensors at any time; with `bf16`, products are in bf16, as with autocast."""
    counter = _Live()
    with counter, _Kernels(bf16):
        work()
    return counter.most


def peak_per_image(work: Callable[[int], object], bf16: bool = False) -> int:
    """Return the peak bytes of `work` per image, as the difference between two numbers of images.

    Tensors whose size does not depend on the number of images cancel out, such as gradients of weights.
    """
    with _Kernels(bf16):
        work(1)  # the first pass allocates the gradients of weights, which stay allocated
    one, three = (peak_bytes(lambda images=images: work(images), bf16) for images in (1, 3))  # type: ignore[misc]
    return -(-(three - one) // 2)


class _Live(TorchDispatchMode):
    """Counts the bytes of the storages that operations make, from allocation to release."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now = self.most = 0
        self._storages: dict[int, weakref.ref[Any]] = {}

    def __torch_dispatch__(
        self, func: Untyped, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = {id(one.untyped_storage()) for one in tree_leaves((args, kwargs or {})) if isinstance(one, Tensor)}
        out = func(*args, **(kwargs or {}))
        for one in tree_leaves(out):
            if isinstance(one, Tensor):
                storage = one.untyped_storage()
                if id(storage) not in given and id(storage) not in self._storages:
                    self._add(storage)
        return out

    def _add(self, storage: torch.UntypedStorage) -> None:
        key, size = id(storage), storage.nbytes()

        def freed(reference: weakref.ref[Any]) -> None:
            del self._storages[key]
            self.now -= size

        self._storages[key] = weakref.ref(storage, freed)
        self.now += size
        self.most = max(self.most, self.now)


class _Kernels(TorchFunctionMode):
    """Uses as much memory as GPU kernels, with autocast's dtypes, and without attention's matrix of all pairs."""

    def __init__(self, bf16: bool) -> None:
        super().__init__()
        self._bf16 = bf16

    def __torch_function__(
        self, func: Untyped, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if self._bf16 and (func in _PRODUCTS or func is nn.functional.scaled_dot_product_attention):
            args = [_narrow(one) for one in args]
        if func is nn.functional.conv2d:
            return _convolve(args, kwargs)
        if func is nn.functional.scaled_dot_product_attention:
            return _Attention.apply(*args[:3])  # type: ignore[no-untyped-call]
        return func(*args, **kwargs)


def _convolve(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Tensor:
    """Return the result of a convolution. Count its workspace as temporary memory."""
    out = nn.functional.conv2d(*args, **kwargs)
    number_bytes, numbers = args[0].element_size(), args[0].numel() + out.numel()
    workspace = torch.empty(int(WORKSPACE * number_bytes * numbers), dtype=torch.uint8, device=META)
    del workspace
    return out


def _narrow(value: Any) -> Any:
    return value.bfloat16() if isinstance(value, Tensor) and value.dtype == torch.float32 else value


class _Attention(torch.autograd.Function):
    """Attention that computes nothing, but keeps queries, keys, values and result, as flash attention does."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        out = query.new_empty(*query.shape[:-1], value.shape[-1])
        ctx.save_for_backward(query, key, value, out)
        return out

    @staticmethod
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor, ...]:
        return tuple(torch.empty_like(one) for one in ctx.saved_tensors[:3])
