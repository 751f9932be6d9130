"""Measure how much of each step reaches the stored weights, moments and averages.

The audit repeats the optimizer's step in float64; a number that moves only in float64 was rounded away.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from tintype.audit.seen import Group, Seen, Updates, room_of
from tintype.optim.part import OptimizerPart
from tintype.optim.storage import COMPENSATION, EXACT
from tintype.runtime.layout import Layout, local
from tintype.train.state import TrainState, build_optimizer

_COUNT = "step"
"""Optimizer slot that counts steps. All other slots are moments or rounding errors."""


def group_of(seen: Seen, name: str, tensor: Tensor) -> Group:
    """Return the group of a tensor; matrices, biases and gains of norms lose different shares of updates."""
    kind = "matrices" if tensor.ndim > 1 else "biases" if name.endswith("bias") else "gains"
    return seen.group(room_of(name), kind)


class UpdateWatch:
    """Observe each optimizer step, and the update of the averages after it."""

    def __init__(self, settings: OptimizerPart, state: TrainState, seen: Seen, layout: Layout) -> None:
        self._settings, self._state, self._seen, self._layout = settings, state, seen, layout
        self._named = dict(state.modules.named_parameters())
        self._shadow: _Shadow | None = None

    @contextmanager
    def watching(self) -> Iterator[None]:
        optimizer = self._state.optimizer
        before = optimizer.register_step_pre_hook(lambda *_: self._before())
        with before, optimizer.register_step_post_hook(lambda *_: self._after()):
            yield

    @torch.no_grad()
    def _before(self) -> None:
        for name, parameter in self._named.items():
            if parameter.grad is not None:
                group_of(self._seen, name, parameter).saw("gradients", parameter.grad)
        self._shadow = _Shadow(self._settings, self._named, self._state.optimizer, self._layout)

    @torch.no_grad()
    def _after(self) -> None:
        shadow, self._shadow = self._shadow, None
        assert shadow is not None
        shadow.optimizer.step()
        for name, parameter in self._named.items():
            if parameter.grad is None:
                continue
            group, slots = group_of(self._seen, name, parameter), self._state.optimizer.state[parameter]
            start, wanted = shadow.starts[name], shadow.weight(name)
            asked = local(parameter.grad).double().abs() > self._settings.smallest_gradient
            gone = _as_computed(parameter, slots) - start
            count_updates(group.updates, local(parameter).dtype, start, wanted - start, gone, asked)
            group.updates.compensated |= COMPENSATION in slots
            for slot, before in shadow.moments[name].items():
                if before.shape != start.shape:  # one number for a whole row
                    continue
                exact = shadow.slot(name, slot) != before
                group.moments.add(exact & asked, exact & asked & (local(slots[slot]) == before))

    def averages(self) -> dict[str, Tensor]:
        """Return a copy of the averages before an update."""
        return {name: local(tensor).clone() for name, tensor in averages_of(self._state).items()}

    def count_averages(self, before: Mapping[str, Tensor]) -> None:
        """Compare the averages after an update with the averages before it and with their weights."""
        for name, average in averages_of(self._state).items():
            weight = self._named[parameter_name(name)]
            apart = before[name].double() != local(weight).double()
            stayed = local(average) == before[name]
            group_of(self._seen, parameter_name(name), weight).averages.add(apart, apart & stayed)


def averages_of(state: TrainState) -> dict[str, Tensor]:
    """Return those tensors of a weight average that average a parameter."""
    names = {name for name, _ in state.modules.named_parameters()}
    stored = state.ema.tensors() if state.ema else {}
    return {name: tensor for name, tensor in stored.items() if parameter_name(name) in names}


def parameter_name(name: str) -> str:
    """Return the parameter's name without the length of its average, which is `0.05` in `0.05/denoiser…`."""
    return name.rpartition("/")[2]


class _Shadow:
    """The same optimizer step from the same state, computed in float64."""

    def __init__(
        self,
        settings: OptimizerPart,
        named: Mapping[str, nn.Parameter],
        optimizer: torch.optim.Optimizer,
        layout: Layout,
    ) -> None:
        state = {name: dict(optimizer.state.get(parameter, {})) for name, parameter in named.items()}
        self.starts = {name: _as_computed(parameter, state[name]) for name, parameter in named.items()}
        self._weights = {name: nn.Parameter(_opened(parameter, state[name])) for name, parameter in named.items()}
        self.moments = {name: _moments(state[name]) for name, parameter in named.items()}
        self.optimizer: Any = build_optimizer(settings, self._weights, EXACT, layout, {})
        for group, real in zip(self.optimizer.param_groups, optimizer.param_groups, strict=True):
            group["lr"] = real["lr"]
        for name, weight in self._weights.items():
            gradient = named[name].grad
            weight.grad = None if gradient is None else gradient.double()
            slots = {slot: value for slot, value in state[name].items() if slot != COMPENSATION}
            if slots:
                self.optimizer.state[weight] = {
                    slot: value.clone() if slot == _COUNT else value.double() for slot, value in slots.items()
                }
        for name in ("found_inf", "update_number"):  # what the update tells an optimizer before its step
            if name in vars(optimizer):
                setattr(self.optimizer, name, vars(optimizer)[name])

    def weight(self, name: str) -> Tensor:
        return local(self._weights[name].detach())

    def slot(self, name: str, slot: str) -> Tensor:
        return local(self.optimizer.state[self._weights[name]][slot])


def _opened(weight: Tensor, slots: Mapping[str, Tensor]) -> Tensor:
    """Return the weight that the optimizer uses, which is the stored weight plus its rounding error, in fp32."""
    weight = weight.detach()
    if COMPENSATION in slots:
        weight = weight.float() + slots[COMPENSATION].float()
    return weight.double()


def _as_computed(weight: Tensor, slots: Mapping[str, Tensor]) -> Tensor:
    return local(_opened(weight, slots)).clone()


def _moments(slots: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {slot: local(value).clone() for slot, value in slots.items() if slot not in (_COUNT, COMPENSATION)}


def count_updates(
    updates: Updates, dtype: torch.dtype, start: Tensor, wanted: Tensor, gone: Tensor, asked: Tensor
) -> None:
    """Count lost updates. Tensors are float64, except the boolean `asked`, whether there is a gradient."""
    due = asked & (wanted != 0)
    updates.add(due, due & (gone == 0))
    small = due & ((start + wanted).to(dtype).double() == start)
    last_place = torch.finfo(dtype).eps * torch.exp2(torch.frexp(start).exponent.double() - 1)
    updates.small_wanted += float((wanted.abs() / last_place)[small].sum())
    updates.small_gone += float((gone * wanted.sign() / last_place)[small].sum())
    updates.along += float((gone * wanted)[due].sum())
    updates.gone_squared += float(gone[due].square().sum())
    updates.wanted_squared += float(wanted[due].square().sum())
