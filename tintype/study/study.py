"""A study as the user writes it, and as it is after all defaults are resolved and its arms are checked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import Field, model_validator

from tintype import recipes
from tintype.errors import UserError
from tintype.evaluation.protocol import Protocol, definitions
from tintype.plan import Application, Change, Plan, apply_techniques, check_arm, plan_from_document
from tintype.settings import Settings
from tintype.strict import Document, nearest, parse
from tintype.study.results import Role
from tintype.study.verdicts import AnalysisSettings, check_seeds

BASELINE, CONTROL = "baseline", "control"
Seed = Annotated[int, Field(ge=0)]


class ArmSettings(Settings):
    name: str | None = Field(None, description="By default the names of its techniques")
    techniques: tuple[str, ...] = Field(min_length=1, description="Each `name` or `name:key=value,key=value`")

    @property
    def label(self) -> str:
        return self.name or " + ".join(self.techniques)


class StudySettings(Settings):
    question: str
    recipe: str = Field(description="The baseline: a named recipe or the path of a plan")
    set: tuple[str, ...] = Field((), description="Overrides of the baseline, each key.path=value")
    seeds: tuple[Seed, ...] = Field(min_length=1)
    control_seeds: tuple[Seed, ...] = Field((), description="Seeds of the A/A control; as many as seeds, or none")
    arms: tuple[ArmSettings, ...] = ()
    primary: tuple[str, ...] = Field(("scene_accuracy", "fd_scenes"), min_length=1, description="What the study asks")
    evaluation: Protocol = Protocol()
    analysis: AnalysisSettings = AnalysisSettings()

    @model_validator(mode="after")
    def _consistent(self) -> StudySettings:
        all_seeds = (*self.seeds, *self.control_seeds)
        if len(set(all_seeds)) != len(all_seeds):
            raise ValueError("a seed is given twice; seeds and control_seeds must all differ")
        if self.control_seeds and len(self.control_seeds) != len(self.seeds):
            raise ValueError(f"control_seeds needs {len(self.seeds)} seeds like seeds, or none")
        known = definitions(self.evaluation)
        for name in self.primary:
            if name not in known:
                raise ValueError(f"primary: unknown metric '{name}'; {nearest(name, known)}")
        arms = len(self.arms) + bool(self.control_seeds)
        check_seeds(len(self.seeds), arms, len(self.primary), len(known) - len(self.primary), self.analysis)
        labels = [BASELINE, CONTROL, *(arm.label for arm in self.arms)]
        twice = {label for label in labels if labels.count(label) > 1}
        if twice:
            raise ValueError(f"two arms are called {', '.join(sorted(twice))}; give one of them another name")
        return self


@dataclass(frozen=True)
class ArmPlan:
    """An arm with one plan for each of its seeds."""

    name: str
    role: Role
    applications: tuple[Application, ...]
    changes: dict[str, Change]
    plans: tuple[Plan, ...]

    @property
    def summary(self) -> str:
        if self.role == "control":
            return "the baseline again with other seeds: any difference is chance"
        return "; ".join(application.technique.summary for application in self.applications) or "as it is"


@dataclass(frozen=True)
class Study:
    name: str
    settings: StudySettings
    arms: tuple[ArmPlan, ...]
    """The baseline, the control if there is one, then the others."""


def load_study(name: str, assignments: Sequence[str] = ()) -> Study:
    """A packaged study or a file. `assignments` override keys of the study, for example seeds=[0,1]."""
    document = recipes.find("studies", name)
    for assignment in assignments:
        document.override(assignment)
    return resolve(Path(name).stem, document, Path(name).parent)


def resolve(name: str, document: Document, folder: Path, baseline: Plan | None = None) -> Study:
    """The study with all its plans. Prompt files are looked for from `folder`.

    `baseline` is given for a study that was begun: its recipe may have changed.
    """
    settings = parse(StudySettings, document)
    settings = settings.model_copy(update={"evaluation": settings.evaluation.with_prompts_in(folder)})
    baseline = baseline or plan_from_document(recipes.find("plans", settings.recipe), settings.set)
    arms = [ArmPlan(BASELINE, "baseline", (), {}, _seeded(baseline, settings.seeds))]
    if settings.control_seeds:
        arms.append(ArmPlan(CONTROL, "control", (), {}, _seeded(baseline, settings.control_seeds)))
    arms += [_resolve_arm(arm, baseline, settings.seeds) for arm in settings.arms]
    _refuse_twins(arms)
    return Study(name, settings, tuple(arms))


def _refuse_twins(arms: Sequence[ArmPlan]) -> None:
    first_with: dict[str, str] = {}
    for arm in arms:
        twin = first_with.setdefault(arm.plans[0].hash, arm.name)
        if twin != arm.name:
            raise UserError(f"the arms '{twin}' and '{arm.name}' have the same plan; take one of them out")


def choose_arms(study: Study, names: Sequence[str]) -> Study:
    """The study with only these arms (and the baseline)."""
    known = [arm.name for arm in study.arms]
    for name in names:
        if name not in known:
            raise UserError(f"unknown arm '{name}'; {nearest(name, known)}")
    kept = tuple(arm for arm in study.arms if arm.role == "baseline" or arm.name in names)
    return Study(study.name, study.settings, kept)


def _resolve_arm(arm: ArmSettings, baseline: Plan, seeds: Sequence[int]) -> ArmPlan:
    applications = tuple(map(Application.parse, arm.techniques))
    plan = apply_techniques(baseline, arm.techniques)
    declared = {application.technique.seam for application in applications}
    changes = check_arm(f"arm '{arm.label}'", baseline, plan, declared)
    return ArmPlan(arm.label, "arm", applications, changes, _seeded(plan, seeds))


def _seeded(plan: Plan, seeds: Sequence[int]) -> tuple[Plan, ...]:
    return tuple(plan.model_copy(update={"seed": seed}) for seed in seeds)
