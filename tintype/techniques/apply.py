"""Apply techniques to a Plan, and refuse changes that are not allowed in an arm."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass

from pydantic import ValidationError

from tintype.config.strict import Document, assignments_in, labelled, nearest, parse, problem_words, read_yaml
from tintype.errors import UserError
from tintype.plan import Change, Plan, diff, flat, settings_by_key
from tintype.settings import Settings
from tintype.techniques import SHARED_SEAMS, TECHNIQUES, Technique
from tintype.techniques.technique import Changes
from tintype.tokenizers.part import NONE_KNOWN, Known, TokenizerPart


@dataclass(frozen=True)
class Application:
    """A technique and the options with which it is applied."""

    technique: Technique
    options: Settings
    given: tuple[str, ...] = ()
    """Dotted keys of the options that the user specified."""

    @classmethod
    def parse(cls, spec: str, known: Known = NONE_KNOWN) -> Application:
        """Parse `name` or `name:key=value,key=[value,value]`; files that the options name fill in missing options."""
        name, _, rest = spec.partition(":")
        if name not in TECHNIQUES:
            raise UserError(
                f"unknown technique '{name}'", f"{nearest(name, TECHNIQUES)}. For your own technique, load its plugin"
            )
        document = Document(f"technique {spec}", {})
        for assignment in assignments_in(rest):
            document.override(assignment, prefix=f"technique {name}:")
        given = tuple(assignment.partition("=")[0].strip() for assignment in assignments_in(rest))
        options = parse(TECHNIQUES[name].options, document)
        found = {key: value.resolved(known) for key, value in options if isinstance(value, TokenizerPart)}
        return cls(TECHNIQUES[name], options.model_copy(update=found) if found else options, given)


def apply_techniques(
    plan: Plan, techniques: Sequence[str | Application], given: Sequence[str] = (), prefix: str | None = None
) -> Plan:
    """Return the plan after the techniques were applied in order.

    Each technique must change something, and only the seams that it declares. `given` are the user's own assignments,
    which techniques must not overwrite. In messages, `prefix` comes before their keys.
    """
    applied: list[Technique] = []
    for one in techniques:
        application = Application.parse(one) if isinstance(one, str) else one
        technique = application.technique
        for other in applied:
            _refuse_both(other, technique)
        applied.append(technique)
        changed = plan.model_copy(update=_changes(plan, application))
        check_arm(f"technique '{technique.name}'", plan, changed, technique.seams)
        for assignment in given:
            _refuse_overwritten(assignment, prefix, technique, plan, changed)
        plan = changed
    return _checked(plan, applied)


def _refuse_overwritten(assignment: str, prefix: str | None, technique: Technique, before: Plan, after: Plan) -> None:
    """Refuse a technique that overwrites a user's key, unless the technique moves the value within its section."""
    key, _, value = assignment.partition("=")
    old, new = settings_by_key(before), settings_by_key(after)
    for name in flat(read_yaml(value, key).data, key.strip()):
        if name in SHARED_SEAMS or name not in old or old[name] == new.get(name):
            continue
        section, last = name.split(".")[0], name.split(".")[-1]
        moved = (k for k, v in new.items() if k.split(".")[0] == section and k.split(".")[-1] == last)
        if not any(new[k] == old[name] for k in moved):
            shown = f"{old[name]} → {new[name]}" if name in new else f"{old[name]} is gone"
            raise UserError(
                f"{labelled(prefix, assignment)}: the technique '{technique.name}' overwrites {name} ({shown})",
                f"leave one of the two out, or use an option of the technique {technique.name} instead",
            )


def _changes(plan: Plan, application: Application) -> Changes:
    try:
        return application.technique.changes(plan, application.options)
    except ValidationError as error:
        raise UserError(f"technique '{application.technique.name}': {_reasons(error)}") from None


def _refuse_both(first: Technique, second: Technique) -> None:
    """Raise if two techniques hold the same seam or setting, or add the same kind of part to a shared seam."""
    if first.seam != second.seam or first.setting != second.setting:
        return
    if first.seam not in SHARED_SEAMS:
        held = first.seam if first.setting is None else f"{first.seam}.{first.setting}"
        what = f"both set the plan's '{held}'"
    elif first.adds is second.adds:
        what = f"both add the same kind of part to the plan's '{first.seam}'"
    else:
        return
    raise UserError(f"'{first.name}' and '{second.name}' {what}", "apply only one of them")


def _checked(plan: Plan, applied: Sequence[Technique]) -> Plan:
    """Validate the plan only after all techniques, since a technique may need a setting that another one sets."""
    try:
        return Plan(**dict(plan))
    except ValidationError as error:
        names = " and ".join(f"'{technique.name}'" for technique in applied)
        raise UserError(f"with {names} applied, the plan is invalid: {_reasons(error)}") from None


def _reasons(error: ValidationError) -> str:
    problems = error.errors(include_url=False)
    keys = [".".join(map(str, problem["loc"])) for problem in problems]
    reasons = [problem_words(problem) for problem in problems]
    return "; ".join(f"{key}: {reason}" if key else reason for key, reason in zip(keys, reasons, strict=True))


def check_arm(what: str, before: Plan, after: Plan, declared: Set[str]) -> dict[str, Change]:
    """Raise unless an arm changes something, and only its declared seams; every comparison relies on this."""
    changes = diff(before, after)
    if not changes:
        raise UserError(f"{what} changes nothing: the plan has these settings already")
    strays = [key for key in changes if key.split(".")[0] not in declared]
    if strays:
        raise UserError(
            f"{what} declares {', '.join(sorted(declared))} but also changes {', '.join(strays)}; an arm may "
            f"change only what it declares"
        )
    return changes
