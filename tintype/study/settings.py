"""Define a study in the form in which the user writes it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from math import prod
from pathlib import Path
from typing import Annotated

from pydantic import BeforeValidator, Discriminator, Field, Tag, model_validator

from tintype.config.paths import locate, locate_assignments, locate_options
from tintype.config.strict import KeyPath, nearest
from tintype.errors import UserError
from tintype.evaluation.fit import Fitted, Problem, fit_protocol
from tintype.evaluation.protocol import FEWEST, Protocol, definitions
from tintype.metrics import validation
from tintype.plan import Plan
from tintype.recipes import packaged
from tintype.settings import DataPart, NamesFile, Settings
from tintype.study.analysis import AnalysisSettings
from tintype.study.factorial import combinations
from tintype.study.looks import SeedPlan
from tintype.study.results import SeedSet
from tintype.study.search import Range, SearchSettings, Tried, check_search
from tintype.techniques import TECHNIQUES

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
"""Either a list of seeds, or a plan that gives more seeds to undecided arms."""


RETRIES = 2
"""Default number of times that a run is tried again."""
PRIMARY = tuple(name for name, one in definitions(Protocol(also=())).items() if one.metric.is_primary)
_WITHOUT_DISTANCES = (validation.METRIC.name,)
"""Primary metrics if no encoder has a distance metric."""
SAME_FOR_ALL = ("seed", "data", "run")
"""Settings that all arms share, which are the seed, the images for training and scoring, and housekeeping."""


class ArmSettings(Settings):
    """An arm, which is the baseline with techniques, overrides, or both."""

    name: str | None = Field(
        None, description="Name of the arm; by default made from its overrides and the names of its techniques"
    )
    set: tuple[str, ...] = Field(
        (), description="Overrides of the baseline, each key.path=value, applied before the techniques"
    )
    techniques: tuple[str, ...] = Field(
        (), description="Techniques of the arm, each `name` or `name:key=value,key=value`"
    )

    @model_validator(mode="after")
    def _changes_something(self) -> ArmSettings:
        if not self.set and not self.techniques:
            raise ValueError("an arm must have techniques, or overrides of the baseline (set)")
        for assignment in self.set:
            if section(assignment) in SAME_FOR_ALL:
                raise ValueError(
                    f"set: {assignment}: {', '.join(SAME_FOR_ALL)} must be the same for all arms of a study"
                )
        return self

    @property
    def label(self) -> str:
        return self.name or " + ".join((*self.set, *self.techniques))


def _factor(given: object) -> object:
    if isinstance(given, str):
        raise ValueError(f"write each factor as a list, [{given}], so that a factor can have several techniques")
    if isinstance(given, Mapping):  # written like an arm, with a name; strict settings take no list for a tuple here
        return {key: tuple(value) if isinstance(value, list) else value for key, value in given.items()}
    if not isinstance(given, list):
        return given
    if not given or not all(isinstance(spec, str) for spec in given):
        raise ValueError("a factor is a list of techniques and overrides, for example [repa] or [optimizer.lr=1e-3]")
    return {key: tuple(specs) for key, specs in split_changes(given).items()}


def split_changes(specs: Sequence[str]) -> dict[str, list[str]]:
    """Split the changes of an arm into overrides `key.path=value` (key `set`) and techniques."""
    overrides = [spec for spec in specs if "=" in spec.partition(":")[0]]
    return {"set": overrides, "techniques": [spec for spec in specs if spec not in overrides]}


def combined(factors: Sequence[ArmSettings]) -> ArmSettings:
    """Return the arm that combines factors; raise if two set the same key, since the last would silently win."""
    keys = [(assignment.partition("=")[0].strip(), factor) for factor in factors for assignment in factor.set]
    for (key, factor), (other, another) in product(keys, keys):
        if factor is not another and f"{other}.".startswith(f"{key}."):
            raise UserError(
                f"the factors '{factor.label}' and '{another.label}' both set {key}", "leave one of them out"
            )
    return ArmSettings(
        name=" + ".join(factor.label for factor in factors),
        set=tuple(assignment for factor in factors for assignment in factor.set),
        techniques=tuple(spec for factor in factors for spec in factor.techniques),
    )


def _located_technique(spec: str, folder: Path) -> str:
    technique = TECHNIQUES.get(spec.partition(":")[0])
    return locate_options(spec, [technique.options], folder) if technique else spec


def section(assignment: str) -> str:
    return assignment.partition("=")[0].partition(".")[0].strip()


def _repeated(names: Sequence[str]) -> str:
    return ", ".join(sorted({name for name in names if names.count(name) > 1}))


def _first_repeat(names: Sequence[str]) -> int | None:
    """Return the index of the first repeated name; None if all differ."""
    return next((index for index, name in enumerate(names) if name in names[:index]), None)


def _check_score_at(score_at: Sequence[int | float]) -> None:
    """Raise if a value is neither a fraction of the training nor a step."""
    for one in score_at:
        if not (one >= 1 if isinstance(one, int) else 0 < one <= 1):
            raise ValueError(
                f"score_at: {one} is neither a share of training (above 0, at most 1.0) nor a step (a whole number "
                "from 1 on)"
            )


def _distances(protocol: Protocol) -> tuple[str, ...]:
    """Return the protocol's first distance metric for each of its encoders."""
    return tuple(f"{protocol.metrics[0]}_{encoder.title}" for encoder in protocol.encoders) if protocol.metrics else ()


class ResolutionSettings(Settings):
    """The baseline with another number of tokens, because of larger images or smaller patches."""

    name: str = Field(
        pattern=r"^[a-z0-9][a-z0-9-]*$", description="Name of the resolution, appended to the names of the arms"
    )
    set: tuple[str, ...] = Field(
        (), description="Overrides of the baseline, each key.path=value, applied after those of the study"
    )


MOST_TUNING_PLANS = 64
"""For one arm and a grid: values times seeds."""


class StudySettings(Settings):
    """A study as a file, with a baseline, arms, seeds, and settings for scoring and comparison."""

    question: str = Field(description="The study's question in one sentence, shown at the top of the report")
    recipe: Annotated[str, NamesFile(lambda name: name in packaged.names("plans"))] = Field(
        description="Baseline: the name of a recipe, or the path of a plan file"
    )
    set: tuple[str, ...] = Field((), description="Overrides of the baseline, each key.path=value")
    seeds: Seeds = Field(
        description="List of seeds, or {first: 4, most: 16}: every arm has 4 seeds, and "
        "undecided arms get more in planned looks, up to 16"
    )
    resolutions: tuple[ResolutionSettings, ...] = Field(
        (), description="Resolutions at which every arm runs; at least two, or none to use only that of the baseline"
    )
    control_seeds: tuple[Seed, ...] = Field(
        (), description="Seeds of the A/A control (the baseline with other seeds); as many as in seeds, or none"
    )
    arms: tuple[ArmSettings, ...] = Field((), description="Arms of the study, each with techniques, overrides, or both")
    factorial: tuple[Annotated[ArmSettings, BeforeValidator(_factor)], ...] = Field(
        (), description="Factors, each a list of techniques and overrides; every combination of factors becomes an arm"
    )
    compare: tuple[tuple[str, ...], ...] = Field(
        (), description="Pairs of arms to compare with each other; the first arm is compared with the second"
    )
    tune: dict[str, Tried] = Field(
        {},
        description="Settings to tune, as key.path: [values] or a range; the best values are chosen separately "
        "for the baseline and each arm",
    )
    tune_by: SearchSettings = Field(SearchSettings(), description="How values of the settings in tune are searched")
    tune_seeds: tuple[Seed, ...] = Field((90_001, 90_002), min_length=1, description="Seeds of the tuning runs")
    primary: tuple[str, ...] = Field(
        PRIMARY,
        min_length=1,
        description="Metrics that answer the question; by default (without the scene encoder) the first metric "
        "of each encoder",
    )
    evaluation: Protocol = Field(Protocol(), description="Evaluation protocol by which every run is scored")
    score_at: tuple[int | float, ...] = Field(
        (),
        description="Additional times before the end at which runs are scored: shares of training (0.25, "
        "0.5) or steps (whole numbers)",
    )
    score_count: int | None = Field(
        None,
        ge=FEWEST,
        description="Number of images for each scoring in score_at; by default a quarter of count, at least 128",
    )
    analysis: AnalysisSettings = Field(AnalysisSettings(), description="Settings of the statistical comparison of arms")
    retries: int = Field(RETRIES, ge=0, description="How often a run is restarted if its process dies without progress")

    @model_validator(mode="after")
    def _consistent(self) -> StudySettings:
        if isinstance(self.seeds, SeedPlan) and self.control_seeds:
            raise ValueError(
                "control_seeds: with seeds {first, most}, the control's seeds are chosen "
                "automatically; leave control_seeds out"
            )
        all_seeds = (*self.every_seed.seeds, *self.every_seed.control_seeds)
        if (index := _first_repeat([str(seed) for seed in all_seeds])) is not None:
            key = "seeds" if index < len(self.every_seed.seeds) else "control_seeds"
            raise ValueError(f"{key}: {all_seeds[index]} is given twice; seeds and control_seeds must all differ")
        if isinstance(self.seeds, tuple) and self.control_seeds and len(self.control_seeds) != len(self.seeds):
            raise ValueError(f"control_seeds must have as many seeds as seeds ({len(self.seeds)}), or none")
        if again := _repeated(self.primary):
            raise ValueError(f"primary: {again} is given twice; name each metric once")
        _check_score_at(self.score_at)
        if self.score_count is not None and not self.score_at:
            raise ValueError("score_count sets the number of images for the scores at score_at, but score_at is empty")
        names = [resolution.name for resolution in self.resolutions]
        if len(names) == 1:
            raise ValueError(
                f"resolutions: '{names[0]}' is the only resolution; add another, or put its overrides into set"
            )
        if (index := _first_repeat(names)) is not None:
            raise ValueError(f"resolutions.{index}: two resolutions are called {names[index]}; rename one of them")
        own = [BASELINE, CONTROL]
        labels = [*own, *(arm.label for arm in self.arms)]
        if (index := _first_repeat(labels)) is not None:
            raise ValueError(f"arms.{index - len(own)}: two arms are called {labels[index]}; rename one of them")
        if self.tune and self.analysis.bank:
            raise ValueError(
                "analysis.bank: analysis.bank cannot be used with tune, since the baseline's values are unknown "
                "until the tuning ends"
            )
        self._check_factors()
        self._check_compared()
        self._check_tune()
        return self

    @property
    def every_seed(self) -> SeedSet:
        """Return the seeds that arms and the control have, or can get at the last planned interim analysis."""
        if isinstance(self.seeds, SeedPlan):
            return SeedSet(seeds=list(self.seeds.seeds), control_seeds=list(self.seeds.control_seeds))
        return SeedSet(seeds=list(self.seeds), control_seeds=list(self.control_seeds))

    def _check_factors(self) -> None:
        labels = [factor.label for factor in self.factorial]
        if len(labels) == 1:
            raise ValueError(f"factorial: '{labels[0]}' is the only factor; add another, or put this one into arms")
        if again := _repeated(labels):
            raise ValueError(f"factorial: two factors are called {again}; give each another name or remove one")
        names = {" + ".join(labels[index] for index in chosen) for chosen in combinations(len(labels))}
        taken = names.intersection([BASELINE, CONTROL, *(arm.label for arm in self.arms)])
        if taken:
            raise ValueError(
                f"factorial: the arm '{min(taken)}' has the same name as a combination of factors; remove it "
                f"from arms, or rename it"
            )

    def _check_compared(self) -> None:
        known = [" + ".join(factor.label for factor in factors) for _, factors in self.all_arms()]
        seen = dict[frozenset[str], int]()
        for index, pair in enumerate(self.compare):
            place = f"compare.{index}: "
            if len(pair) != 2:
                raise ValueError(f"{place}give two arms, as [FIRST, SECOND]: the first is compared with the second")
            for name in pair:
                if name == BASELINE:
                    raise ValueError(
                        f"{place}every arm is compared with the baseline without this setting; remove the pair"
                    )
                if name == CONTROL:
                    raise ValueError(
                        f"{place}the control is the baseline with other seeds, and every arm is compared with "
                        f"both without this setting; remove the pair"
                    )
                if name not in known:
                    raise ValueError(f"{place}unknown arm '{name}'; {nearest(name, known)}")
            if len(set(pair)) == 1:
                raise ValueError(f"{place}the arm '{pair[0]}' cannot be compared with itself; give two different arms")
            if (first := seen.setdefault(frozenset(pair), index)) != index:
                raise ValueError(f"{place}{pair[0]} and {pair[1]} are compared by compare.{first} already")

    def _check_tune(self) -> None:
        for key, values in self.tune.items():
            if section(key) in SAME_FOR_ALL:
                raise ValueError(f"tune: {key}: {', '.join(SAME_FOR_ALL)} must be the same for all arms of a study")
            if not isinstance(values, Range) and (again := _repeated([json.dumps(value) for value in values])):
                raise ValueError(f"tune: {key}: {again} is given twice")
        check_search(self.tune, self.tune_by)
        if again := _repeated([str(seed) for seed in self.tune_seeds]):
            raise ValueError(f"tune_seeds: {again} is given twice")
        shared = sorted({*self.tune_seeds} & {*self.every_seed.seeds, *self.every_seed.control_seeds})
        if self.tune and shared:
            raise ValueError(
                f"tune_seeds: {', '.join(map(str, shared))} is also in seeds or control_seeds; tune on other "
                f"seeds than those of the comparison, or the tuned values could win by chance"
            )
        lists = [len(values) for values in self.tune.values() if not isinstance(values, Range)]
        plans = prod(lists) * len(self.tune_seeds)
        if self.tune and self.tune_by.kind == "grid" and plans > MOST_TUNING_PLANS:
            raise ValueError(
                f"tune: {plans} runs for each arm ({' × '.join(map(str, lists))} values × "
                f"{len(self.tune_seeds)} seeds), but at most {MOST_TUNING_PLANS} are allowed; use fewer values, keys "
                "or tune_seeds"
            )

    @property
    def tuning_trials(self) -> int:
        """Return the trials of each arm; empty in a study without `tune`."""
        if not self.tune:
            return 0
        return self.tune_by.trials or prod(len(one) for one in self.tune.values() if not isinstance(one, Range))

    def all_arms(self) -> list[tuple[KeyPath, Sequence[ArmSettings]]]:
        """Return each arm as the factors that it combines, by positions in the file; an arm in `arms` is one factor."""
        listed: list[tuple[KeyPath, Sequence[ArmSettings]]] = [
            (("arms", index), [arm]) for index, arm in enumerate(self.arms)
        ]
        for chosen in combinations(len(self.factorial)):
            place: KeyPath = ("factorial", *chosen) if len(chosen) == 1 else ("factorial",)
            listed.append((place, [self.factorial[index] for index in chosen]))
        return listed

    def located(self, folder: Path) -> StudySettings:
        """Return the study with resolved paths of its files, relative to `folder` or to the working directory."""
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
        """Choose protocol and primary metrics by the data if they were not given; return notes and problems too."""
        fitted = fit_protocol(self.evaluation, data)
        known = definitions(fitted.protocol, data.of_scenes)
        named = "primary" in self.model_fields_set or known.keys() >= set(self.primary)
        usual = _distances(fitted.protocol) or _WITHOUT_DISTANCES
        primary = self.primary if named else usual
        problems = [one.within("evaluation") for one in fitted.problems]
        for name in primary:
            if name not in known and name in definitions(self.evaluation):
                text = f"primary: '{name}' exists only for the embedded scenes, but the data is of the kind {data.kind}"
                problems.append(Problem(text, (f"primary=[{', '.join(usual)}]",)))
            elif name not in known:
                raise UserError(f"primary: unknown metric '{name}'", nearest(name, known))
        settings = self.model_copy(update={"primary": primary, "evaluation": fitted.protocol})
        return settings, replace(fitted, problems=tuple(problems))
