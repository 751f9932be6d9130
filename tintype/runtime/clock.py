"""Measure the seconds of each part of a training step. On a GPU, CUDA events measure the time."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from tintype.runtime import activity

PARTS = ("data", "text", "tokenizer", "teacher", "forward", "losses", "backward", "optimizer")


def synchronized_s(device: torch.device) -> float:
    """Wait until the device has finished its queued work. After this wait, return the time in seconds."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


class Clock:
    """Times the parts of a step. `read` returns the seconds since the last `read`, in total and for each part."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._events: list[tuple[str, torch.cuda.Event, torch.cuda.Event]] = []
        self._start_s = time.perf_counter()

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        activity.mark(name)
        if self._device.type == "cuda" and name != "data":  # the host waits for data, so the host's clock times it
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            yield
            end.record()
            self._events.append((name, start, end))
            return
        began = time.perf_counter()
        yield
        self._seconds[name] += time.perf_counter() - began

    def read(self) -> tuple[float, dict[str, float]]:
        if self._events:
            torch.cuda.synchronize(self._device)
        for name, start, end in self._events:
            self._seconds[name] += start.elapsed_time(end) / 1000
        now = time.perf_counter()
        total, parts = now - self._start_s, {name: self._seconds[name] for name in PARTS}
        self._start_s, self._seconds, self._events = now, defaultdict(float), []
        return total, parts
