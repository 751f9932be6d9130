"""The complete state of a run besides its Plan, with weights, optimizer, weight average, spike window and counters.

The state is a flat mapping from names to tensors, plus JSON scalars. Loading refuses missing or extra names and wrong
shapes or dtypes before any tensor is copied. The state contains no random state (`tintype.rng`), and its only data
state is `images_seen` (`data.order`).
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from tintype.optim.part import OptimizerPart
from tintype.optim.storage import Storage
from tintype.runtime.forms import Form, forms_of, misfits, under
from tintype.runtime.layout import Layout, is_sharded
from tintype.seams import WeightAverage
from tintype.train.average_teacher import AverageTeacher
from tintype.train.parts import JOINT, JOINT_ONLY, LOSSES
from tintype.train.session import Session
from tintype.train.shards import Place, whole_place
from tintype.train.spikes import SpikeWindow

_LATE = (LOSSES, "router.", JOINT_ONLY)
"""Prefixes of parameters that may lack a gradient, and so optimizer state, in the first steps of a schedule."""
_COUNTERS = ("step", "images_seen", "skips_in_a_row", "skips", "recent_skips")
_CAME_LATER: dict[str, Any] = {"skips": 0, "recent_skips": []}
"""Counters that checkpoints of earlier versions lack, with their values."""


class StateMismatchError(Exception):
    """Raised if a stored state does not fit the run, because the plan or the program has changed."""


@dataclass
class TrainState:
    modules: nn.ModuleDict
    optimizer: torch.optim.Optimizer
    ema: WeightAverage | None
    step: int = 0
    images_seen: int = 0
    skips_in_a_row: int = 0
    skips: int = 0
    """Number of skipped steps in the whole run."""
    recent_skips: list[int] = field(default_factory=list)
    """Number of skipped steps among the last `SKIP_WINDOW_STEPS`."""
    spikes: SpikeWindow | None = None
    teacher: AverageTeacher | None = None
    """The averaged denoiser; None if no loss term learns from it. The averaged denoiser has no separate state."""

    @property
    def parameters(self) -> list[nn.Parameter]:
        return [parameter for group in self.optimizer.param_groups for parameter in group["params"]]

    def places(self) -> Place:
        """Return empty tensors to read stored ones into, sharded like a weight of the same name and shape."""
        weights = {name: weight for name, weight in self.modules.named_parameters() if is_sharded(weight)}

        def place(name: str, shape: torch.Size, dtype: torch.dtype) -> Tensor:
            like = next((weights[part] for part in name.split("/") if part in weights), None)
            if like is None or like.shape != shape:
                return whole_place(name, shape, dtype)
            return torch.empty_like(like, dtype=dtype, requires_grad=False)

        return place

    def tensors(self) -> dict[str, Tensor]:
        flat = {f"modules/{name}": tensor for name, tensor in self.modules.state_dict().items()}
        names = self._parameter_names()
        for index, slots in self.optimizer.state_dict()["state"].items():
            flat |= {f"optimizer/{names[index]}/{slot}": torch.as_tensor(value) for slot, value in slots.items()}
        if self.ema:
            flat |= {f"ema/{name}": tensor for name, tensor in self.ema.tensors().items()}
        if self.spikes:
            flat |= {f"spikes/{name}": tensor for name, tensor in self.spikes.tensors().items()}
        return flat

    def scalars(self) -> dict[str, Any]:
        """Return a copy of the counters, which change while a save is running."""
        return {name: copy(getattr(self, name)) for name in _COUNTERS}

    def load(self, tensors: Mapping[str, Tensor], scalars: Mapping[str, Any]) -> None:
        """Load a stored state. If any name, shape or dtype does not fit, raise and do not change this state."""
        counters = _checked_counters(_CAME_LATER | dict(scalars), self.scalars())
        if found := misfits(forms_of(tensors), self._expected_forms(tensors, trained=counters["step"] > 0)):
            raise StateMismatchError(found)
        self.modules.load_state_dict(under("modules/", tensors))
        self._load_optimizer(under("optimizer/", tensors))
        for room, part in (("ema/", self.ema), ("spikes/", self.spikes)):
            for name, tensor in part.tensors().items() if part else ():
                tensor.copy_(tensors[room + name])
        for name, value in counters.items():
            setattr(self, name, value)

    def _expected_forms(self, stored: Mapping[str, Tensor], trained: bool) -> dict[str, Form]:
        """Return the expected shape and dtype of each tensor in the state, either after the first step or before it."""
        now = {name: tensor for name, tensor in self.tensors().items() if not name.startswith("optimizer/")}
        expected = forms_of(now)
        begun = {name.removeprefix("optimizer/").rpartition("/")[0] for name in stored if name.startswith("optimizer/")}
        for name, parameter in zip(self._parameter_names(), self.parameters, strict=True) if trained else ():
            if name in begun or not name.startswith(_LATE):
                slots: dict[str, Form] = self.optimizer.slots(parameter)  # type: ignore[attr-defined]
                expected |= {f"optimizer/{name}/{slot}": form for slot, form in slots.items()}
        return expected

    def _load_optimizer(self, stored: Mapping[str, Tensor]) -> None:
        slots: dict[str, dict[str, Tensor]] = {}
        for key, tensor in stored.items():
            name, _, slot = key.rpartition("/")
            slots.setdefault(name, {})[slot] = tensor
        fresh = self.optimizer.state_dict()
        names = self._parameter_names()
        fresh["state"] = {index: slots[name] for index, name in enumerate(names) if name in slots}
        self.optimizer.load_state_dict(fresh)

    def _parameter_names(self) -> list[str]:
        name_of = {id(parameter): name for name, parameter in self.modules.named_parameters()}
        return [name_of[id(parameter)] for parameter in self.parameters]


def new_state(parts: Session) -> TrainState:
    storage = Storage(parts.plan.precision.rounding, parts.plan.seed, parts.layout.shard)
    plan, named = parts.plan, dict(parts.modules.named_parameters())
    joint_lr = {group.prefix: group.lr for group in parts.joint.groups} if parts.joint else {}
    optimizer = build_optimizer(plan.optimizer, named, storage, parts.layout, joint_lr)
    for group in optimizer.param_groups:
        group["base_lr"] = group["lr"]
    ema = plan.ema.build(separate(named)) if plan.ema else None
    spikes = SpikeWindow(plan.train.skip_spikes, parts.device) if plan.train.skip_spikes else None
    wanted = any(term.part.needs_average for term in parts.terms)
    teacher = AverageTeacher(plan.ema, ema, plan.precision) if plan.ema and ema and wanted else None
    return TrainState(parts.modules, optimizer, ema, spikes=spikes, teacher=teacher)


def build_optimizer(
    settings: OptimizerPart,
    named: Mapping[str, nn.Parameter],
    storage: Storage,
    layout: Layout,
    joint_lr: Mapping[str, float],
) -> torch.optim.Optimizer:
    """Build the plan's optimizer. Parameters of joint training are in the last groups, which are updated by AdamW."""
    optimizer = settings.build(separate(named).items(), storage, layout)
    for prefix in JOINT:
        if own := [parameter for name, parameter in named.items() if name.startswith(prefix)]:
            optimizer.add_param_group({"params": own, "lr": joint_lr.get(prefix, 0.0)})
    return optimizer


def separate(named: Mapping[str, nn.Parameter]) -> dict[str, nn.Parameter]:
    """Return all parameters except those of joint training."""
    return {name: parameter for name, parameter in named.items() if not name.startswith(JOINT)}


def _checked_counters(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> dict[str, Any]:
    """Return the counters; raise StateMismatchError if a counter is missing, unknown or not a valid number."""
    missing, unknown = sorted(wanted.keys() - found.keys()), sorted(found.keys() - wanted.keys())
    if missing or unknown:
        raise StateMismatchError(f"the counters: missing {missing or 'nothing'}, unknown {unknown or 'nothing'}")
    for name, value in found.items():
        counts = value if isinstance(wanted[name], list) else [value]
        if not isinstance(counts, list) or not all(type(count) is int and count >= 0 for count in counts):
            kind = "a list of counts" if isinstance(wanted[name], list) else "a count"
            raise StateMismatchError(f"the counters: {name} is {value!r}, but must be {kind}")
    return dict(found)
