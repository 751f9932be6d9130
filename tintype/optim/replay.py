"""Record GPU work once as a CUDA graph, then replay it. The host then starts the work with one call.

A small model's optimizer has hundreds of kernels of a few microseconds. The host can take longer to start them than the
GPU to run them. A graph reads and writes fixed addresses, so inputs that change between steps are copied there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

Work = Callable[[list[Tensor]], None]
"""Function that gets the inputs and changes other tensors in place."""


class Replay:
    """Calls `work` with the inputs. From the second call on, a graph is replayed.

    The first call does warm-up work that must not be recorded. `anchors` are the tensors that the work changes. The
    graph is recorded again if an anchor has moved (such as after loading a checkpoint), or if the form of an input
    changes.
    """

    def __init__(self, work: Work, anchors: Callable[[], Sequence[Tensor]]) -> None:
        self._work, self._anchors = work, anchors
        self._key: object = None
        self._graph: torch.cuda.CUDAGraph | None = None
        self._inputs: list[Tensor] = []

    def __call__(self, inputs: Sequence[Tensor]) -> None:
        key = self._key_of(inputs)
        if key != self._key:
            self._key, self._graph = key, None
            self._work(list(inputs))
            self._key = self._key_of(inputs)  # the work may make what it changes when it is first called
            return
        if self._graph is None:
            self._inputs = [torch.empty_like(one) for one in inputs]
            self._graph = self._recorded()
        self._copy(inputs)
        self._graph.replay()
        torch.autograd.graph.increment_version(self._anchors())  # a graph does not: copies of weights would look fresh

    def _copy(self, inputs: Sequence[Tensor]) -> None:
        """Copy all tensors of one dtype with a single kernel."""
        for dtype in {one.dtype for one in inputs}:
            pairs = [(kept, one) for kept, one in zip(self._inputs, inputs, strict=True) if one.dtype == dtype]
            torch._foreach_copy_([kept for kept, _ in pairs], [one for _, one in pairs])

    def _key_of(self, inputs: Sequence[Tensor]) -> object:
        forms = tuple((one.shape, one.dtype) for one in inputs)
        return forms, tuple(one.data_ptr() for one in self._anchors())

    def _recorded(self) -> torch.cuda.CUDAGraph:
        graph = torch.cuda.CUDAGraph()
        # Other threads fetch data meanwhile, which is none of this recording's business.
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            self._work(self._inputs)
        return graph
