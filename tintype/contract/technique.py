"""The contract of a technique. Each check raises `BrokenContractError`, which describes the violation."""

from __future__ import annotations

import signal
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

import torch

from tintype.contract.ground import Ground
from tintype.errors import UserError
from tintype.plan import Plan, diff, plan_from_yaml
from tintype.runtime.clock import Clock
from tintype.runtime.interrupt import Interrupt
from tintype.techniques import TECHNIQUES
from tintype.techniques.apply import apply_techniques
from tintype.train import checkpoint
from tintype.train.folder import RunFolder
from tintype.train.loop import train
from tintype.train.record import RunRecord
from tintype.train.session import Session, build_session
from tintype.train.start import begin
from tintype.train.state import TrainState, new_state
from tintype.train.steps import Progress
from tintype.train.update import update

_SHOWN = 4
_STEPS = 3
"""Number of steps after which gradients pass through zero-initialised gates."""


class BrokenContractError(Exception):
    """Raised if a technique violates its contract."""


def check_seams(ground: Ground, name: str) -> str:
    """Changes its own seam and nothing else."""
    technique = TECHNIQUES[name]
    baseline = ground.baseline_for(name)
    changes = diff(baseline, ground.with_techniques(name))
    sections = {key.split(".")[0] for key in changes}
    if technique.seam not in sections:
        raise BrokenContractError(f"the technique declares the seam '{technique.seam}' but does not change it")
    if strays := sections - technique.seams:
        raise BrokenContractError(
            f"the technique also changes {_some(strays)}; name these sections in `also`, or do not change them"
        )
    if technique.setting and set(changes) != {f"{technique.seam}.{technique.setting}"}:
        raise BrokenContractError(
            f"the technique declares the setting '{technique.setting}' as its only change, but changes {_some(changes)}"
        )
    return _some(changes)


def check_round_trip(ground: Ground, name: str) -> str:
    """Survives a round trip through YAML."""
    plan = ground.with_techniques(name)
    again = plan_from_yaml(plan.to_yaml(), "its plan as YAML")
    if again != plan:
        raise BrokenContractError(
            f"the plan changes when it is written and read again: {_some(diff(plan, again)) or again}"
        )
    return ""


def check_off(ground: Ground, name: str) -> str:
    """Leaves no trace where it is switched off."""
    baseline, changed = ground.baseline_for(name), ground.with_techniques(name)
    before = losses(baseline) if ground.can_step(name) else []
    off = Plan(**{**dict(changed), **{seam: dict(baseline)[seam] for seam in TECHNIQUES[name].seams}})
    if off.hash != baseline.hash:
        raise BrokenContractError(
            "if the sections that the technique may change are reset, the plan's hash still differs from the baseline's"
        )
    if ground.can_step(name):
        losses(changed, 1)  # what it does to the process would show after it
        if losses(off) != before:
            raise BrokenContractError(
                "the baseline's losses change after a run with the technique: the "
                "technique changes state outside the plan"
            )
    return ""


def check_parameters(ground: Ground, name: str) -> str:
    """Adds the parameters that it declares, and each gets a gradient."""
    trains = TECHNIQUES[name].trains
    before = _parameter_names(build_session(ground.baseline_for(name)))
    parts = build_session(ground.with_techniques(name))
    added = _parameter_names(parts) - before
    declared = {one for one in added if one.startswith(tuple(trains))} if trains else set[str]()
    if undeclared := added - declared:
        raise BrokenContractError(
            f"the technique adds the parameters {_some(undeclared)} but does not name them in `trains`"
        )
    if lost := {prefix for prefix in trains if not any(one.startswith(prefix) for one in added)}:
        raise BrokenContractError(f"`trains` names {_some(lost)}, but the technique adds no such parameters")
    parts.ready()
    state = new_state(parts)
    for _ in range(_STEPS):
        update(parts, state, Clock(parts.device))
    untouched = {key for key, one in parts.modules.named_parameters() if one.grad is None or not one.grad.any()}
    if untouched:
        raise BrokenContractError(f"after {_STEPS} steps the parameters {_some(untouched)} have no gradient")
    return f"{len(added)} added" if added else "none added"


def check_resume(ground: Ground, name: str) -> str:
    """Resumes bit for bit from every step."""
    plan = ground.with_techniques(name)
    plan = plan.model_copy(update={"run": plan.run.model_copy(update={"save_every_steps": 1})})
    with tempfile.TemporaryDirectory(dir=ground.folder) as folder:
        if not resumed_is_whole(plan, Path(folder)):
            raise BrokenContractError(
                "a run that is stopped and resumed after every step ends with other weights, state or losses "
                "than an uninterrupted run. A loss term must keep everything that it remembers in its "
                "buffers or parameters"
            )
    return f"{plan.train.steps - 1} stops"


def check_needs(ground: Ground, name: str) -> str:
    """Is refused by name where the plan lacks what it needs."""
    needs = TECHNIQUES[name].needs
    if not needs:
        return "it needs nothing"
    try:
        apply_techniques(ground.plan(), [ground.spec(name)])
    except UserError as error:
        if f"'{name}'" in str(error) and any(key in str(error) for key in needs):
            return _some(needs)
        raise BrokenContractError(
            f"the error for a plan without the settings of `needs` must name the "
            f"technique and one of these settings, but says: {error}"
        ) from None
    raise BrokenContractError(
        f"`needs` names {_some(needs)}, but the technique can also be applied to a plan without these settings"
    )


CHECKS: tuple[Callable[[Ground, str], str], ...] = (
    check_seams,
    check_round_trip,
    check_off,
    check_parameters,
    check_resume,
    check_needs,
)
"""Checks of a single technique.

The first line of each docstring is the property that the check confirms. A check returns details as text.
"""
WITHOUT_STEPS = (check_seams, check_round_trip, check_off, check_needs)
"""Checks that need no training with the technique."""


def check_pair(ground: Ground, first: str, second: str) -> bool:
    """Train a step with two techniques, and return whether they can be combined; if not, the error must name both.

    If one technique cannot be trained on this machine, only the plan is made.
    """
    try:
        plan = ground.with_techniques(first, second)
    except UserError as error:
        if all(f"'{name}'" in str(error) for name in (first, second)):
            return False
        raise BrokenContractError(
            f"the error for the combination with '{second}' must name both techniques, but says: {error}"
        ) from None
    if not ground.can_step(first, second):
        return True
    parts, state = begun(plan)
    if not update(parts, state, Clock(parts.device)).finite:
        raise BrokenContractError(f"a training step together with '{second}' has a loss or gradient that is not finite")
    if not all(bool(parameter.isfinite().all()) for parameter in state.parameters):
        raise BrokenContractError(f"after a training step together with '{second}' the weights are not finite")
    return True


def losses(plan: Plan, steps: int = 2) -> list[float]:
    parts, state = begun(plan)
    return [float(update(parts, state, Clock(parts.device)).losses["loss"]) for _ in range(steps)]


def begun(plan: Plan) -> tuple[Session, TrainState]:
    """Return a session, and the training state before the first step."""
    parts = build_session(plan)
    parts.ready()
    with tempfile.TemporaryDirectory() as folder:
        return parts, begin(RunFolder(Path(folder)), parts, new_state(parts))


def resumed_is_whole(plan: Plan, folder: Path) -> bool:
    """Return whether a run that is stopped and rebuilt after every step ends like an uninterrupted run."""
    train(plan, folder / "whole", Interrupt())
    for stop in range(1, plan.train.steps):
        train_to(plan, folder / "stopped", stop)
    train(plan, folder / "stopped", Interrupt())
    same_logs = _logged(folder / "whole") == _logged(folder / "stopped")
    same_snapshots = _snapshots(folder / "whole") == _snapshots(folder / "stopped")
    return _states_equal(folder / "whole", folder / "stopped") and same_logs and same_snapshots


def train_to(plan: Plan, folder: Path, step: int) -> None:
    """Train, and send a stop signal after this step."""
    interrupt = Interrupt()

    def stop(progress: Progress) -> None:
        if progress.step == step:
            interrupt.signal = signal.SIGTERM

    stopped = train(plan, folder, interrupt, stop).step
    assert stopped == step, f"it was stopped after step {stopped} and not {step}"


def _logged(folder: Path) -> list[tuple[int, float, float]]:
    return [(line["step"], line["loss"], line["grad_norm"]) for line in RunRecord(folder).lines]


def _snapshots(folder: Path) -> dict[str, str]:
    return {path.parent.name: path.read_text() for path in RunRecord(folder).snapshots.glob("*/manifest.json")}


def _states_equal(first: Path, second: Path) -> bool:
    states = []
    for folder in (first, second):
        record = RunRecord(folder)
        states.append(checkpoint.read(checkpoint.folder_of(record.checkpoints, record.saved_step)))
    (tensors_1, scalars_1), (tensors_2, scalars_2) = states
    same = set(tensors_1) == set(tensors_2) and all(torch.equal(tensors_1[key], tensors_2[key]) for key in tensors_1)
    return same and scalars_1 == scalars_2


def _parameter_names(parts: Session) -> set[str]:
    return {name for name, _ in parts.modules.named_parameters()}


def _some(names: Iterable[str]) -> str:
    """Return the first names as a text list."""
    listed = sorted(names)
    return ", ".join(listed[:_SHOWN]) + (f" and {len(listed) - _SHOWN} more" if len(listed) > _SHOWN else "")
