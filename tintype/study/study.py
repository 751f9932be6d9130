"""Resolve all defaults of a study, and check its arms."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from math import prod
from pathlib import Path
from shlex import quote

import torch

from tintype.config.strict import Document, KeyPath, nearest, parse
from tintype.data.sources import open_held_out, open_source
from tintype.errors import UserError
from tintype.evaluation.early import early_protocol
from tintype.evaluation.fit import Problem, data_problems, readiness_problems, refuse
from tintype.evaluation.presets import completed, default_protocol, expand_in
from tintype.evaluation.protocol import Protocol
from tintype.model.start import ArmStart
from tintype.plan import Change, Plan, diff, plan_from_document, read_plan, settings_by_key, short_diff
from tintype.recipes import packaged
from tintype.runtime.files import Json
from tintype.settings import plain
from tintype.study.factorial import FactorContrast, contrasts
from tintype.study.results import Role, arm_label, assignments_words
from tintype.study.search import choices, example, words_of
from tintype.study.settings import (
    BASELINE,
    CONTROL,
    ArmSettings,
    StudySettings,
    combined,
    section,
)
from tintype.techniques.apply import Application, apply_techniques, check_arm
from tintype.tokenizers.part import NONE_KNOWN, Known
from tintype.train.guide import guide_problem
from tintype.train.session import check_columns
from tintype.train.start import unfit_settings
from tintype.vision.part import forget_encoders
from tintype.wording import option

_SUBJECT, _EVALUATION = "the study", "evaluation"


@dataclass(frozen=True)
class Candidate:
    """An arm with one choice of values of `tune`."""

    values: Mapping[str, Json]
    """By dotted key."""
    plans: tuple[Plan, ...]
    """One plan for each tuning seed."""

    @property
    def words(self) -> str:
        return assignments_words(self.values)


@dataclass(frozen=True)
class Along:
    """The steps at which a run is scored before its end, and the protocol of these scores."""

    steps: tuple[int, ...]
    """Steps in ascending order, without the last step, since the end is always scored."""
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
    """Name of the resolution; empty in a study with one resolution."""
    overrides: tuple[str, ...] = ()
    decisions: dict[str, Change] = field(default_factory=dict)
    """The changes for readers, in which adding or removing a component is a single change."""
    candidates: tuple[Candidate, ...] = ()
    """The choices of `tune` to try; the control uses the baseline's choices."""
    chosen: int | None = None
    """Index of the candidate with the values in `plans`; None before the choice, and in a study without `tune`."""
    candidate: Callable[[Mapping[str, Json]], Candidate] | None = field(default=None, compare=False, repr=False)
    """Function that makes the arm with a choice of values; None in a study without `tune`."""

    @property
    def label(self) -> str:
        """Return the arm's name, with its resolution if the study has several."""
        return arm_label(self.name, self.resolution)

    @property
    def tokens(self) -> int:
        return token_count(self.plans[0])

    @property
    def parent(self) -> str:
        """Return the name of the arm from which this arm starts; empty if there is none."""
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
    """Baseline, control if any, then other arms; in this order for each resolution, with the fewest tokens first."""
    notes: tuple[str, ...] = ()
    """Notes on how the evaluation was adapted to the data."""
    baselines: Mapping[str, Plan] = field(default_factory=dict)
    """The baselines with seed 0 by resolution, before tuning; with a single resolution, its name is ''."""
    made_by: Mapping[str, str] = field(default_factory=dict, compare=False)
    """Commands that make files named in the study's plans, by path; known for a stored study with a README."""

    def __repr__(self) -> str:
        arms, runs = ", ".join(arm.label for arm in self.arms), sum(len(arm.plans) for arm in self.arms)
        return f"<Study {self.name}: {self.settings.question} Arms: {arms}. Runs: {runs}>"

    def by_resolution(self) -> list[list[ArmPlan]]:
        """Return the arms of each resolution, with the baseline first."""
        names = dict.fromkeys(arm.resolution for arm in self.arms)
        return [[arm for arm in self.arms if arm.resolution == name] for name in names]

    def contrasts(self) -> list[tuple[list[ArmPlan], FactorContrast]]:
        """Return the contrasts between factorial arms, each with the arms of a resolution, if all these arms exist."""
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

    def declared(self) -> list[tuple[ArmPlan, ArmPlan]]:
        """Return the pairs of arms that are compared with each other at each resolution, if both arms exist."""
        known = {(arm.name, arm.resolution): arm for arm in self.arms}
        return [
            (known[first, one.resolution], known[second, one.resolution])
            for one in self.arms
            if one.role == "baseline"
            for first, second in self.settings.compare
            if {(first, one.resolution), (second, one.resolution)} <= known.keys()
        ]

    def along(self, plan: Plan) -> Along | None:
        """Return when a run of the study is scored before its end; None in a study without `score_at`."""
        settings = self.settings
        if not settings.score_at:
            return None
        protocol = early_protocol(settings.evaluation, settings.primary, settings.score_count)
        return Along(_early_steps(settings.score_at, plan.train.steps), protocol)

    @property
    def of_scenes(self) -> bool:
        """Return whether the data consists of scenes, for which metrics of scenes exist; all arms share the data."""
        return self.arms[0].plans[0].data.of_scenes


def _early_steps(score_at: Sequence[int | float], steps: int) -> tuple[int, ...]:
    """Return the steps before the last step at which a run is scored; a fraction is at least one step."""
    found = {one if isinstance(one, int) else max(1, round(one * steps)) for one in score_at}
    return tuple(sorted(found - {steps}))


def token_count(plan: Plan) -> int:
    return prod(plan.token_grid)


def load_study(name: str, assignments: Sequence[str] = ()) -> Study:
    """Load a packaged study or a study file. `assignments` override keys of the study, for example seeds=[0,1]."""
    return study_from_document(packaged.find("studies", name), Path(name).stem, assignments, Path(name).parent)


def study_from_document(
    document: Document,
    name: str,
    assignments: Sequence[str] = (),
    folder: Path | None = None,
    baselines: Mapping[str, Plan] | None = None,
) -> Study:
    """Return the study of a document, with paths relative to `folder`; `baselines` replace the recipe's plans."""
    _refuse_stored_copy(document)
    override_study(document, assignments)
    settings = parse(StudySettings, document)
    return resolve(name, settings if folder is None else settings.located(folder), baselines, document.place)


def override_study(document: Document, assignments: Sequence[str]) -> None:
    """Override keys of a study's document, and expand the presets of its evaluation."""
    expand_in(_EVALUATION, document)
    for assignment in assignments:
        document.override(assignment)
    expand_in(_EVALUATION, document)  # an override can name a preset too


def _refuse_stored_copy(document: Document) -> None:
    """Raise if a stored study.yaml was moved away from its folder, since its baseline is then missing."""
    if isinstance(document.data, dict) and document.data.keys() >= {"name", "question", "recipe"}:
        raise UserError(
            f"{document.place(('name',))}: tintype wrote this file into the folder of a study, together with "
            f"the study's baseline (baseline.yaml)",
            "give that folder to run the study again. To begin your own study, remove the line `name`: its "
            f"baseline is then today's recipe '{document.data['recipe']}'",
        )


def remake_study(folder: Path) -> str:
    """Return advice on a damaged file of a study, as the end of a sentence."""
    return f"`tintype ablate STUDY --out {quote(str(folder))}`, with the study's own file and settings, writes it again"


def read_settings(document: Document, folder: Path) -> StudySettings:
    """Return the study that was stored in `folder`, with its prompt files."""
    settings = parse(StudySettings, document)
    return settings.model_copy(update={"evaluation": settings.evaluation.with_prompts_in(folder)})


Place = Callable[[KeyPath], str]
"""Return the place of a study's key, either the line in its file or the override on the command line."""


def resolve(
    name: str,
    settings: StudySettings,
    baselines: Mapping[str, Plan] | None = None,
    place: Place = lambda path: "the study",
    known: Known = NONE_KNOWN,
) -> Study:
    """Return the study with all its plans.

    `baselines` belong to a study that has begun, since its recipe may have changed. `known` tokenizers may be missing
    here.
    """
    if baselines is None:
        baselines = _baselines(settings, place)
        default = default_protocol(next(iter(baselines.values())))
        settings = settings.model_copy(update={_EVALUATION: completed(settings.evaluation, default)})
    ordered = sorted(baselines.items(), key=lambda item: token_count(item[1]))
    for (first, plan), (second, other) in pairwise(ordered):
        if token_count(plan) == token_count(other):
            raise UserError(
                f"the resolutions '{first}' and '{second}' both have {token_count(plan)} tokens",
                "change data.size_px or model.patch in one of them",
            )
    if len({plan.data.kind for plan in baselines.values()}) > 1:
        raise UserError(
            "the resolutions have data of several kinds, which are scored differently",
            "use the same kind of data for all resolutions",
        )
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
    """Raise if a study cannot be scored on its data, or trained, except plans in `trained`. Fetches encoders."""
    data = [plan.data for plan in study.baselines.values()]
    problems = readiness_problems(study.settings.evaluation, data, torch.device("cpu"))
    forget_encoders()
    refuse([*(one.within("evaluation") for one in problems), *_caption_problems(study, trained)], _SUBJECT)


def _data_problems(study: Study) -> list[Problem]:
    """List the reasons why the evaluation or the arms do not fit the data; empty if the data is missing."""
    protocol, data = study.settings.evaluation, [plan.data for plan in study.baselines.values()]
    if not all(one.at_hand for one in data):
        return []
    sources = [(one, open_held_out(one, protocol.held_out_count, torch.device("cpu"))) for one in data]
    found = [problem for one, source in sources for problem in data_problems(one, source, protocol)]
    found += _shape_problems(study) if protocol.shaped else []
    return [*dict.fromkeys(one.within("evaluation") for one in found), *_caption_problems(study)]


def _shape_problems(study: Study) -> list[Problem]:
    """List arms whose held-out images would have shapes different from their baseline's."""
    return [
        Problem(f"shapes: buckets, but arm '{arm.label}' has other data.buckets than the baseline", ("shapes=square",))
        for arm in study.arms
        if arm.plans[0].data.scored.shapes != study.baselines[arm.resolution].data.scored.shapes
    ]


def _caption_problems(study: Study, trained: Collection[str] = ()) -> list[Problem]:
    """List arms that read captions which are missing in the data."""
    found = []
    for arm in study.arms:
        for plan in arm.plans:
            if plan.hash not in trained:
                try:
                    check_columns(plan, open_source(plan.data, "train", torch.device("cpu")))
                except UserError as error:
                    others = f"Choose other arms with {option('arm')}, or add captions"
                    found.append(Problem(f"arm '{arm.label}': {error.marked}. {others}"))
    return list(dict.fromkeys(found))


def _baselines(settings: StudySettings, place: Place) -> dict[str, Plan]:
    """Return the baselines by resolution; with a single resolution, its name is ''."""
    own, plans = set_labels(settings.set, ("set",), place), {}
    for index, (name, overrides) in enumerate([(one.name, one.set) for one in settings.resolutions] or [("", ())]):
        labels = [*own, *set_labels(overrides, ("resolutions", index, "set"), place)]
        with _named(name):
            plans[name] = read_plan(settings.recipe, [*settings.set, *overrides], labels)
    return plans


def set_labels(assignments: Sequence[str], path: KeyPath, place: Place) -> list[str]:
    """Return the text that precedes each assignment in messages."""
    return [f"{place((*path, index))}: set " for index in range(len(assignments))]


def _named(resolution: str) -> AbstractContextManager[None]:
    """Add the name of the resolution to errors, if there are several resolutions."""
    return _before_errors(f"at resolution '{resolution}': " if resolution else "")


@contextmanager
def _before_errors(words: str) -> Iterator[None]:
    try:
        yield
    except UserError as error:
        problem, fix = error.parts
        raise UserError(f"{words}{problem}", fix) from None


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
            arm = combined(factors) if len(factors) > 1 else factors[0]
            found = _resolve_arm(arm, baseline, every.seeds, resolution, known)
            of_arm = partial(_arm_candidate, arm, settings, resolution, known)
            tried = tuple(of_arm(one) for one in checked)
            make = partial(_made, of_arm, tuned) if settings.tune else None
            arms.append(replace(found, candidates=tried if grid else (), candidate=make))
    with _named(resolution):
        return _link_arms(arms)


_Tuned = tuple[Mapping[str, Json], Plan]
"""A choice of values of `tune`, and the baseline with these values."""


def _tuned_baseline(
    baseline: Plan, settings: StudySettings, resolution: str, place: Place, values: Mapping[str, Json]
) -> _Tuned:
    """Return the baseline with a choice of values of `tune`."""
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
    """Return the arm with a choice of values of `tune`. The changes of the arm must not change these values."""
    values, baseline = tuned
    found = _resolve_arm(arm, baseline, settings.tune_seeds, resolution, known)
    if found.parent:
        raise UserError(
            f"the arm starts from the arm '{found.parent}', but with tune, the run to start from is unknown "
            f"until the tuning ends",
            "remove tune, or make the arm a separate study that starts from a trained run",
        )
    resolved = settings_by_key(found.plans[0])
    for key, value in values.items():
        if resolved.get(key) != value:
            what = f"sets {key} itself, to {json.dumps(resolved[key])}" if key in resolved else f"has no {key}"
            raise UserError(
                f"the arm {what}, but tune chooses this setting from {words_of(settings.tune[key])} for every arm",
                f"leave {key} out of the arm, or out of tune",
            )
    return Candidate(values, found.plans)


def with_choices(study: Study, choices: Mapping[str, int]) -> Study:
    """Return the study with the chosen values of `tune`, given as the index of the candidate by arm label.

    An arm's diff is then against the baseline with its own choice, so the diff may include the tuned keys. For each
    choice, the arm was checked to change only what it declares.
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
    """Fill in the plans from which arms start; each run starts from the parent run with the same seed."""
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
        raise UserError(f"arm '{arm}' cannot start from the arm '{name}'", hint)
    return known[name]


def _with_parent(arm: ArmPlan, parent: ArmPlan) -> ArmPlan:
    if reasons := unfit_settings(arm.plans[0], parent.plans[0]):
        raise UserError(
            f"arm '{arm.name}' cannot start from the arm '{parent.name}', whose weights do not fit its plan: {reasons}"
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
            raise UserError(f"the arms '{twin}' and '{arm.label}' have the same plan", "remove one of them")


def _refuse_late_scores(study: Study) -> None:
    for arm in study.arms:
        last = arm.plans[0].train.steps
        if late := [one for one in study.settings.score_at if isinstance(one, int) and one > last]:
            raise UserError(
                f"score_at: step {late[0]:,} comes after the last step of arm '{arm.label}', {last:,}",
                "give earlier steps, or shares of training, which apply to each arm's own steps",
            )


def _refuse_missing_guides(study: Study) -> None:
    """Raise if the evaluation's guidance needs earlier weights that the runs of an arm will not save."""
    guides = {one.sampler.guidance.guide for one in study.settings.evaluation.conditions} - {None}
    for arm in study.arms if guides else ():
        plan = arm.plans[0]
        along = study.along(plan)
        for guide in guides:
            if guide is not None and (problem := guide_problem(plan, guide, along.steps if along else ())):
                raise UserError(f"arm '{arm.label}': {problem}")


def choose_arms(study: Study, names: Sequence[str]) -> Study:
    """Return the study with only these arms at all resolutions, together with the baselines and the arms' parents."""
    known = dict.fromkeys(arm.name for arm in study.arms)
    for name in names:
        if name not in known:
            raise UserError(f"unknown arm '{name}'", nearest(name, known))
    wanted = set(names)
    while missing := {arm.parent for arm in study.arms if arm.name in wanted and arm.parent} - wanted:
        wanted |= missing
    kept = tuple(arm for arm in study.arms if arm.role == "baseline" or arm.name in wanted)
    return replace(study, arms=kept)


def _resolve_arm(arm: ArmSettings, baseline: Plan, seeds: Sequence[int], resolution: str, known: Known) -> ArmPlan:
    applications = tuple(Application.parse(spec, known) for spec in arm.techniques)
    declared = set(map(section, arm.set)).union(*(application.technique.seams for application in applications))
    with _named(resolution):
        plan = plan_from_document(Document("the baseline", plain(baseline)), arm.set, ["set "] * len(arm.set), known)
        plan = apply_techniques(plan, applications, arm.set, "set ")
        changes = check_arm("it", baseline, plan, declared)
        _refuse_other_held_out(baseline, plan)
    decisions = short_diff(baseline, plan, [key for application in applications for key in application.given])
    return ArmPlan(arm.label, "arm", applications, changes, _seeded(plan, seeds), resolution, arm.set, decisions)


def _refuse_other_held_out(baseline: Plan, plan: Plan) -> None:
    """Raise if an arm would be scored against images different from the baseline's."""
    old, new = (plain(one.data.held_out(1)) for one in (baseline, plan))
    if old != new:
        keys = [key for key in {**old, **new} if old.get(key) != new.get(key)]
        shown = "; ".join(f"{key}: {old.get(key)} for the baseline, {new.get(key)} for the arm" for key in keys)
        raise UserError(
            f"the arm would be scored against other held-out images than the baseline ({shown})",
            "set "
            f"data.{'evaluate_style' if baseline.data.of_scenes else 'evaluate_path'} in the baseline, or put other "
            "training data into a mixture, with the baseline's data as its source for evaluation (evaluate)",
        )


def reseeded(study: Study, seeds: Sequence[int]) -> Study:
    """Return the study without its control, and with these seeds for every other arm."""
    arms = [
        arm
        for group in study.by_resolution()
        for arm in _link_arms(
            [replace(one, plans=_seeded(one.plans[0], seeds)) for one in group if one.role != "control"]
        )
    ]
    return replace(study, arms=tuple(arms))


def _seeded(plan: Plan, seeds: Sequence[int]) -> tuple[Plan, ...]:
    return tuple(plan.model_copy(update={"seed": seed}) for seed in seeds)
