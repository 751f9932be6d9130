"""Choose how many runs to make at the same time on a GPU, by measuring the throughput of a study.

The unit of throughput is the speed of a run that has the GPU to itself. A run counts one half if it makes half as many
steps per second as it would make alone. The throughput of a GPU is the sum over its runs. The gain from one more run is
the growth of this sum.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

START = 8
"""Initial number of runs on a GPU, if they fit."""
MOST = 16
"""Maximum number of runs on a GPU, even of small runs, since each worker also needs a core and host memory."""
_WINDOW_S = 12.0
"""Number of seconds over which the speed of the runs is measured."""
_GAIN = 0.02
"""One more run must raise the throughput by this fraction."""
_NO_GAIN = 1.05
"""If several runs have at most this throughput, a single run already uses the whole GPU."""


@dataclass(frozen=True)
class Pulse:
    """The progress of a run during training."""

    step: int
    step_s: float
    """Seconds that the steps of the run take alone on the GPU."""


class Pace:
    """Controller that chooses the number of runs on a GPU from measurements."""

    def __init__(self, start: int = START, most: int = MOST) -> None:
        self.target, self.most = min(start, most), most
        self.rates: dict[int, float] = {}
        """The highest throughput measured for each number of runs."""
        self._settled = False
        self._began_s = 0.0
        self._began: Mapping[str, Pulse] = {}

    def note(self, running: Mapping[str, Pulse], now_s: float) -> None:
        """Record the progress of the runs in progress, by their names."""
        if running.keys() != self._began.keys():  # a run has begun or ended, so the window restarts
            self._began, self._began_s = dict(running), now_s
            return
        seconds = now_s - self._began_s
        if seconds < _WINDOW_S or not running:
            return
        taken = {name: pulse.step - self._began[name].step for name, pulse in running.items()}
        rate = sum(taken[name] * pulse.step_s for name, pulse in running.items()) / seconds
        self.rates[len(running)] = max(rate, self.rates.get(len(running), 0.0))
        self._began, self._began_s = dict(running), now_s
        if len(running) == self.target and not self._settled:
            self._choose(len(running))

    def _choose(self, count: int) -> None:
        """Choose the next number of runs after a measurement with `count` runs."""
        rate, fewer = self.rates[count], [number for number in self.rates if number < count]
        if count > 1 and rate <= _NO_GAIN:
            self.target = max(1, count // 2)
            self._settled = self.target == 1
            return
        if max(self.rates) > count:  # it came down from more, and here they still gain something
            self._settled = True
            return
        if fewer:
            before = max(fewer)
            if rate < self.rates[before] * (1 + _GAIN * (count - before)):
                self.target, self._settled = before, True
                return
        self.target = min(self.most, count + 1)
        self._settled = self.target == count
