"""Observe a few real training steps from outside. This module sets and removes every hook of the audit.

Forward hooks record module inputs, after the hooks of FSDP. Between modules, torch's functions are intercepted to find
tables rounded on use, softmax in 16 bits, and the tensor on which backward is called.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import is_dataclass
from functools import lru_cache, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from tintype.audit.seen import NARROW, Bad, Input, Seen, room_of, type_name
from tintype.audit.updates import UpdateWatch, averages_of, group_of, parameter_name
from tintype.model.layers import sinusoid
from tintype.optim.storage import COMPENSATION
from tintype.runtime.clock import Clock
from tintype.runtime.layout import local
from tintype.settings import ModelSettings
from tintype.train.session import Session
from tintype.train.state import TrainState
from tintype.train.update import StepResult, update

_TIME, _WAVE = ("denoiser", "t_B"), ("denoiser.time_in", "x")
TIMES = {_TIME, _WAVE, ("denoiser.resolution_embedder", "like_B")}
"""Module arguments that are timesteps, or sinusoids of timesteps."""
ROTATION = "rotation"
"""Argument name of the RoPE table in the blocks and in their attention."""
_FOLLOWED = {"t_B": "timestep", "like_B": "timestep", ROTATION: "rope"}
"""Arguments that no operation may narrow. A timestep's sinusoid may be: autocast runs the layer that reads it."""
_SOFTMAX = {torch.softmax, torch.Tensor.softmax, nn.functional.softmax}
_RSQRT = {torch.rsqrt, torch.Tensor.rsqrt}
"""The last operation that computes a norm's statistics."""


def observe(parts: Session, state: TrainState, steps: int, on_step: Callable[[int], None] = lambda step: None) -> Seen:
    """Run the steps. If a wrong dtype raises an error, the steps end and the observations include the error."""
    plan = parts.plan
    seen = Seen(plan.precision, init_share=plan.ema.init_share(plan.train.steps) if plan.ema else 0.0)
    watch = UpdateWatch(plan.optimizer, state, seen, parts.layout)
    clock = Clock(parts.device)
    for name, parameter in state.modules.named_parameters():  # the groups, in the model's order
        group_of(seen, name, parameter).elements += local(parameter).numel()
    with _watching_modules(parts, seen) as calls, watch.watching(), _watching_gradients(state, seen):
        for step in range(steps):
            on_step(step)
            calls.backward_from = 0.0
            try:
                before = watch.averages()
                with calls:
                    result = update(parts, state, clock)
            except (TypeError, RuntimeError) as error:  # the model refuses a type: the findings say which
                seen.error = error
                break
            seen.steps += 1
            if not result.skipped and plan.ema and plan.ema.update_due(result.step):
                watch.count_averages(before)
            seen.skipped_steps += result.skipped
            _note_loss_scale(parts, result, calls.backward_from, seen)
            seen.tf32 |= _tf32(parts.device)
    _note_stored(state, seen)
    return seen


def _note_stored(state: TrainState, seen: Seen) -> None:
    """Record dtypes and values of all tensors that persist between steps."""
    for name, parameter in state.modules.named_parameters():
        group = group_of(seen, name, parameter)
        group.stores("weights", parameter)
        for slot, value in state.optimizer.state.get(parameter, {}).items():
            if slot not in ("step", COMPENSATION):
                group.stores("moments", value)
    for name, buffer in state.modules.named_buffers():
        if buffer.is_floating_point():
            group = seen.group(room_of(name), "buffers")
            group.elements += local(buffer).numel()
            group.stores("buffers", buffer)
    parameters = dict(state.modules.named_parameters())
    for name, average in averages_of(state).items():
        group_of(seen, parameter_name(name), parameters[parameter_name(name)]).stores("averages", average)


@contextmanager
def _watching_gradients(state: TrainState, seen: Seen) -> Iterator[None]:
    """Record gradients between backward and clipping, which would spread a non-finite value over all gradients."""

    def check(name: str, parameter: Tensor) -> None:
        if parameter.grad is not None:
            group_of(seen, name, parameter).check("gradients", parameter.grad)

    with ExitStack() as stack:
        for name, parameter in state.modules.named_parameters():
            if parameter.requires_grad:
                stack.enter_context(parameter.register_post_accumulate_grad_hook(partial(check, name)))
        yield


@contextmanager
def _watching_modules(parts: Session, seen: Seen) -> Iterator[_Calls]:
    calls = _Calls(seen)
    with ExitStack() as stack:
        for path, module in parts.modules.named_modules():
            if path:
                watcher = _arrival(path, seen, calls, parts.plan.model)
                stack.enter_context(module.register_forward_pre_hook(watcher, with_kwargs=True))
        leave = parts.modules["denoiser"].register_forward_hook(lambda *_: calls.leave(), always_call=True)
        with leave:
            yield calls


def _arrival(
    path: str, seen: Seen, calls: _Calls, settings: ModelSettings
) -> Callable[[nn.Module, tuple[object, ...], dict[str, object]], None]:
    """Record the floating-point tensors among a module's arguments. The method is a forward hook."""

    @torch.no_grad()
    def arrives(module: nn.Module, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        calls.path = path
        bound = _signature(type(module).forward).bind_partial(module, *args, **kwargs).arguments
        for argument, value in list(bound.items())[1:]:
            for tensor in _tensors(value):
                found = seen.input(path, argument)
                found.types.add(type_name(tensor.dtype))
                found.bad.add(tensor)
                if (path, argument) in TIMES or argument == ROTATION:
                    _note_rounding(found, tensor)
                if argument in _FOLLOWED:
                    calls.follow(tensor, _FOLLOWED[argument])
                if (path, argument) == _TIME:
                    calls.t_B = tensor
                if (path, argument) == _WAVE and calls.t_B is not None:
                    found.off = max(found.off, _wave_error(tensor, calls.t_B, settings))

    return arrives


_signature = lru_cache(maxsize=256)(inspect.signature)


def _tensors(value: object) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        if value.is_floating_point():
            yield value
    elif is_dataclass(value) or isinstance(value, Mapping):
        yield from _tensors(list((value if isinstance(value, Mapping) else vars(value)).values()))
    elif isinstance(value, tuple | list):
        for inner in value:
            yield from _tensors(inner)


def _note_rounding(found: Input, tensor: Tensor) -> None:
    value = local(tensor.detach()).double()
    telling = (value != 0) & (value.abs() != 1) & value.isfinite()
    found.telling += int(telling.sum())
    found.telling_in_bf16 += int((telling & (value.bfloat16().double() == value)).sum())


def _wave_error(wave_BF: Tensor, t_B: Tensor, settings: ModelSettings) -> float:
    """Return the error of a sinusoid, compared with the exact one of the timesteps, which may be rounded."""
    exact = sinusoid(t_B.double(), wave_BF.shape[1], settings.time_max_period, settings.time_factor)
    return float((wave_BF.double() - exact).abs().max())


class _Calls(TorchFunctionMode):
    """Intercept torch's functions during the steps, to record those that round values meant for fp32."""

    def __init__(self, seen: Seen) -> None:
        super().__init__()
        self.backward_from = 0.0
        """Sum of all numbers on which backward was called."""
        self.t_B: Tensor | None = None
        """Timesteps of the denoiser's current pass."""
        self._seen = seen
        self.path = ""
        """The module within the denoiser that was entered last."""
        self._followed: dict[int, tuple[Tensor, str]] = {}

    def leave(self) -> None:
        """Record the end of the denoiser's pass."""
        self.path, self.t_B = "", None
        self._followed.clear()

    def follow(self, tensor: Tensor, what: str) -> None:
        """From now on, record each operation that reads this tensor and returns a narrow dtype."""
        if type_name(tensor.dtype) not in NARROW:
            self._followed[local(tensor).untyped_storage().data_ptr()] = (tensor, what)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.Tensor.backward:
            self._note_backward(*args, **kwargs)
        elif func is torch._scaled_mm:
            for operand in args[:2]:
                self._seen.operands.setdefault(room_of(self.path), Bad()).add(operand)
        out = func(*args, **kwargs)
        if self.path.startswith("denoiser") and isinstance(out, Tensor) and type_name(out.dtype) in NARROW:
            self._note_narrow(func, args)
        return out

    def _note_backward(self, root: Tensor, gradient: Tensor | None = None, *_: object, **__: object) -> None:
        started = root.detach() if gradient is None else root.detach() * gradient
        self.backward_from += float(local(started).double().sum())

    def _note_narrow(self, func: Any, args: Any) -> None:
        if func in _SOFTMAX:
            self._note("softmax")
        elif func in _RSQRT:
            self._note("norms")
        for tensor in args if self._followed else ():
            if isinstance(tensor, Tensor) and type_name(tensor.dtype) not in NARROW:
                followed = self._followed.get(local(tensor).untyped_storage().data_ptr())
                if followed is not None:
                    self._note(followed[1])

    def _note(self, what: str) -> None:
        rooms = self._seen.rounded_inside.setdefault(what, [])
        if room_of(self.path) not in rooms:
            rooms.append(room_of(self.path))


def _note_loss_scale(parts: Session, result: StepResult, backward_from: float, seen: Seen) -> None:
    """Record the loss scale: the number on which backward was called, divided by the reported loss."""
    weights = {term.name: term.settings.weight_at(result.step - 1) for term in parts.terms_at(result.step - 1)}
    loss = float(result.losses["flow"]) + sum(w * float(result.losses[name]) for name, w in weights.items())
    if math.isfinite(loss) and loss and math.isfinite(backward_from):
        seen.loss_scales.append(backward_from / loss)


def _tf32(device: torch.device) -> bool:
    """Return whether fp32 matrix products and convolutions are computed with fewer bits internally (TF32)."""
    convolutions = device.type == "cuda" and torch.backends.cudnn.allow_tf32
    return torch.get_float32_matmul_precision() != "highest" or convolutions
