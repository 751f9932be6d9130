"""AdamW with torch's fused kernels. The defaults are PRX's."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.optim.adamw import adamw as fused_adamw
from torch.utils._triton import has_triton

from tintype.optim.part import OptimizerPart
from tintype.optim.storage import EXACT, Storage
from tintype.runtime.copies import Copy
from tintype.runtime.forms import Form, form_of
from tintype.runtime.gradients import portions
from tintype.runtime.layout import ONE, Layout, is_sharded, local
from tintype.seams import AverageUpdate

if TYPE_CHECKING:
    from tintype.optim.adamw_kernel import Chunks, Moved

_CHUNK_NUMBERS = 1 << 26
"""Number of weights that are converted to fp32 in one chunk."""


class AdamWSettings(OptimizerPart):
    kind: Literal["adamw"] = "adamw"
    lr: float = Field(1e-4, gt=0, description="Learning rate after the warm-up")
    beta1: float = Field(0.9, ge=0, lt=1, description="Decay of the running mean of the gradients")
    beta2: float = Field(0.95, ge=0, lt=1, description="Decay of the running mean of the squared gradients")
    eps: float = Field(
        1e-15,
        gt=0,
        description="Number added to the root of the running mean of squared gradients before dividing by it",
    )
    weight_decay: float = Field(0.0, ge=0, description="Decoupled")

    @property
    def smallest_gradient(self) -> float:
        return self.eps

    def build(
        self, named: Iterable[tuple[str, torch.nn.Parameter]], storage: Storage = EXACT, layout: Layout = ONE
    ) -> torch.optim.Optimizer:
        return AdamW(self, [parameter for _, parameter in named], storage)


class AdamW(torch.optim.Optimizer):
    """AdamW. Moments have the dtype and the sharding of their weights. If `found_inf` is 1, a step changes nothing.

    Every number is updated independently, so a rank updates its shards without communication.
    """

    found_inf: Tensor | None = None
    update_number: int = 0
    gradient_factor: Tensor | None = None
    """Scalar by which `step` multiplies the gradients if `clips` is set. Clipping then needs no separate pass."""
    averaging: AverageUpdate | None = None
    """An update of the weight averages. If possible, `step` computes it in the same pass as the weights."""
    copies: Sequence[Copy] = ()
    """Cast copies of weights. `step` updates those that its kernel supports, and leaves the others outdated."""

    def __init__(self, settings: AdamWSettings, parameters: Sequence[torch.nn.Parameter], storage: Storage) -> None:
        super().__init__(parameters, {"lr": settings.lr, "fused": True})  # by which torch loads step counts right
        self.settings, self.storage = settings, storage
        self.clips = all(_fits_kernel(parameter) for parameter in parameters)
        self._chunks: dict[int, Chunks] = {}

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        for index, group in enumerate(self.param_groups):
            if self.clips and self.gradient_factor is not None and self.found_inf is not None:
                self._step_in_one_pass(index, group["params"], group["lr"])
            else:
                step_adamw(self, self.settings, group["params"], group["lr"], self.storage)

    def _step_in_one_pass(self, group: int, parameters: Sequence[Tensor], lr: float) -> None:
        from tintype.optim import adamw_kernel

        moving = [parameter for parameter in parameters if parameter.grad is not None]
        if not moving:
            return
        if group not in self._chunks or self._chunks[group].shapes != [parameter.shape for parameter in moving]:
            self._chunks[group] = adamw_kernel.Chunks(moving)
        assert self.gradient_factor is not None and self.found_inf is not None
        copies = {id(copy.weight): copy for copy in self.copies if adamw_kernel.takes(copy)}
        adamw_kernel.step(
            self._chunks[group],
            [self._moved(parameter, copies.get(id(parameter))) for parameter in moving],
            self.averaging.shares if self.averaging else (),
            self.gradient_factor,
            self.found_inf,
            lr=lr,
            beta1=self.settings.beta1,
            beta2=self.settings.beta2,
            eps=self.settings.eps,
            weight_decay=self.settings.weight_decay,
        )

    def _moved(self, parameter: Tensor, copy: Copy | None) -> Moved:
        from tintype.optim.adamw_kernel import Moved, is_aligned

        state, gradient = _state(self, parameter), parameter.grad
        assert gradient is not None
        if not is_aligned(gradient):  # autograd may give a part of another tensor
            gradient = gradient.clone(memory_format=torch.contiguous_format)
        averages = self.averaging.take(parameter) if self.averaging else []
        mean, square = (state[slot] for slot in _MOMENTS)
        return Moved(parameter, gradient, mean, square, state["step"], copy, averages)

    def slots(self, parameter: Tensor) -> dict[str, Form]:
        return adamw_slots(parameter, self.storage)


def _fits_kernel(parameter: Tensor) -> bool:
    """Return whether the kernel that updates weights in one pass supports a parameter."""
    whole = not is_sharded(parameter) and parameter.dtype == torch.float32 and parameter.is_contiguous()
    return whole and runs_kernels(parameter.device)


def runs_kernels(device: torch.device) -> bool:
    return device.type == "cuda" and torch.version.cuda is not None and has_triton()


def step_adamw(
    optimizer: Any, settings: AdamWSettings, parameters: Sequence[Tensor], lr: float, storage: Storage
) -> None:
    moving = [parameter for parameter in parameters if parameter.grad is not None]
    for device, cut in dict.fromkeys((parameter.device, is_sharded(parameter)) for parameter in moving):
        generator = storage.generator(device, optimizer.update_number, cut)
        here = [parameter for parameter in moving if (parameter.device, is_sharded(parameter)) == (device, cut)]
        exact = storage.rounding == "nearest"
        for chunk in [here] if exact else portions(here, lambda one: local(one).numel(), _CHUNK_NUMBERS):
            _step_chunk(optimizer, settings, chunk, lr, storage, generator)


def _step_chunk(
    optimizer: Any,
    settings: AdamWSettings,
    parameters: Sequence[Tensor],
    lr: float,
    storage: Storage,
    generator: torch.Generator | None,
) -> None:
    states = [_state(optimizer, parameter) for parameter in parameters]
    exact = storage.rounding == "nearest"  # then torch's kernel reads, computes in fp32 and rounds by itself
    weights = [local(parameter) for parameter in parameters] if exact else storage.open(parameters, states)
    stored = {slot: [local(state[slot]) for state in states] for slot in _MOMENTS}
    opened = stored if exact else {slot: [moment.float() for moment in stored[slot]] for slot in _MOMENTS}
    gradients = [local(p.grad) if exact else local(p.grad).float() for p in parameters if p.grad is not None]
    fused_adamw(
        weights,
        gradients,
        opened["exp_avg"],
        opened["exp_avg_sq"],
        [],
        [state["step"] for state in states],
        fused=True,
        found_inf=optimizer.found_inf,
        amsgrad=False,
        beta1=settings.beta1,
        beta2=settings.beta2,
        lr=lr,
        weight_decay=settings.weight_decay,
        eps=settings.eps,
        maximize=False,
    )
    if exact:
        torch.autograd.graph.increment_version(weights)  # torch's kernel does not, and copies would look fresh
        return
    for slot in _MOMENTS:
        torch._foreach_copy_(stored[slot], opened[slot])
    storage.close(parameters, weights, states, generator, optimizer.found_inf)


_MOMENTS = ("exp_avg", "exp_avg_sq")


def adamw_slots(parameter: Tensor, storage: Storage) -> dict[str, Form]:
    """Return the shapes and dtypes of the state that `step_adamw` keeps for a parameter."""
    moments = {slot: form_of(parameter) for slot in _MOMENTS}
    return {"step": Form(torch.Size(()), torch.float32), **moments, **storage.slots(parameter)}


def _state(optimizer: Any, parameter: Tensor) -> dict[str, Tensor]:
    state: dict[str, Tensor] = optimizer.state[parameter]
    if not state:
        state["step"] = torch.zeros((), dtype=torch.float32, device=parameter.device)
        state |= {slot: torch.zeros_like(parameter) for slot in _MOMENTS}
    return state
