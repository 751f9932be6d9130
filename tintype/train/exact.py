"""Make training steps bit-identical in every repetition; on a GPU, only if `run.deterministic` is set."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from tintype.plan import Plan
from tintype.runtime.clock import Clock
from tintype.runtime.determinism import allow_inexact, deterministic, inexact_operation, why_inexact
from tintype.runtime.dist import World
from tintype.runtime.machine import choose_device, cpu_threads, exact_fp32
from tintype.runtime.memory import checked_memory
from tintype.train.folder import RunFolder
from tintype.train.session import Session
from tintype.train.state import TrainState
from tintype.train.update import StepResult, update


@contextmanager
def exact_steps(plan: Plan, world: World) -> Iterator[None]:
    """Compute all steps with exact fp32, with the plan's number of threads, and with deterministic algorithms."""
    with exact_fp32(), cpu_threads(plan.run.device, plan.run.threads), deterministic_steps(plan, world):
        yield


def deterministic_steps(plan: Plan, world: World) -> AbstractContextManager[None]:
    """Use only deterministic algorithms, if the plan requests this and the number of ranks allows it."""
    device = choose_device(plan.run.device)
    return deterministic(device, why_inexact(device, plan.run.deterministic, world.size))


def take_step(folder: RunFolder, parts: Session, state: TrainState, clock: Clock) -> StepResult:
    """Take a step. If an operation has no deterministic form, log an event."""
    step = state.step + 1

    def log_inexact(operation: str) -> None:
        folder.log_event("not-exact", step, operation=operation)

    with checked_memory():
        return exact_update(parts, state, clock, log_inexact)


def exact_update(parts: Session, state: TrainState, clock: Clock, on_inexact: Callable[[str], None]) -> StepResult:
    """Update the weights. Report and allow an operation that has no deterministic form, and repeat the step."""
    weight = state.parameters[0]
    version = weight._version
    try:
        return update(parts, state, clock)
    except RuntimeError as error:
        operation = inexact_operation(error)
        if operation is None or weight._version != version:  # if weights have changed, a repeat would be a second step
            raise
    on_inexact(operation)
    allow_inexact()
    return update(parts, state, clock)
