"""Measurements in Python: the precision of a plan or run. Heavy modules are imported when they are needed."""

from __future__ import annotations

from collections.abc import Callable
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

from tintype.errors import UserError
from tintype.library.kinds import AnySource, Count, Seed
from tintype.library.plans import plan_of
from tintype.library.runs import Run, ignore, load_run
from tintype.wording import option

if TYPE_CHECKING:
    from tintype.audit.run import Audit


def audit(
    plan: AnySource,
    *,
    arm: str | None = None,
    seed: Seed | None = None,
    steps: Count = 4,
    device: str | None = None,
    on_progress: Callable[[int], None] | None = None,
) -> Audit:
    """Run a few steps to find where precision is lost silently. Nothing is written; exit code 1 if it is lost.

    Args:
        plan: a plan, or the name of a recipe, a plan file, a run or its folder, or the folder of a study with an arm.
            A run is audited from its newest checkpoint.
        arm: in the folder of a study: take the run of this arm.
        seed: with an arm: take the run of this seed; by default the first of the arm.
        steps: training steps to observe.
        device: auto, cpu, cuda or cuda:N; by default the device in the run's plan.
        on_progress: called with the number of steps that are done.

    Raises:
        UserError: there is no such plan or run, or it cannot be trained here.
    """
    from tintype.audit.run import audit_plan, audit_run

    on_step = on_progress or ignore
    if isinstance(plan, str | PathLike) and Path(plan).is_dir():
        plan = load_run(plan, arm, seed)
    elif arm is not None or seed is not None:
        raise UserError(
            f"{option('arm')} and {option('arm-seed')} choose a run of a study; {plan} is no folder", "leave them out"
        )
    if isinstance(plan, Run):
        found = audit_run(plan.path, steps, device, on_step)
    else:
        found = audit_plan(plan_of(plan), steps, device, on_step)
    on_step(found.seen.steps)
    return found
