"""A study as the user writes it, and with all defaults resolved and its arms checked."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise, product
from math import prod
from pathlib import Path
from shlex import quote
from typing import Annotated

import torch
from pydantic import BeforeValidator, Discriminator, Field, Tag, model_validator

from tintype import recipes
from tintype.config.paths import locate, locate_assignments, locate_options
from tintype.config.strict import Document, KeyPath, nearest, parse
from tintype.data.sources import open_held_out, open_source
from tintype.errors import UserError
from tintype.evaluation.early import early_protocol
from tintype.evaluation.fit import Fitted, Problem, data_problems, fit_protocol, readiness_problems, refuse
from tintype.evaluation.presets import expand_in
from tintype.evaluation.protocol import FEWEST, Protocol, definitions
from tintype.metrics import validation
from tintype.model.start import ArmStart
from tintype.plan import Change, Plan, diff, plan_from_document, read_plan, settings_by_key, short_diff
from tintype.runtime.files import Json
from tintype.settings import DataPart, NamesFile, Settings, plain
from tintype.study.analysis import AnalysisSettings
from tintype.study.factorial import Contrast, combinations, contrasts
from tintype.study.looks import SeedPlan
from tintype.study.paired import check_seeds
from tintype.study.results import Role, SeedSet, arm_label, assignments_words
from tintype.study.search import Range, SearchSettings, Tried, check_search, choices, example, words_of
from tintype.study.shares import count_comparisons
from tintype.techniques import TECHNIQUES
from tintype.techniques.apply import Application, apply_techniques, check_arm
from tintype.tokenizers.part import NONE_KNOWN, Known
from tintype.train.guide import guide_problem
from tintype.train.session import check_columns
from tintype.train.start import unfit_settings
from tintype.vision.part import forget_encoders

BASELINE, CONTROL = "baseline", "control"
Seed = Annotated[int, Field(ge=0)]
_SEED_FORMS = {"list": (list, tuple), "plan": (Mapping, SeedPlan)}
Seeds = Annotated[
    Annotated[tuple[Seed, ...], Field(min_length=1), Tag("list")] | Annotated[SeedPlan, Tag("plan")],
    Discriminator(
        lambda value: next((tag for tag, kind in _SEED_FORMS.items() if isinstance(value, kind)), None),
        custom_error_type="seeds",
        custom_error_message="give a list, as [0, 1, 2], or a plan of looks, as {first: 4, most: 16}",
    ),
]
"""The seeds themselves, or a plan by which undecided arms get more."""


RETRIES = 2
"""How often a run is tried again by default."""
PRIMARY = tuple(name for name, one in definitions(Protocol(also=())).items() if one.metric.is_primary)
_SUBJECT = "the study"
_EVALUATION = "evaluation"
_WITHOUT_DISTANCES = (validation.METRIC.name,)
"""Primary where no encoder takes distances."""
SAME_FOR_ALL = ("seed", "data", "run")
"""Settings that all arms of a study share: the pairs of seeds, the images for training and scoring, housekeeping."""


class ArmSettings(Settings):
    """An arm: the baseline with techniques, overrides, or both."""

    name: str | None = Field(None, description="By default its overrides and the names of its techniques")
    set: tuple[str, ...] = Field(
        (), description="Overrides of the baseline, each key.path=value, before its techniques"
    )
    techniques: tuple[str, ...] = Field((), description="Each `name` or `name:key=value,key=value`")

    @model_validator(mode="after")
    def _changes_something(self) -> ArmSettings:
        if not self.set and not self.techniques:
            raise ValueError("an arm needs techniques, or overrides of the baseline in set")
        for assignment in self.set:
            if _section(assignment) in SAME_FOR_ALL:
                raise ValueError(f"set: {assignment}: {', '.join(SAME_FOR_ALL)} are the same for all arms of a study")
        return self

    @property
    def label(self) -> str:
        return self.name or " + ".join((*self.set, *self.techniques))


def _factor(given: object) -> object:
    """Return a factor as the settings of an arm: of its list, `key=value` are overrides and the others techniques."""
    if isinstance(given, str):
        raise ValueError(f"write each factor as a list, [{given}], so that a factor can have several techniques")
    if isinstance(given, Mapping):  # written like an arm, with a name; strict settings take no list for a tuple here
        return {key: tuple(value) if isinstance(value, list) else value for key, value in given.items()}
    if not isinstance(given, list):
        return given
    if not given or not all(isinstance(spec, str) for spec in given):
        raise ValueError("a factor is a list of techniques and overrides, for example [repa] or [optimizer.lr=1e-3]")
    overrides = tuple(spec for spec in given if "=" in spec.partition(":")[0])
    return {"set": overrides, "techniques": tuple(spec for spec in given if spec not in overrides)}


def _combined(factors: Sequence[ArmSettings]) -> ArmSettings:
    """Return the arm that has several factors. Two that set one key would silently be the last one alone."""
    keys = [(assignment.partition("=")[0].strip(), factor) for factor in factors for assignment in factor.set]
    for (key, factor), (other, another) in product(keys, keys):
        if factor is not another and f"{other}.".startswith(f"{key}."):
            raise UserError(f"the factors '{factor.label}' and '{another.label}' both set {key}; leave one of them out")
    return ArmSettings(
        name=" + ".join(factor.label for factor in factors),
        set=tuple(assignment for factor in factors for assignment in factor.set),
        techniques=tuple(spec for factor in factors for spec in factor.techniques),
    )


def _located_technique(spec: str, folder: Path) -> str:
    technique = TECHNIQUES.get(spec.partition(":")[0])
    return locate_options(spec, [technique.options], folder) if technique else spec


def _section(assignment: str) -> str:
    return assignment.partition("=")[0].partition(".")[0].strip()


def _repeated(names: Sequence[str]) -> str:
    """Return the names that are given twice."""
    return ", ".join(sorted({name for name in names if names.count(name) > 1}))


def _check_score_at(score_at: Sequence[int | float]) -> None:
    """Refuse what is neither a share of training nor a step."""
    for one in score_at:
        if not (one >= 1 if isinstance(one, int) else 0 < one <= 1):
            raise ValueError(
                f"score_at: {one} is neither a share of training (above 0, at most 1.0) nor a step (a whole number "
                "from 1 on)"
            )


def _distances(protocol: Protocol) -> tuple[str, ...]:
    """Return the protocol's first distance on each of its encoders."""
    return tuple(f"{protocol.metrics[0]}_{encoder.title}" for encoder in protocol.encoders) if protocol.metrics else ()


class ResolutionSettings(Settings):
    """The baseline with another number of tokens: larger images, or smaller patches."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9-]*$", description="Follows the arms' names")
    set: tuple[str, ...] = Field((), description="Overrides of the baseline, each key.path=value, after the study's")


MOST_TUNING_PLANS = 64
"""For one arm and a grid: values times seeds."""


class StudySettings(Settings):
    """A study as a file: a baseline, arms that each change something, seeds, and how they are scored and compared."""

    question: str = Field(description="The question in a sentence; it heads the report")
    recipe: Annotated[str, NamesFile(lambda name: name in recipes.names("plans"))] = Field(
        description="The baseline: a named recipe or the path of a plan"
    )
    set: tuple[str, ...] = Field((), description="Overrides of the baseline, each key.path=value")
    seeds: Seeds = Field(description="A list, or {first: 4, most: 16}: undecided arms get more seeds in planned looks")
    resolutions: tuple[ResolutionSettings, ...] = Field(
        (), description="Every arm runs at each; two or more, or none for the baseline's own"
    )
    control_seeds: tuple[Seed, ...] = Field((), description="Seeds of the A/A control; as many as seeds, or none")
    arms: tuple[ArmSettings, ...] = Field((), description="Each with techniques, overrides, or both")
    factorial: tuple[Annotated[ArmSettings, BeforeValidator(_factor)], ...] = Field(
        (), description="Factors, each a list of techniques and overrides: their combinations become arms"
    )
    tune: dict[str, Tried] = Field(
        {},
        description="Values of settings, key.path: [values] or a range; the best are chosen for the baseline and each "
        "arm",
    )
    tune_by: SearchSettings = Field(SearchSettings(), description="How the values of tune are tried")
    tune_seeds: tuple[Seed, ...] = Field(
        (90_001, 90_002), min_length=1, description="Seeds that the values of tune are tried with"
    )
    primary: tuple[str, ...] = Field(
        PRIMARY,
        min_length=1,
        description="The metrics of the question; for data without scenes, by default the first of each encoder",
    )
    evaluation: Protocol = Field(Protocol(), description="How every run is scored")
    score_at: tuple[int | float, ...] = Field(
        (), description="When to score before the end too: shares of training (0.25, 0.5) or steps (whole numbers)"
    )
    score_count: int | None = Field(
        None, ge=FEWEST, description="Images of each of these scores; by default a quarter of count, at least 128"
    )
    analysis: AnalysisSettings = Field(AnalysisSettings(), description="How arms are compared")
    retries: int = Field(
        RETRIES, ge=0, description="How often a run whose process dies is tried again without getting any further"
    )

    @model_validator(mode="after")
    def _consistent(self) -> StudySettings:
        all_seeds = (*self.every_seed.seeds, *self.every_seed.control_seeds)
        if isinstance(self.seeds, SeedPlan) and self.control_seeds:
            raise ValueError("control_seeds: with seeds {first, most} the control's seeds are chosen; leave them out")
        if len(set(all_seeds)) != len(all_seeds):
            raise ValueError("a seed is given twice; seeds and control_seeds must all differ")
        if isinstance(self.seeds, tuple) and self.control_seeds and len(self.control_seeds) != len(self.seeds):
            raise ValueError(f"control_seeds needs {len(self.seeds)} seeds like seeds, or none")
        if again := _repeated(self.primary):
            raise ValueError(f"primary: {again} is given twice; name each metric once")
        _check_score_at(self.score_at)
        if self.score_count is not None and not self.score_at:
            raise ValueError("score_count is the number of images of the scores at score_at, which is empty")
        names = [resolution.name for resolution in self.resolutions]
        if len(names) == 1:
            raise ValueError(f"resolutions: '{names[0]}' is the only one; give another, or put its overrides into set")
        if again := _repeated(names):
            raise ValueError(f"two resolutions are called {again}; give one of them another name")
        if again := _repeated([BASELINE, CONTROL, *(arm.label for arm in self.arms)]):
            raise ValueError(f"two arms are called {again}; give one of them another name")
        self._check_factors()
        self._check_tune()
        return self

    @property
    def every_seed(self) -> SeedSet:
        """Return the seeds that arms and the control have, or may get at the last of the planned looks."""
        if isinstance(self.seeds, SeedPlan):
            return SeedSet(seeds=list(self.seeds.seeds), control_seeds=list(self.seeds.control_seeds))
        return SeedSet(seeds=list(self.seeds), control_seeds=list(self.control_seeds))

    def _check_factors(self) -> None:
        labels = [factor.label for factor in self.factorial]
        if len(labels) == 1:
            raise ValueError(f"factorial: '{labels[0]}' is the only factor; give another, or put it into arms")
        if again := _repeated(labels):
            raise ValueError(f"factorial: two factors are called {again}; give each another name or take one out")
        names = {" + ".join(labels[index] for index in chosen) for chosen in combinations(len(labels))}
        taken = names.intersection([BASELINE, CONTROL, *(arm.label for arm in self.arms)])
        if taken:
            raise ValueError(
                f"factorial: '{min(taken)}' is one of its combinations already; take it out of arms, or give it "
                "another name"
            )

    def _check_tune(self) -> None:
        for key, values in self.tune.items():
            if _section(key) in SAME_FOR_ALL:
                raise ValueError(f"tune: {key}: {', '.join(SAME_FOR_ALL)} are the same for all arms of a study")
            if not isinstance(values, Range) and (again := _repeated([json.dumps(value) for value in values])):
                raise ValueError(f"tune: {key}: {again} is given twice")
        check_search(self.tune, self.tune_by)
        if again := _repeated([str(seed) for seed in self.tune_seeds]):
            raise ValueError(f"tune_seeds: {again} is given twice")
        shared = sorted({*self.tune_seeds} & {*self.every_seed.seeds, *self.every_seed.control_seeds})
        if self.tune and shared:
            raise ValueError(
                f"tune_seeds: {', '.join(map(str, shared))} is among seeds or control_seeds; tune on other seeds than "
                "those that are compared, or the values would be chosen for their luck"
            )
        lists = [len(values) for values in self.tune.values() if not isinstance(values, Range)]
        plans = prod(lists) * len(self.tune_seeds)
        if self.tune and self.tune_by.kind == "grid" and plans > MOST_TUNING_PLANS:
            raise ValueError(
                f"tune: {plans} runs for each arm ({' × '.join(map(str, lists))} values × "
                f"{len(self.tune_seeds)} seeds), and at most {MOST_TUNING_PLANS} are allowed; take fewer values, keys "
                "or tune_seeds"
            )

    @property
    def tuning_trials(self) -> int:
        """Return the trials of each arm; none in a study without `tune`."""
        if not self.tune:
            return 0
        return self.tune_by.trials or prod(len(one) for one in self.tune.values() if not isinstance(one, Range))

    def all_arms(self) -> list[tuple[KeyPath, Sequence[ArmSettings]]]:
        """Return each arm as the factors that it combines, with its place in the file; one of `arms` is one factor."""
        listed: list[tuple[KeyPath, Sequence[ArmSettings]]] = [
            (("arms", index), [arm]) for index, arm in enumerate(self.arms)
        ]
        for chosen in combinations(len(self.factorial)):
            place: KeyPath = ("factorial", *chosen) if len(chosen) == 1 else ("factorial",)
            listed.append((place, [self.factorial[index] for index in chosen]))
        return listed

    def located(self, folder: Path) -> StudySettings:
        """Return the study with the files that it names located: in `folder`, or in the working directory."""
        given = self.model_dump(mode="json", exclude_unset=True)
        found = locate(given, [StudySettings], folder)
        arms = [*found.get("arms", []), *found.get("factorial", [])]
        for one in (found, *found.get("resolutions", []), *arms):
            one["set"] = list(locate_assignments(one.get("set", []), [Plan], folder))
        for arm, before in zip(arms, (*self.arms, *self.factorial), strict=True):
            arm["techniques"] = [_located_technique(spec, folder) for spec in before.techniques]
            if (*arm["set"], *arm["techniques"]) != (*before.set, *before.techniques):
                arm["name"] = before.label
        return StudySettings.model_validate_json(json.dumps(found))

    def on(self, data: DataPart) -> tuple[StudySettings, Fitted]:
        """Choose what depends on the data and was not given: the protocol and the primary metrics.

        Return the notes and problems of that choice too.
        """
        fitted = fit_protocol(self.evaluation, data)
        known = definitions(fitted.protocol, data.of_scenes)
        named = data.of_scenes or "primary" in self.model_fields_set
        usual = _distances(fitted.protocol) or _WITHOUT_DISTANCES
        primary = self.primary if named else usual
        problems = [one.within("evaluation") for one in fitted.problems]
        for name in primary:
            if name not in known and name in definitions(self.evaluation):
                text = (
                    f"primary: '{name}' exists for the embedded scenes only, and the data are of the kind {data.kind}"
                )
                problems.append(Problem(text, (f"primary=[{', '.join(usual)}]",)))
            elif name not in known:
                raise UserError(f"primary: unknown metric '{name}'; {nearest(name, known)}")
        control, resolutions = bool(self.every_seed.control_seeds), max(1, len(self.resolutions))
        between = len(contrasts([factor.label for factor in self.factorial]))
        counts = count_comparisons(
            len(self.all_arms()), control, resolutions, primary, list(known), between, self.analysis
        )
        fewest = self.seeds.first if isinstance(self.seeds, SeedPlan) else len(self.seeds)
        check_seeds(fewest, counts, self.analysis)
        settings = self.model_copy(update={"primary": primary, "evaluation": fitted.protocol})
        return settings, replace(fitted, problems=tuple(problems))


@dataclass(frozen=True)
class Candidate:
    """An arm with one choice of the values of `tune`."""

    values: Mapping[str, Json]
    """By dotted key."""
    plans: tuple[Plan, ...]
    """One for each tuning seed."""

    @property
    def words(self) -> str:
        return assignments_words(self.values)


@dataclass(frozen=True)
class Along:
    """When a run is scored before its end, and how it is then."""

    steps: tuple[int, ...]
    """Ascending, the last step not among them: the end is always scored."""
    protocol: Protocol


@dataclass(frozen=True)
class ArmPlan:
    """An arm at one resolution, with one plan for each of its seeds."""

    name: str
    role: Role
    applications: tuple[Application, ...]
    changes: dict[str, Change]
    plans: tuple[Plan, ...]
    resolution: str = ""
    """Empty in a study of one."""
    overrides: tuple[str, ...] = ()
    decisions: dict[str, Change] = field(default_factory=dict)
    """The changes for readers: a part that is added or removed is one change."""
    candidates: tuple[Candidate, ...] = ()
    """The choices of `tune` that are tried; those of a control are the baseline's."""
    chosen: int | None = None
    """Index of the candidate whose values `plans` have; None before the choice, and in a study without `tune`."""
    candidate: Callable[[Mapping[str, Json]], Candidate] | None = field(default=None, compare=False, repr=False)
    """Makes the arm with a choice of values; None in a study without `tune`."""

    @property
    def label(self) -> str:
        """Return its name with its resolution, where the study has several."""
        return arm_label(self.name, self.resolution)

    @property
    def tokens(self) -> int:
        return token_count(self.plans[0])

    @property
    def parent(self) -> str:
        """Return the name of the arm that it starts from; empty where it starts from none."""
        start = self.plans[0].start
        return start.name if isinstance(start, ArmStart) else ""

    @property
    def summary(self) -> str:
        if self.role == "control":
            return "the baseline with other seeds: any difference is chance"
        summaries = [application.technique.summary for application in self.applications]
        return "; ".join([*self.overrides, *summaries]) or "the baseline's plan, unchanged"


@dataclass(frozen=True, repr=False)
class Study:
    """A study with the plans of all its runs."""

    name: str
    settings: StudySettings
    arms: tuple[ArmPlan, ...]
    """The baseline, the control if there is one, then the others; so at each resolution, fewest tokens first."""
    notes: tuple[str, ...] = ()
    """On how the evaluation was fitted to the data."""
    baselines: Mapping[str, Plan] = field(default_factory=dict)
    """The baselines with seed 0 by resolution, before tuning; in a study of one, its name is ''."""

    def __repr__(self) -> str:
        arms, runs = ", ".join(arm.label for arm in self.arms), sum(len(arm.plans) for arm in self.arms)
        return f"<Study {self.name}: {self.settings.question} Arms: {arms}. Runs: {runs}>"

    def by_resolution(self) -> list[list[ArmPlan]]:
        """Return the arms of each resolution, the baseline first."""
        names = dict.fromkeys(arm.resolution for arm in self.arms)
        return [[arm for arm in self.arms if arm.resolution == name] for name in names]

    def contrasts(self) -> list[tuple[list[ArmPlan], Contrast]]:
        """Return the contrasts between factorial arms, each with the arms of its resolution. All its arms are there."""
        found = contrasts([factor.label for factor in self.settings.factorial])
        return [
            (arms, one)
            for arms in self.by_resolution()
            for one in found
            if set(one.weights) <= {"", *(arm.name for arm in arms)}
        ]

    def compared(self) -> list[tuple[ArmPlan, ArmPlan]]:
        """Return each arm and control with the baseline of its resolution."""
        return [(arm, baseline) for baseline, *others in self.by_resolution() for arm in others]

    def along(self, plan: Plan) -> Along | None:
        """Return when a run of the study is scored before its end; None in a study without `score_at`."""
        settings = self.settings
        if not settings.score_at:
            return None
        protocol = early_protocol(settings.evaluation, settings.primary, settings.score_count)
        return Along(_early_steps(settings.score_at, plan.train.steps), protocol)

    @property
    def of_scenes(self) -> bool:
        """Return whether the data are scenes, and so have the metrics of scenes. All arms have the same data."""
        return self.arms[0].plans[0].data.of_scenes


def _early_steps(score_at: Sequence[int | float], steps: int) -> tuple[int, ...]:
    """Return the steps before the last one at which a run of so many is scored. A share is at least one step."""
    found = {one if isinstance(one, int) else max(1, round(one * steps)) for one in score_at}
    return tuple(sorted(found - {steps}))


def token_count(plan: Plan) -> int:
    return prod(plan.token_grid)


def load_study(name: str, assignments: Sequence[str] = ()) -> Study:
    """Load a packaged study or a file. `assignments` override keys of the study, for example seeds=[0,1]."""
    return study_from_document(recipes.find("studies", name), Path(name).stem, assignments, Path(name).parent)


def study_from_document(
    document: Document,
    name: str,
    assignments: Sequence[str] = (),
    folder: Path | None = None,
    baselines: Mapping[str, Plan] | None = None,
) -> Study:
    """Return the study of a document with overrides. Files that it names are looked for in `folder`.

    `baselines` are given, by resolution, where they are not plans that its recipe names.
    """
    expand_in(_EVALUATION, document)
    for assignment in assignments:
        document.override(assignment)
    expand_in(_EVALUATION, document)  # an override can name a preset too
    settings = parse(StudySettings, document)
    return resolve(name, settings if folder is None else settings.located(folder), baselines, document.place)


def remake_study(folder: Path) -> str:
    """Return what to do about a damaged file of a study, as the end of a sentence."""
    return f"`tintype ablate STUDY --out {quote(str(folder))}`, with the study's own file and settings, writes it again"


def read_settings(document: Document, folder: Path) -> StudySettings:
    """Return a study that was stored in `folder`, with its prompt files."""
    settings = parse(StudySettings, document)
    return settings.model_copy(update={"evaluation": settings.evaluation.with_prompts_in(folder)})


Place = Callable[[KeyPath], str]
"""Return the place of a key of a study: the line of its file, or the override on the command line."""


def resolve(
    name: str,
    settings: StudySettings,
    baselines: Mapping[str, Plan] | None = None,
    place: Place = lambda path: "the study",
    known: Known = NONE_KNOWN,
) -> Study:
    """Return the study with all its plans.

    `baselines` are given, by resolution, for a study that was begun: its recipe may have changed. `known` has the
    folders of tokenizers that may not be on this machine.
    """
    baselines = baselines or _baselines(settings, place)
    ordered = sorted(baselines.items(), key=lambda item: token_count(item[1]))
    for (first, plan), (second, other) in pairwise(ordered):
        if token_count(plan) == token_count(other):
            raise UserError(
                f"the resolutions '{first}' and '{second}' both have {token_count(plan)} tokens; "
                "change data.size_px or model.patch in one of them"
            )
    if len({plan.data.kind for plan in baselines.values()}) > 1:
        raise UserError("the resolutions have data of several kinds, which are scored differently; give all one kind")
    settings, fitted = settings.on(ordered[0][1].data)
    arms = [arm for resolution, baseline in ordered for arm in _arms_at(resolution, baseline, settings, place, known)]
    _refuse_twins(arms)
    own = {arm.resolution: _seeded(arm.plans[0], [0])[0] for arm in arms if arm.role == "baseline"}
    study = Study(name, settings, tuple(arms), fitted.notes, own)
    _refuse_late_scores(study)
    _refuse_missing_guides(study)
    if fitted.problems:
        refuse([*fitted.problems, *_data_problems(study)], _SUBJECT)
    return study


def check_study(study: Study, trained: Collection[str] = ()) -> None:
    """Refuse a study that cannot be trained or scored on its data, with all reasons at once. Fetches the encoders.

    `trained` has the hashes of plans that need no more training.
    """
    data = [plan.data for plan in study.baselines.values()]
    problems = readiness_problems(study.settings.evaluation, data, torch.device("cpu"))
    forget_encoders()
    refuse([*(one.within("evaluation") for one in problems), *_caption_problems(study, trained)], _SUBJECT)


def _data_problems(study: Study) -> list[Problem]:
    """List what does not fit the data, of the evaluation and the arms; nothing where the data is not there."""
    protocol, data = study.settings.evaluation, [plan.data for plan in study.baselines.values()]
    if not all(one.at_hand for one in data):
        return []
    sources = [(one, open_held_out(one, protocol.held_out_count, torch.device("cpu"))) for one in data]
    found = [problem for one, source in sources for problem in data_problems(one, source, protocol)]
    found += _shape_problems(study) if protocol.shaped else []
    return [*dict.fromkeys(one.within("evaluation") for one in found), *_caption_problems(study)]


def _shape_problems(study: Study) -> list[Problem]:
    """List arms whose held-out images would have other shapes than their baseline's."""
    return [
        Problem(f"shapes: buckets, but arm '{arm.label}' has other data.buckets than the baseline", ("shapes=square",))
        for arm in study.arms
        if arm.plans[0].data.scored.shapes != study.baselines[arm.resolution].data.scored.shapes
    ]


def _caption_problems(study: Study, trained: Collection[str] = ()) -> list[Problem]:
    """List arms that read captions which the data does not have."""
    found = []
    for arm in study.arms:
        for plan in arm.plans:
            if plan.hash not in trained:
                try:
                    check_columns(plan, open_source(plan.data, "train", torch.device("cpu")))
                except UserError as error:
                    found.append(Problem(f"arm '{arm.label}': {error}. Choose other arms with --arm, or add captions"))
    return list(dict.fromkeys(found))


def _baselines(settings: StudySettings, place: Place) -> dict[str, Plan]:
    """Return the baselines by resolution; without any, the one baseline is called ''."""
    own, plans = _set_labels(settings.set, ("set",), place), {}
    for index, (name, overrides) in enumerate([(one.name, one.set) for one in settings.resolutions] or [("", ())]):
        labels = [*own, *_set_labels(overrides, ("resolutions", index, "set"), place)]
        with _named(name):
            plans[name] = read_plan(settings.recipe, [*settings.set, *overrides], labels)
    return plans


def _set_labels(assignments: Sequence[str], path: KeyPath, place: Place) -> list[str]:
    """Return what stands before each assignment in messages."""
    return [f"{place((*path, index))}: set " for index in range(len(assignments))]


def _named(resolution: str) -> AbstractContextManager[None]:
    """Name the resolution in what is refused at one of several."""
    return _before_errors(f"at resolution '{resolution}': " if resolution else "")


@contextmanager
def _before_errors(words: str) -> Iterator[None]:
    try:
        yield
    except UserError as error:
        raise UserError(f"{words}{error}") from None


def _arms_at(resolution: str, baseline: Plan, settings: StudySettings, place: Place, known: Known) -> list[ArmPlan]:
    every, tuned = settings.every_seed, partial(_tuned_baseline, baseline, settings, resolution, place)
    grid = [tuned(values) for values in choices(settings.tune, settings.tune_by, settings.tune_seeds[0])]
    checked = grid or ([tuned(example(settings.tune))] if settings.tune else [])

    def plain_candidate(values: Mapping[str, Json]) -> Candidate:
        found, plan = tuned(values)
        return Candidate(found, _seeded(plan, settings.tune_seeds))

    candidates = tuple(Candidate(values, _seeded(plan, settings.tune_seeds)) for values, plan in grid)
    make = plain_candidate if settings.tune else None
    plans = _seeded(baseline, every.seeds)
    arms = [ArmPlan(BASELINE, "baseline", (), {}, plans, resolution, candidates=candidates, candidate=make)]
    if every.control_seeds:
        plans = _seeded(baseline, every.control_seeds)
        arms.append(ArmPlan(CONTROL, "control", (), {}, plans, resolution, candidates=candidates, candidate=make))
    for path, factors in settings.all_arms():
        with _before_errors(f"{place(path)}: arm '{' + '.join(factor.label for factor in factors)}': "):
            arm = _combined(factors) if len(factors) > 1 else factors[0]
            found = _resolve_arm(arm, baseline, every.seeds, resolution, known)
            of_arm = partial(_arm_candidate, arm, settings, resolution, known)
            tried = tuple(of_arm(one) for one in checked)
            make = partial(_made, of_arm, tuned) if settings.tune else None
            arms.append(replace(found, candidates=tried if grid else (), candidate=make))
    with _named(resolution):
        return _link_arms(arms)


_Tuned = tuple[Mapping[str, Json], Plan]
"""Values of `tune`, and the baseline with them."""


def _tuned_baseline(
    baseline: Plan, settings: StudySettings, resolution: str, place: Place, values: Mapping[str, Json]
) -> _Tuned:
    """Return the baseline with a choice of the values of `tune`."""
    labels = [f"{place(('tune', key))}: tune " for key in values]
    assignments = [f"{key}={json.dumps(value)}" for key, value in values.items()]
    with _named(resolution):
        plan = plan_from_document(Document("the baseline", plain(baseline)), assignments, labels)
    resolved = settings_by_key(plan)
    return {key: resolved[key] for key in values}, plan


def _made(
    of_arm: Callable[[_Tuned], Candidate], tuned: Callable[[Mapping[str, Json]], _Tuned], values: Mapping[str, Json]
) -> Candidate:
    return of_arm(tuned(values))


def _arm_candidate(
    arm: ArmSettings, settings: StudySettings, resolution: str, known: Known, tuned: _Tuned
) -> Candidate:
    """Return the arm with a choice of the values of `tune`. It comes after them, and must leave them as they are."""
    values, baseline = tuned
    found = _resolve_arm(arm, baseline, settings.tune_seeds, resolution, known)
    if found.parent:
        raise UserError(
            f"it starts from the arm '{found.parent}', and with tune the run to start from is known only after the "
            "tuning; take tune out, or make the arm a study of its own that starts from a trained run"
        )
    resolved = settings_by_key(found.plans[0])
    for key, value in values.items():
        if resolved.get(key) != value:
            what = f"sets {key} itself, to {json.dumps(resolved[key])}" if key in resolved else f"has no {key}"
            raise UserError(
                f"it {what}, and tune is to choose it among {words_of(settings.tune[key])} for each arm alike; leave "
                f"it out of the arm, or take {key} out of tune"
            )
    return Candidate(values, found.plans)


def with_choices(study: Study, choices: Mapping[str, int]) -> Study:
    """Return the study with the chosen values of `tune`, by the labels of the arms: the index of the candidate.

    The diff of an arm is then one against the baseline with its own choice, so it may have the tuned keys too. That an
    arm changes what it declares and nothing else was checked at each value, with the same for the baseline.
    """
    arms = []
    for group in study.by_resolution():
        chosen = choices[group[0].label]
        baseline = group[0].candidates[chosen].plans[0]
        for arm in group:
            index = chosen if arm.role == "control" else choices[arm.label]
            plan = arm.candidates[index].plans[0]
            given = [key for application in arm.applications for key in application.given]
            arms.append(
                replace(
                    arm,
                    plans=_seeded(plan, [one.seed for one in arm.plans]),
                    changes=diff(baseline, plan),
                    decisions=short_diff(baseline, plan, given),
                    chosen=index,
                )
            )
    return replace(study, arms=tuple(arms))


def _link_arms(arms: Sequence[ArmPlan]) -> list[ArmPlan]:
    """Fill in the plans that arms start from: each starts from the run of its own seed."""
    known = {arm.name: arm for arm in arms}
    linked: dict[str, ArmPlan] = {}

    def link(arm: ArmPlan, followers: tuple[str, ...]) -> ArmPlan:
        if arm.name in followers:
            raise UserError(f"arm '{arm.name}' would start from itself ({' from '.join((*followers, arm.name))})")
        if arm.name not in linked:
            parent = arm.parent and link(_find_parent(arm.name, arm.parent, known), (*followers, arm.name))
            linked[arm.name] = _with_parent(arm, parent) if parent else arm
        return linked[arm.name]

    return [link(arm, ()) for arm in arms]


def _find_parent(arm: str, name: str, known: Mapping[str, ArmPlan]) -> ArmPlan:
    possible = [one for one, found in known.items() if found.role != "control"]
    if name not in possible:
        hint = "the control has other seeds" if name in known else nearest(name, possible)
        raise UserError(f"arm '{arm}' cannot start from the arm '{name}'; {hint}")
    return known[name]


def _with_parent(arm: ArmPlan, parent: ArmPlan) -> ArmPlan:
    if reasons := unfit_settings(arm.plans[0], parent.plans[0]):
        raise UserError(
            f"arm '{arm.name}' cannot start from the arm '{parent.name}', whose weights do not fit: {reasons}"
        )
    plans = []
    for plan, before in zip(arm.plans, parent.plans, strict=True):
        assert plan.start is not None and plan.seed == before.seed
        plans.append(plan.model_copy(update={"start": plan.start.model_copy(update={"plan": before.hash})}))
    return replace(arm, plans=tuple(plans))


def _refuse_twins(arms: Sequence[ArmPlan]) -> None:
    first_with: dict[str, str] = {}
    for arm in arms:
        twin = first_with.setdefault(arm.plans[0].hash, arm.label)
        if twin != arm.label:
            raise UserError(f"the arms '{twin}' and '{arm.label}' have the same plan; take one of them out")


def _refuse_late_scores(study: Study) -> None:
    for arm in study.arms:
        last = arm.plans[0].train.steps
        if late := [one for one in study.settings.score_at if isinstance(one, int) and one > last]:
            raise UserError(
                f"score_at: step {late[0]:,} comes after the last step of arm '{arm.label}', {last:,}; give earlier "
                "steps, or shares of training, which are of each arm's own steps"
            )


def _refuse_missing_guides(study: Study) -> None:
    """Refuse an evaluation whose guidance needs earlier weights that the runs of an arm will not have."""
    guides = {one.sampler.guidance.guide for one in study.settings.evaluation.conditions} - {None}
    for arm in study.arms if guides else ():
        plan = arm.plans[0]
        along = study.along(plan)
        for guide in guides:
            if guide is not None and (problem := guide_problem(plan, guide, along.steps if along else ())):
                raise UserError(f"arm '{arm.label}': {problem}")


def choose_arms(study: Study, names: Sequence[str]) -> Study:
    """Return the study with only these arms, at all its resolutions (and the baselines, and the arms' parents)."""
    known = dict.fromkeys(arm.name for arm in study.arms)
    for name in names:
        if name not in known:
            raise UserError(f"unknown arm '{name}'; {nearest(name, known)}")
    wanted = set(names)
    while missing := {arm.parent for arm in study.arms if arm.name in wanted and arm.parent} - wanted:
        wanted |= missing
    kept = tuple(arm for arm in study.arms if arm.role == "baseline" or arm.name in wanted)
    return replace(study, arms=kept)


def _resolve_arm(arm: ArmSettings, baseline: Plan, seeds: Sequence[int], resolution: str, known: Known) -> ArmPlan:
    applications = tuple(Application.parse(spec, known) for spec in arm.techniques)
    declared = set(map(_section, arm.set)).union(*(application.technique.seams for application in applications))
    with _named(resolution):
        plan = plan_from_document(Document("the baseline", plain(baseline)), arm.set, ["set "] * len(arm.set), known)
        plan = apply_techniques(plan, applications, arm.set, "set ")
        changes = check_arm("it", baseline, plan, declared)
        _refuse_other_held_out(baseline, plan)
    decisions = short_diff(baseline, plan, [key for application in applications for key in application.given])
    return ArmPlan(arm.label, "arm", applications, changes, _seeded(plan, seeds), resolution, arm.set, decisions)


def _refuse_other_held_out(baseline: Plan, plan: Plan) -> None:
    """Refuse an arm that would be scored against other images than the baseline."""
    old, new = (plain(one.data.held_out(1)) for one in (baseline, plan))
    if old != new:
        keys = [key for key in {**old, **new} if old.get(key) != new.get(key)]
        shown = "; ".join(f"{key}: {old.get(key)} for the baseline, {new.get(key)} for the arm" for key in keys)
        raise UserError(
            f"it would be scored against other held-out images than the baseline ({shown}); put other training data "
            "into a mixture, with the baseline's data as the source that is evaluated"
        )


def _seeded(plan: Plan, seeds: Sequence[int]) -> tuple[Plan, ...]:
    return tuple(plan.model_copy(update={"seed": seed}) for seed in seeds)
