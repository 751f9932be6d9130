"""The part of `Graphs` that needs no GPU; `tests/unit/model/test_on_gpu.py` captures and replays passes."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tintype.runtime.graphs import Graphs


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
