"""All that a run is, besides its Plan: weights, optimizer, weight average and two counters.

It is a flat mapping from names to tensors, plus JSON scalars. Loading is strict both ways: a name too many or too few
is refused. There is no random state to keep (`tintype.rng`) and no data state but `images_seen` (`data.order`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from tintype.seams import WeightAverage
from tintype.settings import OptimizerPart
from tintype.train.layout import Layout, is_cut
from tintype.train.optim.storage import Storage
from tintype.train.parts import ADVERSARY, APART, LOSSES, TUNED, Parts
from tintype.train.pieces import Place, whole_place


class StateMismatchError(Exception):
    """A stored state does not fit the run: its plan or the program has changed."""


@dataclass
class TrainState:
    modules: nn.ModuleDict
    optimizer: torch.optim.Optimizer
    ema: WeightAverage | None
    step: int = 0
    images_seen: int = 0
    skips_in_a_row: int = 0

    @property
    def parameters(self) -> list[nn.Parameter]:
        """All that is optimized, in the optimizer's order."""
        return [parameter for group in self.optimizer.param_groups for parameter in group["params"]]

    def places(self) -> Place:
        """Where to read stored tensors into: those of a weight's name and shape are cut as it is."""
        weights = {name: weight for name, weight in self.modules.named_parameters() if is_cut(weight)}

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
        return flat

    def scalars(self) -> dict[str, int]:
        return {"step": self.step, "images_seen": self.images_seen, "skips_in_a_row": self.skips_in_a_row}

    def load(self, tensors: Mapping[str, Tensor], scalars: Mapping[str, Any]) -> None:
        groups: dict[str, dict[str, Tensor]] = {"modules": {}, "optimizer": {}, "ema": {}}
        for name, tensor in tensors.items():
            room, _, rest = name.partition("/")
            groups.setdefault(room, {})[rest] = tensor
        _same_names("the state", groups, ("modules", "optimizer", "ema"))
        _same_names("modules", groups["modules"], self.modules.state_dict())
        _same_names("the weight average", groups["ema"], self.ema.tensors() if self.ema else ())
        _same_names("the counters", scalars, self.scalars())
        self._load_optimizer(groups["optimizer"])
        self.modules.load_state_dict(groups["modules"])
        if self.ema:
            for name, tensor in self.ema.tensors().items():
                tensor.copy_(groups["ema"][name])
        self.step, self.images_seen = int(scalars["step"]), int(scalars["images_seen"])
        self.skips_in_a_row = int(scalars["skips_in_a_row"])

    def _load_optimizer(self, stored: Mapping[str, Tensor]) -> None:
        slots: dict[str, dict[str, Tensor]] = {}
        for key, tensor in stored.items():
            name, _, slot = key.rpartition("/")
            slots.setdefault(name, {})[slot] = tensor
        names = self._parameter_names()
        if slots:  # before the first update there is none
            late = (LOSSES, "router.", ADVERSARY)  # what a schedule can leave without a gradient up to here
            idle = {name for name in names if name.startswith(late)} - set(slots)
            _same_names("the optimizer", slots, set(names) - idle)
            for group in self._parameter_names_by_group():
                held = [name for name in group if name in slots]
                for name in held:
                    _same_names(f"the optimizer's {name}", slots[name], slots[held[0]])
        fresh = self.optimizer.state_dict()
        fresh["state"] = {index: slots[name] for index, name in enumerate(names) if name in slots}
        self.optimizer.load_state_dict(fresh)

    def _parameter_names(self) -> list[str]:
        """Names of the parameters in the optimizer's order."""
        return [name for group in self._parameter_names_by_group() for name in group]

    def _parameter_names_by_group(self) -> list[list[str]]:
        name_of = {id(parameter): name for name, parameter in self.modules.named_parameters()}
        return [[name_of[id(one)] for one in group["params"]] for group in self.optimizer.param_groups]


def new_state(parts: Parts) -> TrainState:
    storage = Storage(parts.plan.precision.rounding, parts.plan.seed, parts.layout.piece)
    plan, named = parts.plan, dict(parts.modules.named_parameters())
    apart_lr = {TUNED: plan.tuning.lr, ADVERSARY: plan.tuning.adversarial.lr} if plan.tuning else None
    optimizer = build_optimizer(plan.optimizer, named, storage, parts.layout, apart_lr)
    for group in optimizer.param_groups:
        group["base_lr"] = group["lr"]
    ema = plan.ema.build(untuned(named)) if plan.ema else None
    return TrainState(parts.modules, optimizer, ema)


def build_optimizer(
    settings: OptimizerPart,
    named: Mapping[str, nn.Parameter],
    storage: Storage,
    layout: Layout,
    apart_lr: Mapping[str, float] | None = None,
) -> torch.optim.Optimizer:
    """The plan's optimizer. A tokenizer that is trained and its discriminator have groups of their own, the last ones,
    which AdamW moves; `apart_lr` has their learning rates."""
    optimizer = settings.build(untuned(named).items(), storage, layout)
    for prefix in APART:
        if own := [parameter for name, parameter in named.items() if name.startswith(prefix)]:
            optimizer.add_param_group({"params": own, "lr": apart_lr[prefix] if apart_lr else 0.0})
    return optimizer


def untuned(named: Mapping[str, nn.Parameter]) -> dict[str, nn.Parameter]:
    """All parameters but those of a tokenizer that is trained, and of its discriminator."""
    return {name: parameter for name, parameter in named.items() if not name.startswith(APART)}


def _same_names(what: str, found: Iterable[str], expected: Iterable[str]) -> None:
    found, expected = set(found), set(expected)
    if found != expected:
        missing, unknown = sorted(expected - found), sorted(found - expected)
        raise StateMismatchError(f"{what}: missing {missing[:3] or 'nothing'}, unknown {unknown[:3] or 'nothing'}")
