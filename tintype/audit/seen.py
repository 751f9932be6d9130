"""Observations of an audit as plain data, from which alone the findings are made."""

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
    """The part of the model that a parameter, buffer or module is in."""
    parts = name.split(".")
    return ".".join(parts[:2]) if parts[0] == "denoiser" else parts[0]


@dataclass
class Tally:
    """Numbers that should have moved, and those of them that stayed where they were."""

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
    """Updates of weights: `lost` ones did not move although the step in float64 is not zero.

    Steps that rounding to nearest cannot take, in units of the number's last place: how far they should have gone
    together, and how far they went. Nearest goes nowhere; stochastic rounding goes as far as it should, on average.
    """

    small_wanted: float = 0.0
    small_gone: float = 0.0
    along: float = 0.0
    """Sum of (way gone) × (step in float64), from which the cosine comes."""
    gone_squared: float = 0.0
    wanted_squared: float = 0.0
    compensated: bool = False
    """Whether the rounding error is stored beside the weight, which counts as moved."""

    @property
    def cosine(self) -> float | None:
        """Between the way that the weights went in one step and the step in float64."""
        size = (self.gone_squared * self.wanted_squared) ** 0.5
        return self.along / size if size else None


@dataclass
class Bad:
    """Values that are not finite, or stand at the largest number of their type."""

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
    """The tensors of one kind in one room."""

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
        """Note the type and the values of what stays from step to step."""
        self.saw(role, tensor)
        self.check(role, tensor)


@dataclass
class Input:
    """An argument of a module, as it arrives there: after the casts of FSDP, before those of autocast inside."""

    module: str
    argument: str
    types: set[str] = field(default_factory=set)
    bad: Bad = field(default_factory=Bad)
    telling: int = 0
    """Values that were looked at for rounding: not those that every type has, 0 and ±1."""
    telling_in_bf16: int = 0
    """Number of them that bf16 represents exactly."""
    off: float = 0.0
    """Largest error of the timesteps' sinusoid, against that of the timesteps that the denoiser was given."""

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
    """`timestep`, `rope`, `norms` or `softmax`: the rooms where an operation brought it to a narrow type."""
    operands: dict[str, Bad] = field(default_factory=dict)
    """By room: what went into matrix products in fp8."""
    loss_scales: list[float] = field(default_factory=list)
    """For each step: the loss that backward started from, over the loss that the step reports."""
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
