"""Steps that end with the same bits whenever they are taken, on a GPU too where `run.deterministic` is set."""

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
    """Compute all steps alike: fp32 in full, with the plan's number of threads, by deterministic algorithms."""
    with exact_fp32(), cpu_threads(plan.run.device, plan.run.threads), deterministic_steps(plan, world):
        yield


def deterministic_steps(plan: Plan, world: World) -> AbstractContextManager[None]:
    """Use deterministic algorithms only, where the plan and the ranks can be exact."""
    device = choose_device(plan.run.device)
    return deterministic(device, why_inexact(device, plan.run.deterministic, world.size))


def take_step(folder: RunFolder, parts: Session, state: TrainState, clock: Clock) -> StepResult:
    """Take a step. An operation that has no deterministic form is an event of the run."""
    step = state.step + 1

    def log_inexact(operation: str) -> None:
        folder.log_event("not-exact", step, operation=operation)

    with checked_memory():
        return exact_update(parts, state, clock, log_inexact)


def exact_update(parts: Session, state: TrainState, clock: Clock, on_inexact: Callable[[str], None]) -> StepResult:
    """Update the weights. An operation that has no deterministic form is reported and allowed, and the step taken
    again."""
    weight = state.parameters[0]
    version = weight._version
    try:
        return update(parts, state, clock)
    except RuntimeError as error:
        operation = inexact_operation(error)
        if operation is None or weight._version != version:  # once the weights have moved, it would be two steps
            raise
    on_inexact(operation)
    allow_inexact()
    return update(parts, state, clock)
