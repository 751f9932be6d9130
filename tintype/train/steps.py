"""The loop of every training takes a step, checks it, logs and saves, until the last step or a signal.

A step is checked before it is logged or saved, so a state with infinite or NaN values is never saved, even on a signal.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from tintype.runtime import activity
from tintype.train.state import TrainState

R = TypeVar("R")


@dataclass(frozen=True)
class Progress:
    step: int
    steps: int
    loss: float | None
    images_per_s: float | None


@dataclass(frozen=True)
class Cadence:
    steps: int
    log_every_steps: int
    save_every_steps: int


class Training(Protocol[R]):
    """A training that `run_steps` drives. `R` is the type of the result of a step."""

    @property
    def state(self) -> TrainState: ...
    @property
    def cadence(self) -> Cadence: ...
    def interrupted(self) -> bool:
        """Return whether training must stop because of a signal."""

    def take_step(self) -> R:
        """Advance the state by one step."""

    def check_step(self, result: R) -> None:
        """Raise DivergedError if training must not continue after this step."""

    def finish_step(self) -> None:
        """Do the work that is due after a step, and before the step is logged and saved."""

    def log(self, window: Sequence[R], saving: bool) -> Mapping[str, object]:
        """Check the weights, log the steps since the last call, and return the logged line."""

    def save(self, now: bool) -> None:
        """Save the state. With `now`, wait until it is on disk."""


def run_steps(
    training: Training[R], on_progress: Callable[[Progress], None], begin_step: Callable[[], None] = lambda: None
) -> None:
    """Train until the last step or a signal, and save."""
    state, cadence, saved = training.state, training.cadence, training.state.step
    window: list[R] = []
    line: Mapping[str, object] = {}

    def report() -> None:
        loss, speed = (value if isinstance(value := line.get(key), float) else None for key in ("loss", "images_per_s"))
        on_progress(Progress(state.step, cadence.steps, loss, speed))

    report()
    while (working := state.step < cadence.steps and not training.interrupted()) or state.step > saved:
        begin_step()
        activity.mark("step", state.step + working)
        if working:
            window.append(training.take_step())
            if len(window) > 1:  # check the previous step: it has finished, and the GPU is busy with this step
                training.check_step(window[-2])
            training.finish_step()
        saving = not working or state.step % cadence.save_every_steps == 0 or state.step == cadence.steps
        if window and (saving or state.step % cadence.log_every_steps == 0):
            activity.mark("log")
            training.check_step(window[-1])
            line = training.log(window, saving)
            window = []
        if saving:
            activity.mark("save")
            training.save(now=not working or state.step == cadence.steps)
            saved = state.step
        report()
