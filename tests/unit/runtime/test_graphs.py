"""`Graphs` with operations recorded on the CPU in place of CUDA's; `tests/unit/model/test_on_gpu.py` has real ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tintype.runtime import graphs as graphs_module
from tintype.runtime.graphs import Graphs


class Recorded(TorchDispatchMode):
    """Operations that run again on the tensors that they were recorded with, and write where they wrote."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[tuple[Any, Any, Any, Any]] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = function(*args, **(kwargs or {}))
        self.calls.append((function, args, kwargs or {}, found))
        return found

    @torch.no_grad()
    def replay(self) -> None:
        for function, args, kwargs, found in self.calls:
            again = function(*args, **kwargs)
            for place, value in zip(tree_leaves(found), tree_leaves(again), strict=True):
                if isinstance(place, Tensor) and place.data_ptr() != value.data_ptr():
                    place.copy_(value)


@pytest.fixture
def on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def capture(graph: Recorded, **_: object) -> Iterator[None]:
        with graph:
            yield

    monkeypatch.setattr(torch.cuda, "CUDAGraph", Recorded)
    monkeypatch.setattr(torch.cuda, "graph", capture)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: (0, 0))
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(graphs_module, "memory_bytes", lambda device: 1 << 20)


def layer(inputs: Sequence[Tensor], parameters: Mapping[str, nn.Parameter]) -> tuple[Tensor, ...]:
    return ((inputs[0] @ parameters["weight"]).sin(),)


def numbers(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.usefixtures("on_the_cpu")
def test_replayed_passes_read_new_inputs_and_weights_and_add_up_micro_batches() -> None:
    """The first call of each shape has no graph, the second captures one; all have the gradients of plain autograd."""
    graphs, replayed = Graphs(), 0
    own, plain = (nn.Parameter(numbers(0, 4, 4)) for _ in range(2))
    for step in range(4):
        for weight in (own, plain):
            weight.grad = None
        for micro, rows in enumerate((3, 3, 5, 3)):
            x = numbers(10 * step + micro, rows, 4)
            found = graphs("layer", layer, [x], {"weight": own})
            replayed += found is not None
            (found or layer([x], {"weight": own}))[0].square().sum().backward()
            layer([x], {"weight": plain})[0].square().sum().backward()
        assert own.grad is not None and plain.grad is not None and torch.equal(own.grad, plain.grad), step
        with torch.no_grad():
            own.sub_(0.1 * own.grad)
            plain.sub_(0.1 * plain.grad)
    assert replayed == 4 * 4 - 2


@pytest.mark.usefixtures("on_the_cpu")
def test_a_pass_runs_without_a_graph_while_another_waits_for_its_backward_pass() -> None:
    graphs, parameters, x = Graphs(), {"weight": nn.Parameter(numbers(0, 4, 4))}, numbers(1, 3, 4)
    assert graphs("layer", layer, [x], parameters) is None
    waiting = graphs("layer", layer, [x], parameters)
    assert waiting is not None and graphs("layer", layer, [x], parameters) is None
    waiting[0].sum().backward()
    assert graphs("layer", layer, [x], parameters) is not None


@pytest.mark.usefixtures("on_the_cpu")
def test_gradients_of_graphs_take_no_more_than_their_share_of_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each graph has a place for every gradient. Images of many shapes would fill the memory with them."""
    parameters = {"weight": nn.Parameter(numbers(0, 4, 4))}
    monkeypatch.setattr(graphs_module, "memory_bytes", lambda device: 8 * 2 * parameters["weight"].nbytes)
    graphs = Graphs()

    def replays(rows: int) -> bool:
        return [graphs("layer", layer, [numbers(1, rows, 4)], parameters) is not None for _ in range(2)][-1]

    assert [replays(rows) for rows in (1, 2, 3, 1)] == [True, True, False, True]
    with torch.no_grad():
        assert replays(3), "a pass without gradients needs no place for them"


class Watched(torch.autograd.Function):
    """Notes whether its backward pass runs under autocast."""

    seen: ClassVar[list[bool]] = []

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        Watched.seen.append(torch.is_autocast_enabled("cuda"))
        return gradient


@pytest.mark.usefixtures("on_the_cpu")
def test_the_backward_pass_is_captured_outside_of_autocast_where_training_runs_it() -> None:
    """Under autocast a layer that is kept in fp32 gets gradients of bf16, and a resumed run other bits: its first pass
    has no graph."""

    def watched(inputs: Sequence[Tensor], parameters: Mapping[str, nn.Parameter]) -> tuple[Tensor, ...]:
        assert torch.is_autocast_enabled("cuda")
        return (Watched.apply(inputs[0] * parameters["weight"]),)  # type: ignore[no-untyped-call]

    Watched.seen.clear()
    graphs, parameters = Graphs(), {"weight": nn.Parameter(torch.ones(3))}
    torch.set_autocast_enabled("cuda", True)
    try:
        for _ in range(2):
            found = graphs("watched", watched, [torch.ones(3)], parameters)
    finally:
        torch.set_autocast_enabled("cuda", False)
    assert found is not None and Watched.seen == [False]


def parameter(gradient: Tensor) -> nn.Parameter:
    found = nn.Parameter(torch.zeros(3))
    found.grad = gradient
    return found


def test_gradients_that_a_graph_wrote_are_moved_before_the_next_pass_and_others_stay() -> None:
    """The next pass writes to the graph's memory; without the move it would overwrite the first micro-batch."""
    written, own = torch.ones(3), torch.ones(3)
    graphs, first, second = Graphs(), parameter(written), parameter(own)
    graphs._gradients = {written.data_ptr()}
    graphs._save_gradients({"first": first, "second": second, "none": nn.Parameter(torch.zeros(3))})
    written.fill_(7)
    own.fill_(7)
    assert first.grad is not None and torch.equal(first.grad, torch.ones(3))
    assert second.grad is not None and torch.equal(second.grad, torch.full((3,), 7.0))
