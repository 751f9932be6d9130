"""Audit a plan or a run. Build it, run a few steps, and return the findings, also as JSON. No file is written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from tintype.audit.findings import Finding, find, ranked
from tintype.audit.observe import observe
from tintype.audit.seen import Bad, Group, Seen
from tintype.errors import as_user_error
from tintype.plan import Plan, plan_from_folder
from tintype.runtime.dist import World, current
from tintype.runtime.machine import exact_fp32
from tintype.settings import plain
from tintype.train.folder import RunFolder, refuse_training
from tintype.train.load import newest_good
from tintype.train.session import Session, build_session
from tintype.train.start import begin
from tintype.train.state import StateMismatchError, TrainState, new_state


@dataclass(frozen=True)
class Audit:
    seen: Seen
    findings: list[Finding]
    remarks: tuple[str, ...] = ()
    """How the observed steps differed from training steps."""
    run: Path | None = None
    """The folder of the run; None for a plan."""

    @property
    def exit_code(self) -> int:
        """1 if precision is lost silently, otherwise 0."""
        return int(any(finding.severity == "mistake" for finding in self.findings))


def audit(parts: Session, state: TrainState, steps: int, on_step: Callable[[int], None] = lambda step: None) -> Audit:
    """Run real steps from a state and return the findings. The steps change the state."""
    with exact_fp32():
        seen = observe(parts, state, steps, on_step)
    found = Audit(seen, _of_all_ranks(find(seen), parts.world))
    if seen.error is not None and not found.exit_code:  # no wrong type explains it
        raise seen.error
    return found


def _of_all_ranks(mine: list[Finding], world: World) -> list[Finding]:
    """Merge the observations of all ranks. The first rank has the shared tensors and its own shard of the others."""
    if world.size == 1:
        return mine
    told = [one for some in world.all_gather([asdict(finding) for finding in mine]) for one in some]
    findings = [Finding(**{**one, "where": tuple(one["where"])}) for one in told]
    merged: dict[tuple[str, str], Finding] = {}
    for one in findings:
        other = merged.get((one.name, one.severity), one)
        shares = [share for share in (one.share, other.share) if share is not None]
        where = tuple(dict.fromkeys((*other.where, *one.where)))
        merged[one.name, one.severity] = replace(other, where=where, share=max(shares) if shares else None)
    return ranked(merged.values())


def audit_plan(
    plan: Plan, steps: int, device: str | None = None, on_step: Callable[[int], None] = lambda step: None
) -> Audit:
    """Audit a plan from its initial weights."""
    watched, remarks = _as_watched(plan, device)
    parts = build_session(watched)
    with TemporaryDirectory(prefix="tintype-audit-") as nowhere:  # a start is noted in the folder of the run
        state = begin(RunFolder(Path(nowhere), parts.world), parts, new_state(parts))
    parts.ready(state.step)
    return replace(audit(parts, state, steps, on_step), remarks=remarks)


def audit_run(
    path: Path, steps: int, device: str | None = None, on_step: Callable[[int], None] = lambda step: None
) -> Audit:
    """Audit a run from its newest good checkpoint."""
    refuse_training(path)
    plan = plan_from_folder(path)
    watched, remarks = _as_watched(plan, device)
    parts = build_session(watched)
    state = new_state(parts)
    tensors, scalars = newest_good(path, state)
    with as_user_error(StateMismatchError, f"the checkpoint in {path} does not fit this plan and version"):
        state.load(tensors, scalars)
    parts.ready(state.step)
    remarks = (f"from the checkpoint of step {state.step}", *remarks)
    return replace(audit(parts, state, steps, on_step), remarks=remarks, run=path)


def as_json(audit: Audit) -> dict[str, object]:
    """Return all observations, by group and by module, and the findings."""
    seen = audit.seen
    return {
        "exit_code": audit.exit_code,
        "steps": seen.steps,
        "skipped_steps": seen.skipped_steps,
        "stopped_by": seen.error_words,
        "remarks": list(audit.remarks),
        "precision": plain(seen.precision),
        "loss_scale": seen.loss_scales,
        "tf32": seen.tf32,
        "findings": [asdict(finding) for finding in audit.findings],
        "groups": [_group(group) for group in seen.in_order],
        "inputs": [
            {"module": one.module, "argument": one.argument, "types": sorted(one.types), **_bad(one.bad)}
            for one in seen.inputs.values()
        ],
    }


def _group(group: Group) -> dict[str, object]:
    return {
        "group": group.room,
        "kind": group.kind,
        "elements": group.elements,
        "types": {role: sorted(types) for role, types in group.types.items()},
        "updates": {"due": group.updates.due, "lost": group.updates.lost, "cosine": group.updates.cosine},
        "moments": {"due": group.moments.due, "lost": group.moments.lost},
        "averages": {"due": group.averages.due, "lost": group.averages.lost},
        "bad": {role: _bad(one) for role, one in group.bad.items()},
    }


def _bad(bad: Bad) -> dict[str, int]:
    return {"non_finite": bad.non_finite, "saturated": bad.saturated}


def _as_watched(plan: Plan, device: str | None) -> tuple[Plan, tuple[str, ...]]:
    """Return the plan with its full learning rate, and without compilation, which hides modules from hooks.

    At a much lower learning rate, the share of lost updates would not be typical of training.
    """
    remarks = ["at the full learning rate: without warm-up and decay"]
    if plan.run.distribution.kind == "fsdp" and current().size > 1:
        remarks.append("sizes and shares are those of the first rank's piece; findings are those of all ranks")
    if plan.model.compile:
        remarks.append("model.compile is switched off: nothing can be seen inside a compiled block")
    model = plan.model.model_copy(update={"compile": False, "kernels": "plain"})
    train = plan.train.model_copy(update={"warmup_steps": 0, "schedule": "constant"})
    run = plan.run if device is None else plan.run.model_copy(update={"device": device})
    return Plan(**{**dict(plan), "model": model, "train": train, "run": run}), tuple(remarks)
