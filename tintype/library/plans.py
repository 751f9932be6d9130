"""Plans in Python: load one, and apply techniques to it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tintype.errors import UserError
from tintype.library.kinds import AnyPath, AnyPlan

if TYPE_CHECKING:
    from tintype.plan import Plan


def load_plan(recipe: AnyPath, *settings: str) -> Plan:
    """Return the plan of a recipe's name, of a plan file, or of a run's folder.

    Args:
        recipe: a name that `tintype recipes` lists, as "pocket", or a path. A recipe's name goes first.
        settings: overrides, each "key.path=value", as "train.steps=100".

    Raises:
        UserError: there is no such recipe or file, or a setting is not valid.
    """
    from tintype.config.strict import Document
    from tintype.plan import plan_from_document, plan_from_folder, read_plan
    from tintype.recipes import packaged
    from tintype.settings import plain

    check_texts("load_plan", settings, '"train.steps=100"')
    name = str(recipe)
    if name not in packaged.names("plans") and Path(name).is_dir():
        return plan_from_document(Document(name, plain(plan_from_folder(Path(name)))), settings)
    return read_plan(name, settings)


def plan_of(plan: AnyPlan) -> Plan:
    from tintype.plan import Plan

    return plan if isinstance(plan, Plan) else load_plan(plan)


def apply(plan: AnyPlan, *techniques: str) -> Plan:
    """Return the plan with techniques applied in turn. The plan itself stays as it is.

    Args:
        plan: the plan to begin with, or what `load_plan` takes.
        techniques: each "name" or "name:key=value,key=value", as `tintype techniques` lists them.

    Raises:
        UserError: a technique is unknown, changes nothing, or does not go with the plan or another technique.
    """
    from tintype.techniques.apply import apply_techniques

    check_texts("apply", techniques, '"muon" or "repa:weight=0.5"')
    return apply_techniques(plan_of(plan), techniques)


def check_texts(function: str, given: Sequence[object], example: str) -> None:
    """Refuse arguments that are no texts, for example a dictionary or a list."""
    for one in given:
        if not isinstance(one, str):
            raise UserError(f"{function}: {one!r} is of type {type(one).__name__}", f"give texts, each as {example}")
