"""Run passes of a network as CUDA graphs.

A graph needs one launch instead of hundreds, so small models do not wait for the host. The first call with inputs of
certain shapes compiles kernels. The second call with the same shapes captures the pass. All graphs of a network share
their memory, so only one pass can be in progress. If a forward pass is called before the backward pass of the previous
one, it runs without a graph. Gradients are not shared between graphs. Once the gradients of all graphs take too much
memory, inputs of new shapes run without a graph.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

Parameters = Mapping[str, nn.Parameter]
Pass = Callable[[Sequence[Tensor], Parameters], tuple[Tensor, ...]]
"""Function from inputs and parameters to outputs. All other tensors that it reads must keep their addresses."""

MOST_GRADIENT_SHARE = 1 / 8
"""Maximum share of the device's memory for gradients of a network's graphs."""


class _Token:
    """An object that exists while a forward pass waits for its backward pass."""


class Graphs:
    """Captured passes. The key contains everything that is not a tensor."""

    def __init__(self) -> None:
        self._met = set[Hashable]()
        self._captured: dict[Hashable, _Captured] = {}
        self._gradients = set[int]()
        self._gradient_bytes = 0
        self._waiting: Callable[[], _Token | None] = lambda: None

    def __call__(
        self, key: Hashable, function: Pass, inputs: Sequence[Tensor], parameters: Parameters
    ) -> tuple[Tensor, ...] | None:
        """Return the outputs of a pass; None if the pass must run without a graph."""
        grad = torch.is_grad_enabled()
        mode = (grad, torch.is_autocast_enabled("cuda"))
        key = (key, *mode, *((one.shape, one.dtype, one.requires_grad) for one in inputs))
        if key not in self._met or self._waiting() is not None or torch.cuda.is_current_stream_capturing():
            self._met.add(key)
            return None
        if key not in self._captured:
            if not self._captured:  # free the cache: the graphs allocate the pass's memory a second time
                torch.cuda.empty_cache()
            needed = sum(one.nbytes for one in parameters.values()) if grad else 0
            if self._gradient_bytes + needed > MOST_GRADIENT_SHARE * memory_bytes(inputs[0].device):
                return None
            self._gradient_bytes += needed
            memory = next(iter(self._captured.values())).memory if self._captured else torch.cuda.graph_pool_handle()
            self._captured[key] = _Captured(function, inputs, parameters, memory, grad)
            self._gradients |= self._captured[key].gradients
        self._save_gradients(parameters)
        if not grad:
            return self._captured[key].forward(inputs)
        token = _Token()
        self._waiting = weakref.ref(token)
        tensors = (*inputs, *parameters.values())
        outputs: tuple[Tensor, ...] = _Replay.apply(self._captured[key], token, *tensors)  # type: ignore[no-untyped-call]
        return outputs

    def _save_gradients(self, parameters: Parameters) -> None:
        """Copy gradients out of a graph's memory before the next pass overwrites them, to sum over micro-batches."""
        for parameter in parameters.values():
            if parameter.grad is not None and parameter.grad.data_ptr() in self._gradients:
                parameter.grad = parameter.grad.clone()


@cache
def memory_bytes(device: torch.device) -> int:
    """Return the memory of the GPU in bytes; for a CPU, a number larger than any memory."""
    return torch.cuda.get_device_properties(device).total_memory if device.type == "cuda" else sys.maxsize


class _Captured:
    """The CUDA graph of a forward pass and, with `grad`, of its backward pass.

    The pass is captured with new parameters that share the memory of the given parameters. With the given parameters,
    the capture would wait for autograd's state of an earlier pass, and a capture must not wait.
    """

    def __init__(
        self, function: Pass, inputs: Sequence[Tensor], parameters: Parameters, memory: Any, grad: bool
    ) -> None:
        self.memory = memory
        self._inputs = [one.detach().clone().requires_grad_(one.requires_grad) for one in inputs]
        own = {name: nn.Parameter(one.detach(), one.requires_grad) for name, one in parameters.items()}
        self._forward, self._backward = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        with _capture(self._forward, memory):
            outputs = function(self._inputs, own)
        self._d_outputs = [torch.zeros_like(one) for one in outputs]
        self._gradients: tuple[Tensor | None, ...] = ()
        if grad and any(one.requires_grad for one in outputs):
            leaves = (*self._inputs, *own.values())
            wanted = [one for one in leaves if one.requires_grad]
            # Without autocast, as training runs backward. Autocast would round the products of fp32 layers to bf16.
            with torch.autocast("cuda", enabled=False), _capture(self._backward, memory):
                found = iter(torch.autograd.grad(outputs, wanted, self._d_outputs, allow_unused=True))
            self._gradients = tuple(next(found) if one.requires_grad else None for one in leaves)
        self._outputs = [one.detach() for one in outputs]

    def forward(self, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Return copies of the outputs, since the next pass overwrites them. The inputs are the first of `tensors`."""
        with torch.no_grad():
            torch._foreach_copy_(self._inputs, list(tensors[: len(self._inputs)]))
        self._forward.replay()
        return tuple(one.clone() for one in self._outputs)

    def backward(self, d_outputs: Sequence[Tensor]) -> tuple[Tensor | None, ...]:
        """Return the gradients of inputs and parameters. The next pass overwrites them."""
        torch._foreach_copy_(self._d_outputs, list(d_outputs))
        self._backward.replay()
        return tuple(one if one is None else one.detach() for one in self._gradients)

    @property
    def gradients(self) -> set[int]:
        return {one.data_ptr() for one in self._gradients if one is not None}


class _Replay(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, captured: _Captured, token: _Token, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.captured, ctx.token = captured, token
        return captured.forward(tensors)

    @staticmethod
    def backward(ctx: Any, *d_outputs: Tensor) -> tuple[Tensor | None, ...]:
        ctx.token = None
        return None, None, *ctx.captured.backward(d_outputs)


@contextmanager
def _capture(graph: torch.cuda.CUDAGraph, memory: Any) -> Iterator[None]:
    """Capture GPU work. Autocast's cache of casts is turned off, since cached casts would be missing in the graph."""
    cached = torch.is_autocast_cache_enabled()
    torch.clear_autocast_cache()
    torch.set_autocast_cache_enabled(False)
    try:
        with torch.cuda.graph(graph, pool=memory, capture_error_mode="thread_local"):
            yield
    finally:
        torch.set_autocast_cache_enabled(cached)
