"""An audit as JSON: everything that was seen, and what was found."""

from __future__ import annotations

from dataclasses import asdict

from tintype.audit.run import Audit
from tintype.audit.seen import Group, Seen

_KINDS = ("matrices", "gains", "biases", "buffers")


def as_json(audit: Audit) -> dict[str, object]:
    """Everything that was seen, by group and by module, and what was found."""
    seen = audit.seen
    return {
        "exit_code": audit.exit_code,
        "steps": seen.steps,
        "skipped_steps": seen.skipped_steps,
        "stopped_by": describe_error(seen),
        "remarks": list(audit.remarks),
        "precision": dict(seen.precision),
        "loss_scale": seen.loss_scales,
        "tf32": seen.tf32,
        "findings": [asdict(finding) for finding in audit.findings],
        "groups": [_group(group) for group in in_order(seen)],
        "inputs": [
            {
                "module": one.module,
                "argument": one.argument,
                "types": sorted(one.types),
                "non_finite": one.bad.non_finite,
                "saturated": one.bad.saturated,
            }
            for one in seen.inputs.values()
        ],
    }


def _group(group: Group) -> dict[str, object]:
    bad = {role: {"non_finite": one.non_finite, "saturated": one.saturated} for role, one in group.bad.items()}
    return {
        "group": group.room,
        "kind": group.kind,
        "elements": group.elements,
        "types": {role: sorted(types) for role, types in group.types.items()},
        "updates": {"due": group.updates.due, "lost": group.updates.lost, "cosine": group.updates.cosine},
        "moments": {"due": group.moments.due, "lost": group.moments.lost},
        "averages": {"due": group.averages.due, "lost": group.averages.lost},
        "bad": bad,
    }


def in_order(seen: Seen) -> list[Group]:
    """Return the groups in the model's order."""
    rooms = list(dict.fromkeys(group.room for group in seen.groups.values()))
    return sorted(seen.groups.values(), key=lambda g: (rooms.index(g.room), _KINDS.index(g.kind)))


def describe_error(seen: Seen) -> str | None:
    return None if seen.error is None else f"{type(seen.error).__name__}: {seen.error}"
