"""Time each step of training and its parts."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise

import torch

from tintype.runtime.clock import PARTS, Clock

_Mark = torch.cuda.Event | float


@dataclass(frozen=True)
class Step:
    whole_s: float
    parts_s: dict[str, float]


class StepClock(Clock):
    """Measure the seconds of each step and of its parts.

    On a GPU, the marks are CUDA events, so measuring does not block; `data` is the GPU's wait for data.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self._stream = torch.cuda.current_stream(device) if device.type == "cuda" else None
        self.start()

    def start(self) -> None:
        self._spans: list[list[tuple[str, _Mark, _Mark]]] = [[]]
        self._ends = [self._mark()]

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        began = self._mark()
        yield
        self._spans[-1].append((name, began, self._mark()))

    def end_step(self) -> None:
        self._ends.append(self._mark())
        self._spans.append([])

    def steps(self) -> list[Step]:
        """Return the finished steps."""
        if self._stream:
            self._stream.synchronize()
        found = []
        for ends, spans in zip(pairwise(self._ends), self._spans[:-1], strict=True):
            parts_s = dict.fromkeys(PARTS, 0.0)
            for name, began, ended in spans:
                parts_s[name] += self._between_s(began, ended)
            found.append(Step(self._between_s(*ends), parts_s))
        return found

    def _mark(self) -> _Mark:
        if self._stream:
            event = torch.cuda.Event(enable_timing=True)
            self._stream.record_event(event)
            return event
        return time.perf_counter()

    def _between_s(self, began: _Mark, ended: _Mark) -> float:
        if isinstance(began, torch.cuda.Event) and isinstance(ended, torch.cuda.Event):
            return float(began.elapsed_time(ended)) / 1000
        assert isinstance(began, float) and isinstance(ended, float)
        return ended - began
