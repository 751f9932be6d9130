"""Observations of an audit as plain data. Findings depend on these observations alone."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from tintype.runtime.layout import local
from tintype.settings import PrecisionSettings

TYPE_NAMES = {
    torch.float64: "fp64",
    torch.float32: "fp32",
    torch.bfloat16: "bf16",
    torch.float16: "fp16",
    torch.float8_e4m3fn: "fp8-e4m3",
    torch.float8_e5m2: "fp8-e5m2",
}
NARROW = frozenset({"bf16", "fp16", "fp8-e4m3", "fp8-e5m2"})
"""Dtypes with a significand of at most 11 bits; fp32 has 24."""

_KINDS = ("matrices", "gains", "biases", "buffers")
Role = Literal["weights", "gradients", "moments", "averages", "buffers", "inputs", "fp8 operands"]


def type_name(dtype: torch.dtype) -> str:
    return TYPE_NAMES.get(dtype, str(dtype).removeprefix("torch."))


def room_of(name: str) -> str:
    """Return the part of the model that owns a parameter, buffer or module."""
    parts = name.split(".")
    return ".".join(parts[:2]) if parts[0] == "denoiser" else parts[0]


@dataclass
class Tally:
    """Count of the numbers that should have moved, and of the numbers that did not."""

    due: int = 0
    lost: int = 0

    def add(self, due: Tensor, lost: Tensor) -> None:
        self.due += int(due.sum())
        self.lost += int(lost.sum())

    @property
    def share(self) -> float | None:
        return self.lost / self.due if self.due else None


@dataclass
class Updates(Tally):
    """Updates of weights; `lost` counts weights that did not move although the float64 step is not zero.

    The other fields sum the expected and the actual movement by steps that are too small for rounding to nearest, in
    units of the last place. Rounding to nearest moves nothing, and stochastic rounding moves the expected amount on
    average.
    """

    small_wanted: float = 0.0
    small_gone: float = 0.0
    along: float = 0.0
    """Sum of (actual movement) × (float64 step). The cosine is computed from this sum."""
    gone_squared: float = 0.0
    wanted_squared: float = 0.0
    compensated: bool = False
    """Whether the rounding error is stored in a separate tensor. A weight with such a tensor counts as moved."""

    @property
    def cosine(self) -> float | None:
        """Return the cosine between the actual movement of the weights in one step and the float64 step."""
        size = (self.gone_squared * self.wanted_squared) ** 0.5
        return self.along / size if size else None


@dataclass
class Bad:
    """Values that are not finite, or that equal the largest number of their dtype."""

    numbers: int = 0
    non_finite: int = 0
    saturated: int = 0

    def add(self, tensor: Tensor) -> None:
        tensor = local(tensor.detach())
        if not tensor.is_floating_point() or not tensor.numel():
            return
        wide = tensor if tensor.element_size() > 1 else tensor.float()  # fp8 has no comparisons
        finite = wide.isfinite()
        self.numbers += tensor.numel()
        self.non_finite += int((~finite).sum())
        self.saturated += int((finite & (wide.abs() >= torch.finfo(tensor.dtype).max)).sum())


@dataclass
class Group:
    """The tensors of one kind in one part of the model."""

    room: str
    kind: str
    elements: int = 0
    types: dict[Role, set[str]] = field(default_factory=dict)
    updates: Updates = field(default_factory=Updates)
    moments: Tally = field(default_factory=Tally)
    averages: Tally = field(default_factory=Tally)
    bad: dict[Role, Bad] = field(default_factory=dict)

    def narrow(self, role: Role) -> bool:
        """Return whether tensors of this role have a narrow dtype."""
        return bool(self.types.get(role, set()) & NARROW)

    def saw(self, role: Role, tensor: Tensor) -> None:
        self.types.setdefault(role, set()).add(type_name(tensor.dtype))

    def check(self, role: Role, tensor: Tensor) -> None:
        self.bad.setdefault(role, Bad()).add(tensor)

    def stores(self, role: Role, tensor: Tensor) -> None:
        """Record the dtype and the values of a tensor that persists between steps."""
        self.saw(role, tensor)
        self.check(role, tensor)


@dataclass
class Input:
    """An argument that a module gets, after the casts of FSDP and before the casts of autocast inside the module."""

    module: str
    argument: str
    types: set[str] = field(default_factory=set)
    bad: Bad = field(default_factory=Bad)
    telling: int = 0
    """Number of values checked for rounding, without 0 and ±1, which every dtype represents exactly."""
    telling_in_bf16: int = 0
    """Number of the checked values that bf16 represents exactly."""
    off: float = 0.0
    """Largest error of the timesteps' sinusoid, compared with the timesteps that the denoiser got."""

    @property
    def room(self) -> str:
        return room_of(self.module)


@dataclass
class Seen:
    precision: PrecisionSettings
    groups: dict[tuple[str, str], Group] = field(default_factory=dict)
    inputs: dict[tuple[str, str], Input] = field(default_factory=dict)
    rounded_inside: dict[str, list[str]] = field(default_factory=dict)
    """Parts of the model in which an operation narrowed `timestep`, `rope`, `norms` or `softmax`, by that name."""
    operands: dict[str, Bad] = field(default_factory=dict)
    """Inputs of fp8 matrix products, by part of the model."""
    loss_scales: list[float] = field(default_factory=list)
    """Loss scale of each step: the loss on which `backward` was called, divided by the reported loss."""
    init_share: float = 0.0
    """Share of the initial weights in the weight average after training."""
    steps: int = 0
    skipped_steps: int = 0
    tf32: bool = False
    error: Exception | None = None
    """The error that ended the steps early."""

    def group(self, room: str, kind: str) -> Group:
        return self.groups.setdefault((room, kind), Group(room, kind))

    def narrow(self, role: Role) -> list[Group]:
        return [group for group in self.groups.values() if group.narrow(role)]

    def input(self, module: str, argument: str) -> Input:
        return self.inputs.setdefault((module, argument), Input(module, argument))

    @property
    def in_order(self) -> list[Group]:
        rooms = list(dict.fromkeys(group.room for group in self.groups.values()))
        return sorted(self.groups.values(), key=lambda g: (rooms.index(g.room), _KINDS.index(g.kind)))

    @property
    def error_words(self) -> str | None:
        return None if self.error is None else f"{type(self.error).__name__}: {self.error}"

    def input_types(self, room: str) -> set[str]:
        return {name for one in self.inputs.values() if one.room == room for name in one.types}
