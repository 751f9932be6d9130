"""Copy between the host and a GPU without blocking the host."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import torch
from torch import Tensor

_MOST_AHEAD_BYTES = 256 << 20


def send(tensor: Tensor, device: torch.device) -> Tensor:
    """Return the tensor on the device. From pinned memory, the copy is queued on the GPU without blocking the host."""
    if device.type != "cuda" or tensor.device.type != "cpu":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


class PendingNumbers:
    """Values of a small tensor on their way to the host. Reading waits only for the step that computed them."""

    def __init__(self, value: Tensor) -> None:
        self._event: torch.cuda.Event | None = None
        self._value = value.detach()
        if value.device.type == "cuda":
            self._value = torch.empty(value.shape, dtype=value.dtype, pin_memory=True)
            self._value.copy_(value.detach(), non_blocking=True)
            self._event = torch.cuda.Event()
            self._event.record()

    def numbers(self) -> list[float]:
        if self._event is not None:
            self._event.synchronize()
        found: list[float] = self._value.tolist()
        return found


@dataclass
class _UnderWay:
    out_B: Tensor
    reading: Future[bool]
    """Future that is True if all rows were present."""
    sent_B: Tensor | None = None
    event: torch.cuda.Event | None = None


class ReadAhead:
    """Prefetch batches of rows in a thread, and copy them to the device while earlier steps compute.

    A batch is identified by its ids. The row of an id never changes, so a prefetched batch always equals the requested
    batch. The thread only copies on the host. The training thread starts all GPU work, so that nothing interferes with
    the capture of a CUDA graph.
    """

    def __init__(
        self,
        read_into: Callable[[Sequence[int], Tensor], bool],
        row_shape: Sequence[int],
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        """Start the thread. `read_into` copies the rows of ids into a tensor; it returns False if rows are missing."""
        self._read_into, self._row_shape, self._dtype, self._device = read_into, tuple(row_shape), dtype, device
        self._on_gpu = device.type == "cuda"
        self._stream = torch.cuda.Stream(device) if self._on_gpu else None
        self._pool = ThreadPoolExecutor(1, "rows")
        self._begun: dict[tuple[int, ...], _UnderWay] = {}

    def expect(self, ids: Sequence[int]) -> None:
        """Begin to prefetch a batch. Call this method in the order in which the batches are taken.

        Do nothing if the batches that are being read take too much memory, but always prefetch one batch.
        """
        if tuple(ids) in self._begun:
            return
        if self._begun and sum(one.out_B.nbytes for one in self._begun.values()) > _MOST_AHEAD_BYTES:
            return
        shape = (len(ids), *self._row_shape)
        out_B = torch.empty(shape, dtype=self._dtype, pin_memory=self._on_gpu)
        self._begun[tuple(ids)] = _UnderWay(out_B, self._pool.submit(self._read_into, list(ids), out_B))

    def take(self, ids: Sequence[int]) -> Tensor | None:
        """Return a batch on the device; None if the batch was not expected or rows are missing.

        Batches that were expected before this batch are dropped.
        """
        wanted = tuple(ids)
        if wanted not in self._begun:
            return None
        while (earlier := next(iter(self._begun))) != wanted:
            self._begun.pop(earlier).reading.cancel()
        one = self._begun.pop(wanted)
        there = one.reading.result()
        if there:
            self._send(one)
        upcoming = next(iter(self._begun.values()), None)
        if upcoming is not None and upcoming.reading.done() and upcoming.reading.result():
            self._send(upcoming)  # the copy runs while the GPU computes the next step
        if not there or one.sent_B is None:
            return None
        if one.event is not None:
            current = torch.cuda.current_stream(self._device)
            current.wait_event(one.event)
            one.sent_B.record_stream(current)
        return one.sent_B

    def _send(self, one: _UnderWay) -> None:
        """Start the copy to the device on a separate stream, unless it has already started."""
        if one.sent_B is not None:
            return
        if self._stream is None:
            one.sent_B = one.out_B
            return
        with torch.cuda.stream(self._stream):
            one.sent_B = one.out_B.to(self._device, non_blocking=True)
            one.event = torch.cuda.Event()
            one.event.record(self._stream)
