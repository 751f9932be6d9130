"""Observations of an audit as plain data; findings are made from these alone."""

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
"""Types with 11 bits or fewer for a number; fp32 has 24."""

_KINDS = ("matrices", "gains", "biases", "buffers")
Role = Literal["weights", "gradients", "moments", "averages", "buffers", "inputs", "fp8 operands"]


def type_name(dtype: torch.dtype) -> str:
    return TYPE_NAMES.get(dtype, str(dtype).removeprefix("torch."))


def room_of(name: str) -> str:
    """The part of the model to which a parameter, buffer or module belongs."""
    parts = name.split(".")
    return ".".join(parts[:2]) if parts[0] == "denoiser" else parts[0]


@dataclass
class Tally:
    """Numbers that should have moved, and those that did not."""

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
    """Updates of weights. `lost` ones did not move although the step in float64 is not zero.

    The other fields are about steps too small for rounding to nearest, in units of the number's last place: the
    expected movement in sum, and the actual one. Rounding to nearest does not move; stochastic rounding moves as
    expected, on average.
    """

    small_wanted: float = 0.0
    small_gone: float = 0.0
    along: float = 0.0
    """Sum of (actual movement) × (step in float64), from which the cosine is computed."""
    gone_squared: float = 0.0
    wanted_squared: float = 0.0
    compensated: bool = False
    """Whether the rounding error is stored beside the weight, which then counts as moved."""

    @property
    def cosine(self) -> float | None:
        """Between the actual movement of the weights in one step and the step in float64."""
        size = (self.gone_squared * self.wanted_squared) ** 0.5
        return self.along / size if size else None


@dataclass
class Bad:
    """Values that are not finite, or equal the largest number of their type."""

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
        """Return whether tensors of this role are in a type of few bits."""
        return bool(self.types.get(role, set()) & NARROW)

    def saw(self, role: Role, tensor: Tensor) -> None:
        self.types.setdefault(role, set()).add(type_name(tensor.dtype))

    def check(self, role: Role, tensor: Tensor) -> None:
        self.bad.setdefault(role, Bad()).add(tensor)

    def stores(self, role: Role, tensor: Tensor) -> None:
        """Record the type and the values of a tensor that stays from step to step."""
        self.saw(role, tensor)
        self.check(role, tensor)


@dataclass
class Input:
    """An argument of a module on arrival: after the casts of FSDP, before those of autocast inside."""

    module: str
    argument: str
    types: set[str] = field(default_factory=set)
    bad: Bad = field(default_factory=Bad)
    telling: int = 0
    """Values checked for rounding, except 0 and ±1, which every type has."""
    telling_in_bf16: int = 0
    """Number of them that bf16 represents exactly."""
    off: float = 0.0
    """Largest error of the timesteps' sinusoid, against the timesteps that the denoiser got."""

    @property
    def room(self) -> str:
        return room_of(self.module)


@dataclass
class Seen:
    precision: PrecisionSettings
    """The plan's section."""
    groups: dict[tuple[str, str], Group] = field(default_factory=dict)
    inputs: dict[tuple[str, str], Input] = field(default_factory=dict)
    rounded_inside: dict[str, list[str]] = field(default_factory=dict)
    """`timestep`, `rope`, `norms` or `softmax`: the rooms in which an operation converted it to a narrow type."""
    operands: dict[str, Bad] = field(default_factory=dict)
    """By room: inputs of matrix products in fp8."""
    loss_scales: list[float] = field(default_factory=list)
    """For each step: the loss that `backward` was called on, divided by the loss that the step reports."""
    init_share: float = 0.0
    """Share of the initial weights in the weight average at the end of training."""
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
        """The groups in the model's order."""
        rooms = list(dict.fromkeys(group.room for group in self.groups.values()))
        return sorted(self.groups.values(), key=lambda g: (rooms.index(g.room), _KINDS.index(g.kind)))

    @property
    def error_words(self) -> str | None:
        return None if self.error is None else f"{type(self.error).__name__}: {self.error}"

    def input_types(self, room: str) -> set[str]:
        return {name for one in self.inputs.values() if one.room == room for name in one.types}
