"""Save in the foreground, or in a background thread while training continues.

A background save writes a copy of the tensors, since the next step changes the tensors themselves. The thread commits
in the same way as a foreground save (`checkpoint.commit`), so a kill leaves the same files. Only one step is saved at a
time, so the next save, a stop and the end of the run wait for the save in progress.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from pathlib import Path
from typing import Literal, Protocol

import torch
from torch import Tensor

from tintype.runtime import activity
from tintype.runtime.dist import ALONE, World
from tintype.runtime.fence import OPEN, Fence
from tintype.runtime.layout import is_sharded, local

SaveMode = Literal["auto", "wait", "background"]


class Commit(Protocol):
    """Function that writes tensors to their destination. Every rank must call this function."""

    def __call__(self, tensors: Mapping[str, Tensor], /, *, world: World, fence: Fence) -> object: ...


MOST_SHARE = 0.01
"""If saves take more than this fraction of the run's time, `auto` moves them to the background."""
_MOST_MEMORY = 0.5
"""Under `auto`, the copy for a background save may take this fraction of the available host memory."""


class Saver:
    """Writer of a run's saves, which it writes in order. Every rank must make the same calls."""

    def __init__(self, mode: SaveMode = "wait", world: World = ALONE, fence: Fence = OPEN) -> None:
        self.mode, self.world, self.fence = mode, world, fence
        self.in_background = mode == "background"
        self.stopped_s = 0.0
        """Seconds that training has waited for saves."""
        self._read_s = 0.0
        self._start_s = time.perf_counter()
        self._step = -1
        self._running: list[Future[None]] = []
        self._copies: dict[str, Tensor] = {}
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="save")  # which starts with the first save

    def __enter__(self) -> Saver:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Wait for the save in progress, and raise its error unless another error is already being raised."""
        try:
            if error is None:
                self.wait()
            else:
                wait_for(self._running)
        finally:
            self._thread.shutdown()

    def write(self, step: int, tensors: Mapping[str, Tensor], commit: Commit, *, now: bool = False) -> None:
        """Commit the tensors after all earlier saves; in the background, from a copy, unless `now` is true."""
        began = time.perf_counter()
        if step != self._step:
            self.wait()
            self._decide(tensors)
            self._step = step
        if self.in_background and not now:
            self._start(tensors, commit)
        else:
            self.wait()
            commit(tensors, world=self.world, fence=self.fence)
        self.stopped_s += time.perf_counter() - began

    def wait(self) -> None:
        """Wait until all saves are on disk. Raise the error of the first save that failed."""
        running, self._running = self._running, []
        with activity.waiting_for_writer():
            for save in running:
                save.result()

    def check(self) -> None:
        """Raise the error of a background save that has failed on any rank, without waiting for saves in progress."""
        if self._running and self.world.any(any(save.done() and save.exception() for save in self._running)):
            self.wait()

    def read(self) -> dict[str, float]:
        """Return the seconds that training has waited for saves since the last call, for the log."""
        seconds, self._read_s = self.stopped_s - self._read_s, self.stopped_s
        return {"saving_s": seconds} if seconds else {}

    def _decide(self, tensors: Mapping[str, Tensor]) -> None:
        """Under `auto`, switch to background saves if saves have taken too large a fraction of the time."""
        slow = self.stopped_s > MOST_SHARE * (time.perf_counter() - self._start_s)
        if self.mode == "auto" and not self.in_background and self.world.any(slow):
            self.in_background = not self.world.any(not _fits(self._own(tensors)))

    def _start(self, tensors: Mapping[str, Tensor], commit: Commit) -> None:
        copies, copied = self.copy(self._own(tensors))
        world, earlier = self.world.for_thread(), list(self._running)

        def write() -> None:
            for save in earlier:  # a checkpoint must be written after the snapshot of its step
                save.result()
            copied()
            commit(copies, world=world, fence=self.fence)

        self._running.append(self._thread.submit(write))

    def _own(self, tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Return the tensors of which this rank writes at least one shard."""
        return tensors if self.world.leads or any(map(is_sharded, tensors.values())) else {}

    def copy(self, tensors: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], Callable[[], object]]:
        """Return copies in host memory, and a function that waits until the copies are complete.

        Tensors of a GPU are copied to pinned memory, which is reused for the next save. The copies are queued on the
        GPU before the next step's work, so this function does not wait.
        """
        copies = {name: self._copy(name, tensor.detach()) for name, tensor in tensors.items()}
        devices = {tensor.device for tensor in tensors.values() if tensor.device.type == "cuda"}
        events = [torch.cuda.current_stream(device).record_event() for device in devices]
        return copies, lambda: [event.synchronize() for event in events]

    def _copy(self, name: str, tensor: Tensor) -> Tensor:
        if is_sharded(tensor):
            return tensor.to("cpu", copy=True)
        place = self._copies.get(name)
        if place is None or place.shape != tensor.shape or place.dtype != tensor.dtype:
            pinned = tensor.device.type == "cuda"
            place = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=pinned)
            self._copies[name] = place
        return place.copy_(tensor, non_blocking=True)


def _fits(tensors: Mapping[str, Tensor]) -> bool:
    """Return whether a copy fits into half of the available memory; True if the available memory is unknown."""
    needed = sum(local(tensor).nbytes for tensor in tensors.values())
    file = Path("/proc/meminfo")
    lines = file.read_text().splitlines() if file.exists() else []
    available = next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), None)
    return available is None or needed < _MOST_MEMORY * available
