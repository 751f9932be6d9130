"""The Plan, which describes a run completely, its hash, and its diff against another plan."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from shlex import quote
from typing import Annotated

from pydantic import Field, TypeAdapter, ValidationError, model_validator

from tintype.config.paths import locate
from tintype.config.strict import Document, marks_of, parse, read_yaml, settings_in, write_yaml
from tintype.data.buckets import Shape, scaled_shape
from tintype.data.captions import CaptionsPart, ColumnSettings
from tintype.data.parts import CAPTIONS, DATA
from tintype.data.scenes.source import ScenesSettings
from tintype.errors import UserError
from tintype.flow import MAIN_LOSSES, NOISES, OBJECTIVES, ROUTES, TIMES, WEIGHTINGS
from tintype.flow.main_loss import SquareSettings
from tintype.flow.objective import VelocitySettings
from tintype.flow.part import MainLossPart, NoisePart, ObjectivePart, RoutePart, TimePart, WeightingPart
from tintype.flow.time_density import MixtureTime
from tintype.losses import LOSSES, LossPart
from tintype.losses.class_token import CLASS_TOKEN
from tintype.losses.repa_e.settings import TuningSettings
from tintype.model.start import STARTS, StartPart
from tintype.optim import AVERAGES, OPTIMIZERS
from tintype.optim.adamw import AdamWSettings
from tintype.optim.part import AverageSettings, OptimizerPart
from tintype.plugins.record import naming_missing_plugin
from tintype.recipes import packaged
from tintype.runtime.files import Json, read_sealed
from tintype.seams import TimeDensity
from tintype.settings import (
    DataPart,
    ModelSettings,
    Named,
    OneOf,
    Plain,
    PrecisionSettings,
    RunSettings,
    SamplingSettings,
    Settings,
    TrainSettings,
    chosen,
    is_housekeeping,
    plain,
)
from tintype.text import TextChoice
from tintype.text.words import WordsSettings
from tintype.tokenizers import TokenizerChoice
from tintype.tokenizers.part import NONE_KNOWN, Known, TokenizerPart
from tintype.tokenizers.pixels import PixelsSettings
from tintype.wording import option

UNHASHED = "run"
"""The housekeeping section, which is not part of a run's identity."""


class Plan(Named):
    """Everything that decides what a run learns, one field per seam. Settings that PRX has default to PRX's values."""

    seed: int = Field(0, ge=0, description="Seed of the initial weights, the data order, noise, times and dropout")
    start: Annotated[StartPart, OneOf(STARTS, "run")] | None = Field(
        None, description="Run whose weights are the initial weights; null: random weights"
    )
    data: Annotated[DataPart, OneOf(DATA, "scenes")] = Field(
        ScenesSettings(), description="The images and captions for training and scoring the run"
    )
    captions: Annotated[CaptionsPart, OneOf(CAPTIONS, "column")] = Field(
        ColumnSettings(), description="Which of an image's captions a training sample reads"
    )
    text: TextChoice = Field(WordsSettings(), description="The text encoder: trained with the model, or frozen")
    tokenizer: TokenizerChoice = Field(
        PixelsSettings(), description="The space in which the denoiser works: pixels, or the latents of an autoencoder"
    )
    model: ModelSettings = Field(ModelSettings(), description="The denoiser, which is PRX's transformer")
    objective: Annotated[ObjectivePart, OneOf(OBJECTIVES, "velocity")] = Field(
        VelocitySettings(), description="What the denoiser predicts"
    )
    time: Annotated[TimePart, OneOf(TIMES, "mixture")] = Field(
        MixtureTime(), description="Distribution from which training draws the time t"
    )
    noise: Annotated[NoisePart, OneOf(NOISES)] | None = Field(
        None, description="How training pairs noise with images; null: at random"
    )
    sampling: SamplingSettings = Field(
        SamplingSettings(),
        description="Sampling settings that belong to the model, which are the shift of the times and the "
        "default guidance",
    )
    main_loss: Annotated[MainLossPart, OneOf(MAIN_LOSSES, "square")] = Field(
        SquareSettings(),
        description="Function that turns the error of the velocity into the main loss; plugins can add kinds",
    )
    weighting: Annotated[WeightingPart, OneOf(WEIGHTINGS, "min-snr")] | None = Field(
        None, description="Weight of the loss by time t; null: weight 1 at all times"
    )
    route: Annotated[RoutePart, OneOf(ROUTES)] | None = Field(
        None, description="Which tokens skip which blocks in training; null: none"
    )
    losses: tuple[Annotated[LossPart, OneOf(LOSSES)], ...] = Field(
        (), description="Loss terms in addition to the main loss, each kind at most once"
    )
    tuning: TuningSettings | None = Field(
        None, description="Train the tokenizer's autoencoder with the denoiser (REPA-E); null: it is frozen"
    )
    optimizer: Annotated[OptimizerPart, OneOf(OPTIMIZERS, "adamw")] = Field(
        AdamWSettings(), description="The optimizer"
    )
    train: TrainSettings = Field(
        TrainSettings(), description="Number of steps, batch size, learning-rate schedule and safeguards"
    )
    precision: PrecisionSettings = Field(
        PrecisionSettings(), description="Number formats of stored weights, matrix products and selected operations"
    )
    ema: Annotated[AverageSettings, OneOf(AVERAGES, "fixed-decay", by_keys=True)] | None = Field(
        None, description="Average of the weights, used for sampling and scores; null: no average"
    )
    run: RunSettings = Field(
        RunSettings(), description="Housekeeping: device, saving, logging, ranks. Not part of the plan's hash"
    )

    @model_validator(mode="after")
    def _parts_fit(self) -> Plan:
        kinds = [loss.kind for loss in self.losses]
        for kind in kinds:
            if kinds.count(kind) > 1:
                raise ValueError(f"losses: '{kind}' is given twice")
        unit = self.token_px
        if self.data.size_px % unit:
            raise ValueError(
                f"data.size_px ({self.data.size_px}) must be a multiple of {unit} (tokenizer stride × model.patch)"
            )
        self.captions.check(self)
        self.data.check(self)
        if len(self.data.shapes) > 1:
            self._check_shapes(unit)
        if self.train.stages:
            self._check_stages(unit)
        self.precision.check(self.model)
        if self.model.value_residual and self.route is not None and 0 in self.route.sparse_blocks(0):
            raise ValueError(
                f"model.value_residual needs the first block's values of all tokens, but with "
                f"'{self.route.kind}' some tokens skip that block. Begin the route at a later block, or leave "
                f"one of the two out"
            )
        if self.model.class_token and CLASS_TOKEN not in kinds:
            raise ValueError(
                f"model.class_token is {self.model.class_token}, but no loss gives the denoiser a class token; "
                f"apply the technique reg, or set model.class_token to 0"
            )
        for part in (self.weighting, self.route, *self.losses, self.tuning, self.ema):
            if part:
                part.check(self)
        return self

    def _check_shapes(self, unit: int) -> None:
        """Raise ValueError if a part of the plan does not support images of several shapes."""
        for height, width in self.data.shapes:
            if height % unit or width % unit:
                raise ValueError(
                    f"data.buckets: {height} × {width} is not a multiple of {unit} (tokenizer stride × model.patch); "
                    f"`tintype data shapes --size {self.data.size_px:d} --unit {unit:d}` lists valid shapes"
                )
        self._refuse_one_shape("data.buckets")

    def _check_stages(self, unit: int) -> None:
        """Raise ValueError if a stage's smaller images do not fit the plan."""
        stages, size_px, steps = self.train.stages, self.data.size_px, self.train.steps
        for stage in stages:
            if stage.size_px % unit:
                raise ValueError(
                    f"train.stages: {stage.size_px} px is not a multiple of {unit} (tokenizer stride × model.patch)"
                )
        if not _ascend([*(stage.size_px for stage in stages), size_px]):
            sizes = ", ".join(str(stage.size_px) for stage in stages)
            raise ValueError(
                f"train.stages: the sizes ({sizes}) must increase and be smaller than data.size_px ({size_px})"
            )
        if not _ascend([*(stage.until for stage in stages), steps]):
            ends = ", ".join(str(stage.until) for stage in stages)
            raise ValueError(
                f"train.stages: the steps at which stages end ({ends}) must increase and be smaller than "
                f"train.steps ({steps}), since a last stage at data.size_px follows"
            )
        if len(self.data.shapes) > 1:
            self._check_stages_of_shapes()
        self._refuse_one_shape("train.stages")

    def _check_stages_of_shapes(self) -> None:
        """Raise ValueError if a stage cannot have images of several shapes."""
        alike = self.train.alike
        for stage in self.train.stages:
            try:
                self.shapes_at_size(stage.size_px)
            except ValueError as error:
                raise ValueError(
                    f"train.stages: at {stage.size_px} px, {error} (tokenizer stride × model.patch); leave that "
                    f"shape out of data.buckets, or use a larger size"
                ) from None
            images = self.train.images_before(stage.until)
            if images % alike:
                raise ValueError(
                    f"train.stages: with data.buckets, {alike} images in a row have the same shape (the least "
                    f"common multiple of all micro-batches). The stage until step {stage.until} ends after "
                    f"{images} images, which is not a multiple of {alike}; change its end, or leave "
                    f"`batch` out of the stages"
                )

    def _refuse_one_shape(self, setting: str) -> None:
        """Raise ValueError if a part needs images of one shape, but `setting` gives several shapes."""
        parts = [part for part in (self.route, *self.losses) if part is not None]
        stuck = [part.kind for part in parts if not part.any_shape]
        stuck += ["run.latents"] if self.run.latents == "disk" else []
        if stuck:
            raise ValueError(f"{', '.join(stuck)} needs images of the same shape; leave it or {setting} out")

    def compute_hash(self) -> str:
        """Return the digest of the resolved plan without housekeeping, which names the run."""
        content = chosen(self)
        content.pop(UNHASHED, None)
        text = json.dumps(content, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @property
    def warnings(self) -> list[str]:
        """List settings that are probably a mistake. A run prints and logs the list when it starts."""
        found = [self.ema.init_warning(self.train.steps) if self.ema else None, self.train.warmup_warning]
        if self.time.shift_by != self.sampling.shift_by:
            found.append(
                f"time.shift_by is {self.time.shift_by}, and sampling.shift_by is {self.sampling.shift_by}: times of "
                "training and of sampling follow the resolution in two ways; set both alike if that is not meant"
            )
        if self.time.shift != 1 == self.sampling.shift:
            found.append(
                f"time.shift is {self.time.shift:g}, and sampling.shift is 1: the sampling grid is not shifted; if it "
                f"should be as in training, set sampling.shift to {self.time.shift:g}"
            )
        return [text for text in found if text]

    @property
    def token_grid(self) -> tuple[int, int]:
        """Return rows and columns of the denoiser's tokens. Stages with smaller images have fewer."""
        side = self.data.size_px // self.token_px
        return side, side

    @property
    def time_density(self) -> TimeDensity:
        """Return the density from which training draws t, for latents of any size."""
        rows, columns = self.token_grid
        return self.time.density(self.model.patch, rows * columns, self.token_numbers)

    @property
    def token_numbers(self) -> int:
        """Return how many values of the latents, or of the pixels, one token of the denoiser has."""
        return self.tokenizer.compression.channels * self.model.patch**2

    @property
    def token_px(self) -> int:
        """Return the side of the square of pixels that a token of the denoiser covers."""
        return self.tokenizer.compression.stride_px * self.model.patch

    @property
    def image_shapes(self) -> tuple[Shape, ...]:
        """Return heights and widths of all training images: the data's shapes, and the shapes of earlier stages."""
        return (*self.data.shapes, *(shape for stage in self.stage_shapes for shape in stage))

    @property
    def stage_shapes(self) -> tuple[tuple[Shape, ...], ...]:
        """Return the data's shapes as scaled in each earlier stage."""
        return tuple(self.shapes_at_size(stage.size_px) for stage in self.train.stages)

    def shapes_at_size(self, size_px: int) -> tuple[Shape, ...]:
        """Return the data's shapes, in their order, as scaled in a stage of this size."""
        return tuple(scaled_shape(shape, self.data.size_px, size_px, self.token_px) for shape in self.data.shapes)

    @property
    def token_grids(self) -> tuple[tuple[int, int], ...]:
        """Return rows and columns of tokens of all training images."""
        return tuple((height // self.token_px, width // self.token_px) for height, width in self.image_shapes)

    @property
    def fewest_tokens(self) -> int:
        """Return the fewest tokens of an image in any shape and stage of the training."""
        return min(rows * columns for rows, columns in self.token_grids)

    def size_px_at(self, step: int) -> int:
        """Return the image size of a step, counted from 0."""
        return next((stage.size_px for stage in self.train.stages if step < stage.until), self.data.size_px)

    def to_yaml(self) -> str:
        return write_yaml(plain(self))


def _ascend(numbers: Sequence[int]) -> bool:
    return list(numbers) == sorted(set(numbers))


def read_plan(name: str, assignments: Sequence[str] = (), prefixes: Sequence[str] | None = None) -> Plan:
    """Return the plan of a recipe's name or file. Files that the plan names are searched beside the plan first."""
    document = packaged.find("plans", name)
    if isinstance(document.data, dict) and document.data.keys() >= {"question", "arms"}:
        raise UserError(f"{name} is a study, not a plan", f"`tintype ablate {quote(name)} --out DIR` runs it")
    if name not in packaged.names("plans"):
        document.data = locate(document.data, [Plan], Path(name).parent)
    return plan_from_document(document, assignments, prefixes)


def plan_from_yaml(text: str, name: str, assignments: Sequence[str] = ()) -> Plan:
    """Return the plan of a text. `assignments` are dotted overrides, `key.path=value`."""
    return plan_from_document(read_yaml(text, name), assignments)


def plan_from_document(
    document: Document,
    assignments: Sequence[str] = (),
    prefixes: Sequence[str] | None = None,
    known: Known = NONE_KNOWN,
) -> Plan:
    """Return the plan of a document with overrides. `prefixes` come before the overrides in messages.

    Settings recorded in files that the plan names are filled in first, since the Plan itself opens no file. `known` has
    the content of files that may be missing on this machine.
    """
    if document.data is None:
        document.data = {}
    every: Sequence[str | None] = prefixes or [None] * len(assignments)
    for assignment, prefix in zip(assignments, every, strict=True):
        section, _, key = assignment.partition("=")[0].strip().partition(".")
        document.override(assignment, prefix, partial(_forget_other_kinds, section) if key == "kind" else None)
    return parse(Plan, document, partial(_resolved, known=known))


_TOKENIZER: TypeAdapter[TokenizerPart] = TypeAdapter(TokenizerChoice)


def _resolved(data: Plain, known: Known) -> Plain:
    """Return a plan's data with a resolved tokenizer. Invalid settings are left to the plan's own validation."""
    if "tokenizer" not in data:
        return data
    try:
        tokenizer = _TOKENIZER.validate_json(json.dumps(data["tokenizer"]))
    except ValidationError:
        return data
    found = tokenizer.resolved(known)
    return data if found is tokenizer else {**data, "tokenizer": plain(found)}


def _forget_other_kinds(section: str, data: Plain) -> None:
    """Remove settings of other kinds that this kind lacks, for example after `--set data.kind=store`."""
    field = Plan.model_fields.get(section)
    parts = [part.model_fields for part in settings_in(field) if "kind" in part.model_fields] if field else []
    own = next((fields for fields in parts if fields["kind"].default == data[section]["kind"]), None)
    for key in set().union(*parts) - set(own) if own else ():
        data[section].pop(key, None)


def parts_of(plan: Plan) -> list[tuple[str, str]]:
    """Return the parts of a plan that plugins may have added, as pairs of group and kind."""
    found = []
    for name, field in Plan.model_fields.items():
        value = getattr(plan, name)
        parts = value if isinstance(value, tuple) else () if value is None else (value,)
        groups = (mark.group for mark in marks_of(field) if isinstance(mark, OneOf) and mark.group)
        found += [(group, part.kind) for group in groups for part in parts]
    return found


def plan_from_folder(folder: Path) -> Plan:
    if (folder / "study.yaml").is_file():
        raise UserError(
            f"{folder} is a study",
            f"choose one of its runs with {option('arm')} and {option('arm-seed')}, or give the run's folder in "
            f"{folder / 'runs'}",
        )
    if folder.is_file():
        raise UserError(f"{folder} is a file", f"give the folder of a run, or of a study with {option('arm')}")
    file = folder / "plan.yaml"
    if not file.is_file():
        raise UserError(
            f"{folder} is not a run: plan.yaml is missing",
            f"`tintype train RECIPE --out {quote(str(folder))}` makes one",
        )
    if (folder / _EXPORTED).is_file():
        return stored_plan(file, "export or download the model again")
    again = f"`tintype train RECIPE --out {quote(str(folder))}`"
    return stored_plan(file, f"{again}, with the run's own recipe and settings, writes it again")


def stored_plan(file: Path, remake: str, known: Known = NONE_KNOWN) -> Plan:
    """Read a plan that tintype wrote with all defaults. `remake` says how to fix a damaged file."""
    return plan_in(read_sealed(file, remake), file, known)


def plan_in(text: str, file: Path, known: Known = NONE_KNOWN) -> Plan:
    """Read the text of a plan that tintype wrote to a file."""
    document = read_yaml(text, str(file))
    if isinstance(document.data, dict) and (file.parent / _EXPORTED).is_file():
        _find_own_weights(document.data, file.parent)
    with naming_missing_plugin(file.parent):
        return plan_from_document(document, known=known)


_EXPORTED, _WITHIN = "tintype.json", "./"


def _find_own_weights(content: Plain, folder: Path) -> None:
    """Replace `./` in an exported model's plan by the model's folder, which has copies of external weights."""
    sections = content.get("text"), content.get("tokenizer")
    for section in (one for one in sections if isinstance(one, dict)):
        for key in ("weights", "folder"):
            if str(section.get(key, "")).startswith(_WITHIN):
                section[key] = str(folder / section[key])


Change = tuple[Json, Json]

_SWITCHES = ("ema", "noise", "route", "weighting", "tuning", "start")
"""Optional sections of a plan."""


def diff(before: Plan, after: Plan) -> dict[str, Change]:
    """Return (before, after) of each differing resolved setting by dotted key, without the seed and housekeeping."""
    old, new = plain(before), plain(after)
    if before.data.has_sources != after.data.has_sources:
        old["data"], new["data"] = before.data.in_diff(), after.data.in_diff()
    old, new = flat(old), flat(new)
    keys = [key for key in {**old, **new} if key.split(".")[0] not in (UNHASHED, "seed")]
    changed = {key: (old.get(key), new.get(key)) for key in keys if old.get(key) != new.get(key)}
    return {key: change for key, change in changed.items() if not _is_housekeeping(after, key)}


def unhashed_diff(before: Plan, after: Plan) -> dict[str, Change]:
    """Return (before, after) of the settings that `diff` leaves out: the seed first, then housekeeping."""
    old, new = settings_by_key(before), settings_by_key(after)
    left_out = [key for key in new if key.split(".")[0] in (UNHASHED, "seed") or _is_housekeeping(after, key)]
    return {key: (old.get(key), new[key]) for key in left_out if old.get(key) != new[key]}


def _is_housekeeping(plan: Plan, key: str) -> bool:
    name, _, setting = key.partition(".")
    section = getattr(plan, name, None)
    return isinstance(section, Settings) and is_housekeeping(type(section), setting)


def settings_by_key(plan: Plan) -> Plain:
    """Return every resolved setting by its dotted key, including the seed and housekeeping."""
    return flat(plain(plan))


def flat(value: object, prefix: str = "") -> Plain:
    if isinstance(value, Mapping) and value:
        inside = {k: v for key, inner in value.items() for k, v in flat(inner, f"{prefix}.{key}".lstrip(".")).items()}
        return {prefix: "on", **inside} if prefix in _SWITCHES else inside
    if prefix in _SWITCHES:
        return {prefix: "off"}
    if isinstance(value, list) and all(isinstance(part, Mapping) and "kind" in part for part in value):
        kinds = ", ".join(part["kind"] for part in value) or "none"
        inside = {k: v for index, inner in enumerate(value) for k, v in flat(inner, f"{prefix}.{index}").items()}
        return {prefix: kinds, **inside}
    return {prefix: value}


def short_diff(before: Plan, after: Plan, given: Collection[str] = ()) -> dict[str, Change]:
    """Return the diff for people: a part that is added, removed or changes its kind is one entry.

    An entry names those settings of a part that are not defaults, that differ between the kinds, or whose keys are in
    `given`, the options of techniques. All other settings are equal in both plans, or follow from the kind. Code that
    compares plans uses `diff`, which has every setting.
    """
    sections = {name: _part_words(getattr(before, name), getattr(after, name), given) for name in Plan.model_fields}
    if before.data.kind != after.data.kind:
        sections["data"] = before.data.words, after.data.words
    shown: dict[str, Change] = {}
    for key, change in diff(before, after).items():
        section = key.partition(".")[0]
        words = sections[section] if key != _SIZE else None
        shown[key if words is None else section] = words or change
    return shown


_SIZE = "data.size_px"
"""The key of the image size, which `DataPart.words` leaves out."""


def _part_words(old: object, new: object, given: Collection[str]) -> Change | None:
    """Return a section's parts in words if their kinds differ; None if single settings differ."""
    if isinstance(old, tuple) and isinstance(new, tuple):
        if [type(part) for part in old] == [type(part) for part in new]:
            return None
        both = [part for part in old if part in new]
        sides = [[part.kind if part in both else _in_words(part, given) for part in parts] for parts in (old, new)]
        first, second = (", ".join(side) or "none" for side in sides)
        return first, second
    if type(old) is type(new) or not (isinstance(old, Settings | None) and isinstance(new, Settings | None)):
        return None
    first_keys, second_keys = (flat(plain(part)) if part is not None else {} for part in (old, new))
    differ = [key for key in first_keys if key in second_keys and first_keys[key] != second_keys[key]]
    return _in_words(old, differ), _in_words(new, [*differ, *given])


def _in_words(part: Settings | None, named: Collection[str]) -> str:
    """Return the kind of a part, with its settings that are not defaults or are in `named`."""
    if part is None:
        return "off"
    kind, settings = str(getattr(part, "kind", "on")), _chosen(part, None, named)
    words = {key: value if isinstance(value, str) else json.dumps(value) for key, value in settings.items()}
    chosen = ", ".join(f"{key}={value}" for key, value in words.items() if key != "kind")
    return f"{kind} ({chosen})" if chosen else kind


def _chosen(part: Settings, usual: Settings | None, named: Collection[str]) -> Plain:
    """Return a part's dotted settings that are in `named` or differ from `usual`, by default the part's defaults."""
    found: Plain = {}
    values = plain(part)
    for key, field in type(part).model_fields.items():
        value = getattr(part, key)
        default = getattr(usual, key) if usual is not None else field.get_default(call_default_factory=True)
        below = [name.partition(".")[2] for name in named if name.startswith(f"{key}.")]
        if value == default and key not in named and not below:
            continue
        if not isinstance(value, Settings):
            found[key] = values[key]
            continue
        inside = _chosen(value, default if type(value) is type(default) else None, below)
        if type(value) is not type(default) and "kind" in values[key]:
            inside["kind"] = values[key]["kind"]
        if "kind" in inside:
            found[key] = inside.pop("kind")
        found |= {f"{key}.{inner}": setting for inner, setting in inside.items()}
    return found
