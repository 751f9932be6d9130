"""Compare shapes and dtypes of loaded tensors before they are copied.

`copy_` and torch's optimizers broadcast and cast silently. Without this check, a tensor of shape [1], a transposed
tensor or an fp16 tensor would be loaded without an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

_SHOWN = 3
_SHORT = {torch.float64: "fp64", torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}


@dataclass(frozen=True)
class Form:
    """The shape and dtype of a tensor. The dtype None matches any dtype."""

    shape: torch.Size
    dtype: torch.dtype | None = None

    def fits(self, wanted: Form) -> bool:
        return self.shape == wanted.shape and wanted.dtype in (None, self.dtype)

    def __str__(self) -> str:
        if self.dtype is None:
            return str(list(self.shape))
        return f"{_SHORT.get(self.dtype, str(self.dtype).removeprefix('torch.'))} {list(self.shape)}"


def form_of(tensor: Tensor) -> Form:
    return Form(tensor.shape, tensor.dtype)


def forms_of(tensors: Mapping[str, Tensor]) -> dict[str, Form]:
    return {name: form_of(tensor) for name, tensor in tensors.items()}


def under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors whose names begin with `prefix`. The prefix is removed from the names."""
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def misfits(found: Mapping[str, Form], wanted: Mapping[str, Form]) -> str:
    """List tensors that are missing, unexpected, or of a wrong shape or dtype, at most three of each; '' if all fit."""
    kinds = {
        "missing": [name for name in wanted if name not in found],
        "too many": [name for name in found if name not in wanted],
        "of another shape or type": [
            f"{name} is {found[name]} and not {wanted[name]}"
            for name in wanted
            if name in found and not found[name].fits(wanted[name])
        ],
    }
    return "; ".join(
        f"{len(names)} {kind}: {', '.join(names[:_SHOWN])}{', …' if len(names) > _SHOWN else ''}"
        for kind, names in kinds.items()
        if names
    )
