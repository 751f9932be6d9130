"""Functions that load a plan, apply techniques to it, show it, estimate its cost, and compare two plans."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tintype.errors import UserError
from tintype.library.kinds import AnyPath, AnyPlan, AnySource, Count, Seed
from tintype.wording import option

if TYPE_CHECKING:
    from tintype.cost.memory import Peak
    from tintype.cost.plan import PlanCost
    from tintype.plan import Plan


@dataclass(frozen=True)
class PlanDiff:
    """The settings that differ between two plans."""

    changes: Mapping[str, tuple[Any, Any]]
    """The values in the first and the second plan, by the dotted key of the setting."""


@dataclass(frozen=True)
class PlanEstimate:
    """The cost of training a plan, counted before training."""

    cost: PlanCost
    """Parameters, operations, speed and time."""
    peak: Peak
    """Bytes of memory, by part."""
    gpu: str | None
    """The kind of GPU for which the time is estimated; None if this machine's GPU was measured."""


def load_plan(recipe: AnyPath, *settings: str) -> Plan:
    """Load the plan of a recipe, of a plan file, or of a run's folder.

    Args:
        recipe: name of a recipe that `tintype recipes` lists, such as "pocket", or a path. If both exist, the recipe
            is loaded.
        settings: overrides "key.path=value", such as "train.steps=100".

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
    """Return a new plan: the given plan with techniques applied in order. The given plan is not changed.

    Args:
        plan: the plan to begin with, or any argument that `load_plan` takes.
        techniques: techniques that `tintype techniques` lists, each as "name" or "name:key=value,key=value".

    Raises:
        UserError: a technique is unknown, changes nothing, or is not compatible with the plan or another technique.
    """
    from tintype.techniques.apply import apply_techniques

    check_texts("apply", techniques, '"muon" or "repa:weight=0.5"')
    return apply_techniques(plan_of(plan), techniques)


def check_texts(function: str, given: Sequence[object], example: str) -> None:
    """Raise if an argument is not a string, for example a dictionary or a list."""
    for one in given:
        if not isinstance(one, str):
            raise UserError(
                f"{function}: {one!r} has the type {type(one).__name__}, but only texts are allowed",
                f"write each text like {example}",
            )


def show_plan(plan: AnySource, *, arm: str | None = None, seed: Seed | None = None) -> Plan:
    """Show a plan with every default resolved.

    Args:
        plan: a plan, name of a recipe, plan file, folder of a run, or folder of a study together with an arm.
        arm: arm whose run is used, if a study's folder is given.
        seed: seed of the arm's run that is used; by default the first seed of the arm.

    Raises:
        UserError: there is no such plan.
    """
    _refuse_arm_without_study([plan], arm, seed)
    return any_plan(plan, arm, seed)


def diff_plans(
    first: AnySource,
    second: AnySource | None = None,
    *,
    arm: str | None = None,
    seed: Seed | None = None,
    all_: bool = False,
) -> PlanDiff:
    """Compare two plans: recipes, plan files, runs, or arms of studies.

    Args:
        first: name of a recipe, path of a plan file, folder of a run, or folder of a study together with an arm.
        second: the second plan; without a second plan, the arm of a study is compared with the study's baseline.
        arm: arm whose run is used, if a study's folder is given.
        seed: seed of the arm's run that is used; by default the first seed of the arm.
        all_: show every setting that differs, also defaults of sections that only one of the plans has.

    Raises:
        UserError: there is no such plan, or there is no second plan to compare with.
    """
    from tintype.plan import diff, short_diff, unhashed_diff

    _refuse_arm_without_study([first, second], arm, seed)
    if second is None and not is_study(first):
        raise UserError(
            f"only one plan is given: {first}",
            f"give a second plan, or the folder of a study with {option('arm')}",
        )
    if second is None and arm is None:
        raise UserError(
            f"{first} has several arms", f"choose the arm to compare with the baseline:\n{_arms_in(Path(str(first)))}"
        )
    if second is None:
        _, at, resolution = (arm or "").rpartition(" @ ")
        before = any_plan(first, f"baseline{at}{resolution}" if at else "baseline")
    else:
        before = any_plan(first, arm, seed)
    after = any_plan(first if second is None else second, arm, seed)
    return PlanDiff((diff if all_ else short_diff)(before, after) | unhashed_diff(before, after))


def plan_cost(
    plan: AnySource,
    *,
    gpus: Count = 1,
    gpu: str | None = None,
    arm: str | None = None,
    seed: Seed | None = None,
    on_measure: Callable[[], None] | None = None,
) -> PlanEstimate:
    """Count the cost of training a plan: parameters, operations, memory, GPU-hours. Nothing is trained or written.

    Args:
        plan: a plan, name of a recipe, plan file, folder of a run, or folder of a study together with an arm.
        gpus: number of GPUs that share each micro-batch.
        gpu: kind of GPU for which the time is estimated: h200, h100, b200, …; by default this machine's GPU, if any, is
            measured.
        arm: arm whose run is used, if a study's folder is given.
        seed: seed of the arm's run that is used; by default the first seed of the arm.
        on_measure: called before the speed of this machine's GPU is measured.

    Raises:
        UserError: there is no such plan, its networks cannot be counted, or the kind of GPU is unknown.
    """
    from tintype.cost.memory import peak_of
    from tintype.cost.plan import USUAL_GPU, cost_of_plan, estimated_speed, measured_speed
    from tintype.evaluation.presets import default_protocol
    from tintype.runtime.machine import choose_device

    chosen = show_plan(plan, arm=arm, seed=seed)
    device = choose_device(chosen.run.device)
    kind: str | None = gpu or USUAL_GPU
    cost = cost_of_plan(chosen, estimated_speed(gpu or USUAL_GPU), gpus)
    if gpu is None and device.type == "cuda":
        if on_measure is not None:
            on_measure()
        images = cost.micro_batch(cost.phases[0])  # the speed is measured on a step of the first phase
        cost, kind = replace(cost, speed=measured_speed(chosen, device, images)), None
    return PlanEstimate(cost, peak_of(chosen, default_protocol(chosen), gpus=gpus), kind)


def plan_schema() -> dict[str, Any]:
    """Show the JSON schema of plan files. Editors use the schema for completion."""
    from tintype.plan import Plan

    return Plan.model_json_schema()


def any_plan(plan: AnySource, arm: str | None = None, seed: int | None = None) -> Plan:
    """Return the plan of any source, which is a plan, a recipe, a plan file, a run, or an arm in the folder of a
    study.
    """
    from tintype.library.runs import Run

    if isinstance(plan, Run):
        return plan.plan
    if is_study(plan):
        from tintype.study.lab import choose_run

        return choose_run(Path(str(plan)), arm, seed).plan
    if isinstance(plan, str | PathLike) and Path(plan).is_dir():
        from tintype.plan import plan_from_folder

        return plan_from_folder(Path(plan))
    return plan_of(plan)


def is_study(plan: AnySource | None) -> bool:
    """Return whether `plan` is the folder of a study."""
    from tintype.runtime.files import STUDY

    return isinstance(plan, str | PathLike) and (Path(plan) / STUDY).is_file()


def _arms_in(study: Path) -> str:
    from tintype.study.folder import stored_study
    from tintype.study.lab import list_arms

    return list_arms([arm for arm in stored_study(study).arms if arm.role == "arm"])


def _refuse_arm_without_study(plans: Sequence[AnySource | None], arm: str | None, seed: int | None) -> None:
    if (arm is not None or seed is not None) and not any(map(is_study, plans)):
        from tintype.plan import Plan

        named = f"the plan {plans[0].hash}" if isinstance(plans[0], Plan) else plans[0]
        raise UserError(
            f"{option('arm')} and {option('arm-seed')} choose a run of a study, but {named} is not a study",
            "leave them out",
        )
