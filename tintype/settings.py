"""Base classes of settings, and the plain settings of a Plan: frozen, strict classes, one per seam.

A setting with several exchangeable kinds is a `Part`: it has a `kind` and builds the object that does the work. Parts
are defined beside that object, in the room of their seam.
"""

from __future__ import annotations

import json
import math
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, reduce
from operator import or_
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Protocol, Self, TypeAlias, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    PlainValidator,
    Tag,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from tintype.plugins.load import added
from tintype.plugins.registry import declare

Plain: TypeAlias = dict[str, Any]
"""Settings as plain data: dictionaries, lists and scalars."""
K = TypeVar("K")
LARGEST_PX = 4096
FP8_MULTIPLE = 16
"""Sizes of FP8 products are multiples of this."""


class Settings(BaseModel):
    """Frozen, strict, and closed: an unknown key is an error."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", allow_inf_nan=False)

    def problems(self) -> Iterator[str]:
        """Yield problems of combinations of settings. pydantic reports the first problem as its error."""
        yield from ()

    @model_validator(mode="after")
    def _has_no_problems(self) -> Self:
        for problem in self.problems():
            raise ValueError(problem)
        return self


class Named(Settings):
    """Settings that are named by a hash of their content. It is cached, since a study reads it thousands of times."""

    __slots__ = ("_hash",)
    """The cached hash. It is not a field, so that copies with other settings do not inherit it."""

    @property
    def hash(self) -> str:
        known: str = getattr(self, "_hash", "") or self.compute_hash()
        object.__setattr__(self, "_hash", known)
        return known

    @abstractmethod
    def compute_hash(self) -> str:
        """Return the hash of the settings' content."""


@dataclass(frozen=True)
class NamesFile:
    """Mark of a setting that names a file or folder to read, unless `is_word`. `tintype.config.paths` finds it."""

    is_word: Callable[[str], bool] = lambda text: False


PathText = Annotated[str, NamesFile()]


class Housekeeping:
    """Mark of a setting that cannot change what a run learns, and that the plan's hash and arms' diffs leave out."""


@cache
def is_housekeeping(settings: type[Settings], name: str) -> bool:
    return name in settings.model_fields and Housekeeping in settings.model_fields[name].metadata


@dataclass(frozen=True)
class KeysOf:
    """Mark of a mapping that may hold any settings of these classes."""

    classes: tuple[type[Settings], ...]


ExportForm = Literal["PRXPipeline", "PRXPixelPipeline", "safetensors"]
"""Form of an export: a pipeline of diffusers, or a file with the denoiser alone."""


@dataclass(frozen=True)
class Obstacle:
    """Why a run cannot be exported in a form, and the option of `tintype train` that makes it exportable, if any."""

    reason: str
    option: str = ""


@dataclass(frozen=True)
class LocalFiles:
    """Files on this machine in a folder that a setting names."""

    setting: str
    """The setting that names the folder."""
    files: Mapping[str, Path]
    """Files by their relative path in the folder."""
    records: frozenset[str] = frozenset()
    """JSON files of tintype among `files`. These files may contain paths."""


class Part(Settings):
    """Settings of an exchangeable part. Subclasses narrow `kind` to one literal and say how the part is built."""

    kind: str

    @classmethod
    def kind_name(cls) -> str:
        """Return the kind, without settings."""
        return str(cls.model_fields["kind"].default)

    def describe(self) -> str | None:
        """Describe the part in its own words, for cards and reports; None if its settings are description enough."""
        return None

    def left_out_of_hash(self) -> Collection[str]:
        """Return settings that the plan's hash leaves out, because other settings determine what they stand for."""
        return ()

    def obstacles(self, form: ExportForm) -> Iterable[Obstacle]:
        """Return the reasons why a run with this part cannot be exported in this form."""
        return ()

    def local_files(self) -> LocalFiles | None:
        """Return the external weights that the part reads from this machine; an export copies them."""
        return None

    def portable(self) -> dict[str, Any]:
        """Return the settings without paths of this machine."""
        return plain(self)


class OpenKinds(tuple[type[K], ...]):
    """The built-in kinds of a part. Plugins can add kinds to the same group."""

    group: str

    def __new__(cls, group: str, *kinds: type[K]) -> OpenKinds[K]:
        made = super().__new__(cls, kinds)
        made.group = group
        return made


@dataclass(frozen=True)
class OneOf:
    """Mark of a field that holds any of these parts: `Annotated[LossPart, OneOf(LOSSES)]`.

    Settings without a `kind` have the kind `usual`, or with `by_keys` the kind that knows all their keys. Plugins can
    add kinds to `OpenKinds`.
    """

    built_in: tuple[type[Settings], ...]
    usual: str | None = None
    by_keys: bool = False

    @property
    def group(self) -> str | None:
        """Return the group in which plugins add parts; None if plugins cannot."""
        return self.built_in.group if isinstance(self.built_in, OpenKinds) else None

    @property
    def parts(self) -> tuple[type[Settings], ...]:
        """Return all parts, parts of plugins last."""
        return (*self.built_in, *(one.part for one in added(self.group).values())) if self.group else self.built_in

    @property
    def kinds(self) -> dict[str, type[Settings]]:
        """Return the built-in parts by kind. A part without a `kind` has the usual kind."""
        return {
            str(part.model_fields["kind"].default) if "kind" in part.model_fields else str(self.usual): part
            for part in self.built_in
        }

    def __get_pydantic_core_schema__(self, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        if len(self.built_in) == 1 and self.group is None:
            return handler.generate_schema(self.built_in[0])
        tagged: list[object] = [Annotated[part, Tag(kind)] for kind, part in self.kinds.items()]
        if self.group is not None:
            declare(self.group, self.kinds, source if isinstance(source, type) else None)
            tagged.append(Annotated[Any, PlainValidator(self._of_plugin), Tag(OF_PLUGIN)])
        return handler.generate_schema(Annotated[reduce(or_, tagged), Discriminator(self._tag_of)])

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """Return a JSON schema that lists the parts of loaded plugins, in place of the choice that validates them."""
        return handler(schema if self.group is None else self._with_plugins(schema))

    def _with_plugins(self, schema: Any) -> Any:
        if schema["type"] != "tagged-union":  # a validator around it
            return {**schema, "schema": self._with_plugins(schema["schema"])} if "schema" in schema else schema
        choices = {kind: choice for kind, choice in schema["choices"].items() if kind != OF_PLUGIN}
        found = {kind: one.part.__pydantic_core_schema__ for kind, one in added(str(self.group)).items()}
        return {**schema, "choices": {**choices, **found}}

    def _tag_of(self, value: object) -> str | None:
        kind = self._kind_of(value)
        if self.group is None or kind is None or kind in self.kinds:
            return kind
        return OF_PLUGIN if kind in added(self.group) else kind

    def _kind_of(self, value: object) -> str | None:
        if not isinstance(value, Mapping):
            return getattr(value, "kind", self.usual if isinstance(value, Settings) else None)
        fits = (kind for kind, part in self.kinds.items() if self.by_keys and set(value) <= set(part.model_fields))
        kind = value.get("kind", next(fits, self.usual))
        return None if kind is None else str(kind)

    def _of_plugin(self, value: object) -> Settings:
        """Validate a part of a plugin."""
        part: type[Settings] = added(str(self.group))[str(self._kind_of(value))].part
        if isinstance(value, part):
            return value
        return part.model_validate_json(json.dumps(value))  # JSON's rules: a list may fill a tuple


OF_PLUGIN = "plugin"
"""Tag of plugins' parts in the paths of pydantic's errors."""


class PlanView(Protocol):
    """The parts of a plan that its parts can read. Higher rooms add properties for their own parts."""

    @property
    def model(self) -> ModelSettings: ...
    @property
    def train(self) -> TrainSettings: ...
    @property
    def run(self) -> RunSettings: ...
    @property
    def token_grid(self) -> tuple[int, int]: ...
    @property
    def image_shapes(self) -> tuple[tuple[int, int], ...]: ...
    @property
    def token_grids(self) -> tuple[tuple[int, int], ...]: ...
    @property
    def fewest_tokens(self) -> int: ...


def kind_alone(value: object) -> object:
    """Return `{kind: scenes}` for `scenes`, and any other value unchanged."""
    return {"kind": value} if isinstance(value, str) else value


@dataclass(frozen=True)
class SourceUse:
    """A source of training images, and how much of it was read."""

    data: DataPart
    images: int | None
    """Number of images read, with repeats; None for a source that is only scored against."""
    share: str = ""
    """Share of the batches in words; empty for a single source."""


class DataPart(Part):
    """Source of images and captions. `data/sources.py` opens it."""

    count_key: ClassVar[str]
    """Name of the setting with the number of training images."""
    said_by_identity: ClassVar[frozenset[str]] = frozenset()
    """Settings that the source's content hash already covers, or that do not change training images."""
    has_sources: ClassVar[bool] = False
    """Whether the data consists of several sources. A diff against other data shows each side on one line."""

    size_px: int = Field(32, ge=16, le=LARGEST_PX, description="Width and height of the images")

    @property
    def words(self) -> str:
        """Describe the data on one line, without the image size and settings at their defaults."""
        shown = [f"{key} {value}" for key, value in chosen(self).items() if key not in ("kind", "size_px")]
        return f"{self.kind} ({', '.join(shown)})"

    def in_diff(self) -> Plain:
        """Return the settings as shown in a diff between data with several sources and data without."""
        return {"kind": self.words, "size_px": self.size_px}

    @property
    def resident_bytes(self) -> int:
        """Return the largest number of bytes of images that training keeps on a GPU."""
        return 0

    @property
    def of_scenes(self) -> bool:
        """Return whether the scene encoder can read the images. If not, there is no scene accuracy."""
        return False

    @property
    def scored(self) -> DataPart:
        """Return the data whose held-out images a run is scored against."""
        return self

    @property
    def memorisable(self) -> DataPart:
        """Return the data in which `memorised` searches for copies, with unseen images of the same kind."""
        return self

    @property
    def scored_name(self) -> str:
        """Return the name of the scored data in a run's record of identities."""
        return "data"

    @property
    def shapes(self) -> tuple[tuple[int, int], ...]:
        """Return the heights and widths of training images, in pixels."""
        return ((self.size_px, self.size_px),)

    @property
    def squared(self) -> DataPart:
        """Return the settings of the same images as squares, without buckets of other shapes."""
        return self

    def at_size(self, size_px: int) -> DataPart:
        """Return the settings of the same images, with the same ids, but resized to `size_px`."""
        return self.model_copy(update={"size_px": size_px})

    def held_out(self, count: int, shaped: bool = False) -> DataPart:
        """Return the settings of at least `count` held-out images: squares, or `shaped` as in training."""
        raise NotImplementedError

    def content(self) -> Plain:
        """Return the settings that decide images and ids, except the location, which a source's identity covers."""
        return {key: value for key, value in plain(self).items() if key not in self.said_by_identity}

    def at_most(self, count: int) -> dict[str, int]:
        """Return the overrides, by key, that limit training to at most `count` images."""
        return {self.count_key: min(count, plain(self)[self.count_key] or count)}

    def check(self, plan: PlanView) -> None:
        """Raise ValueError if this data does not fit the plan's other settings."""

    @property
    def at_hand(self) -> bool:
        """Return whether the images are on this machine. A report can be made without them."""
        return True

    def describe(self) -> str:
        """Describe the training data of a model, as a part of a sentence."""
        return f"images of the kind {self.kind}"

    def describe_held_out(self) -> str:
        """Describe the images that a run is scored against, as a part of a sentence."""
        return "held-out images"

    def intended_use(self) -> str:
        """Return sentences on the intended use of a model that was trained only on this data."""
        return (
            "Images like those it was trained on, from prompts like their captions. Nothing in the record says that "
            "it is fit for more."
        )

    def limits(self) -> list[str]:
        """Return the limits of a model trained on this data, one sentence each."""
        return [
            "What the training images show, whom they leave out, and who holds rights in them is not in the record; "
            "the model has the biases of its data."
        ]

    def count_images(self, identity: str | None) -> int | None:
        """Return the number of training images; None if the data is missing, or is not the data of this `identity`."""
        return int(getattr(self, self.count_key))

    def uses(self, steps: int, train: TrainSettings) -> dict[str, SourceUse]:
        """Return the sources used after `steps` steps, by name; a single source has no name."""
        return {"": SourceUse(self, train.images_before(steps))}


class ModelSettings(Settings):
    """The PRX transformer. The defaults are PRX's small model (1.17B parameters on 16-channel latents)."""

    depth: int = Field(16, ge=1, description="Number of blocks")
    width: int = Field(1792, ge=8, description="Width of a token (embedding size) in the blocks")
    heads: int = Field(28, ge=1, description="Number of attention heads, each of size width / heads")
    mlp_ratio: float = Field(3.5, gt=0, description="Hidden width of a block's MLP, as a multiple of width")
    patch: int = Field(2, ge=1, description="Side of a patch, in latent pixels")
    bottleneck: int | None = Field(
        None, ge=1, description="Hidden size of a two-layer patch embedding; null: one layer"
    )
    rope_theta: int = Field(10000, ge=1, description="Base of the rotary position embedding")
    time_factor: float = Field(
        1000.0, gt=0, description="Factor by which t is multiplied before its sinusoidal embedding"
    )
    time_max_period: int = Field(10000, ge=1, description="Longest period of the sinusoidal embedding of t")
    resolution_embeds: bool = Field(
        False, description="Add an embedding of the latents' height and width to the time embedding"
    )
    gate: Literal["gelu", "silu"] = Field(
        "gelu",
        description="Activation of the MLP's gate: gelu (tanh-GELU, as in PRX) or silu (SwiGLU); the weights "
        "are the same",
    )
    qk_norm: bool = Field(True, description="Normalise queries and keys with RMSNorm")
    shared_adaln: bool = Field(
        False, description="Share one modulation layer among all blocks, with a learned offset for each block"
    )
    registers: int = Field(
        0,
        ge=0,
        description="Number of learned register tokens, which are added to the image tokens and "
        "dropped after the last block",
    )
    class_token: int = Field(
        0,
        ge=0,
        description="Width of a teacher's class token that is denoised together with the image; 0: no class token",
    )
    value_residual: bool = Field(
        False,
        description="Mix the attention values of the first block into those of the later blocks, for image tokens",
    )
    compile: bool = Field(
        False, description="Compile the denoiser block by block with torch.compile, unless fused kernels run its blocks"
    )
    kernels: Annotated[Literal["auto", "plain", "fused"], Housekeeping] = Field(
        "auto",
        description="Kernels of the blocks. Fused kernels save memory traffic and skip the text's padding "
        "(NVIDIA GPUs, compute in bf16); plain uses PyTorch operations, auto uses fused kernels if possible",
    )
    activation_checkpointing: bool = Field(
        False, description="Recompute each block in the backward pass, which saves memory"
    )

    @property
    def hidden(self) -> int:
        """Return the inner width of a block's MLP."""
        return int(self.width * self.mlp_ratio)

    @property
    def variants(self) -> dict[str, object]:
        """Return the settings in which the blocks differ from PRX's, by name."""
        usual = {"gate": "gelu", "qk_norm": True, "shared_adaln": False, "registers": 0, "value_residual": False}
        usual |= {"class_token": 0}
        return {name: getattr(self, name) for name, value in usual.items() if getattr(self, name) != value}

    def problems(self) -> Iterator[str]:
        if self.width % self.heads:
            yield f"width ({self.width}) must be a multiple of heads ({self.heads})"
        if (self.width // self.heads) % 4:
            yield f"width / heads ({self.width // self.heads}) must be a multiple of 4: two axes of pairs"


ShiftBy = Literal["none", "sqrt", "flux", "dimension"]
"""How the shift of times depends on the number of tokens, or on the total count of latent values (`dimension`)."""
_BASE_NUMBERS = 4096
"""Count of an image's latent values at which `dimension` does not shift."""
_BASE_TOKENS, _MOST_TOKENS = 256, 4096
"""Numbers of tokens for which FLUX defines its mu: 256 px and 1024 px in its latents."""
_BASE_MU, _MOST_MU = 0.5, 1.15


def shift_factor(by: ShiftBy, tokens: int, token_numbers: int | None = None) -> float:
    """Return the shift factor for `tokens` tokens of `token_numbers` values each.

    - sqrt: the root of the number of tokens, scaled to 1 at 256 (Stable Diffusion 3, arXiv 2403.03206, eq. 23)
    - flux: exp(mu), where FLUX's mu is linear in the number of tokens, with 0.5 at 256 tokens and 1.15 at 4096
    - dimension: the root of the count of all values, scaled to 1 at 4096 (arXiv 2510.11690, sqrt(m / n))
    """
    if by == "none":
        return 1.0
    if by == "dimension":
        if token_numbers is None:
            raise TypeError("shift_by=dimension needs the number of latent values per token")
        return math.sqrt(tokens * token_numbers / _BASE_NUMBERS)
    if by == "sqrt":
        return math.sqrt(tokens / _BASE_TOKENS)
    slope = (_MOST_MU - _BASE_MU) / (_MOST_TOKENS - _BASE_TOKENS)
    return math.exp(_BASE_MU + slope * (tokens - _BASE_TOKENS))


class SamplingSettings(Settings):
    """Settings of sampling that belong to the model and not to an evaluation."""

    shift: float = Field(
        1.0,
        gt=0,
        description="Shift s of the sampling times, t' = s t / (1 + (s - 1) t); above 1, more steps are near "
        "the noise. This shift is independent of time.shift, the shift of training times",
    )
    shift_by: ShiftBy = Field(
        "none",
        description="Factor of shift that depends on the image size: sqrt (root of the number of tokens, 1 at "
        "256 tokens), flux (exp of FLUX's mu), or dimension (RAE: root of the number of latent values, 1 at 4096)",
    )

    guidance: Literal["classifier-free", "self", "path-drop"] = Field(
        "classifier-free",
        description="Default kind of guidance for sampling; an evaluation has its own setting, the same for all arms",
    )

    def shift_at(self, tokens: int, token_numbers: int) -> float:
        """Return the shift of the sampling grid for images of this many tokens with `token_numbers` numbers each."""
        return self.shift * shift_factor(self.shift_by, tokens, token_numbers)


class StageSettings(Settings):
    """A stage of training on images smaller than `data.size_px`."""

    size_px: int = Field(
        ge=16,
        le=LARGEST_PX,
        description="Width and height of the images in this stage; shapes of data.buckets are scaled down in "
        "proportion",
    )
    until: int = Field(
        ge=1, description="Step at which this stage ends, which is the first step of the next stage, counted from 0"
    )
    batch: int | None = Field(
        None, ge=1, description="Number of images per update in this stage; by default train.batch"
    )


SKIP_WINDOW_STEPS = 100
"""Number of consecutive steps in which the share of skipped steps must not exceed `train.most_skipped`."""


class SpikeSettings(Settings):
    """Criterion for spikes: see `train.skip_spikes`."""

    deviations: float = Field(
        6.0,
        gt=0,
        description="A step is a spike if its loss or gradient norm is this many standard deviations "
        "above the mean of the window",
    )
    window: int = Field(
        128, ge=4, description="Number of steps in the window; no step is skipped until half of the window is filled"
    )


class TrainSettings(Settings):
    steps: int = Field(100_000, ge=1, description="Number of updates of the weights")
    batch: int = Field(256, ge=1, description="Number of images per update, over all micro-batches")
    accumulate: int = Field(1, ge=1, description="Micro-batches per update")
    warmup_steps: int = Field(
        1000, ge=0, description="Number of warm-up steps, in which the learning rate rises linearly from 0"
    )
    schedule: Literal["constant", "cosine"] = Field(
        "constant", description="Learning rate after the warm-up, either constant or decreasing to 0 along a cosine"
    )
    clip_norm: float | None = Field(
        0.2, gt=0, description="Global gradient norm to which gradients are clipped; null: no clipping"
    )
    most_skips: int = Field(20, ge=1, description="Number of skipped steps in a row at which the run ends as diverged")
    most_skipped: float = Field(
        0.25,
        gt=0,
        le=1,
        description=f"Largest share of skipped steps, in any {SKIP_WINDOW_STEPS} steps and in the whole run; "
        f"above it, the run ends as diverged",
    )
    most_weight_rms: float | None = Field(
        1000.0,
        gt=0,
        description="Largest root mean square of a parameter tensor; above it, or if not finite, the run ends "
        "as diverged. null: no limit",
    )
    skip_spikes: SpikeSettings | None = Field(
        None,
        description="Skip steps whose loss or gradient norm is far above that of earlier steps; null: skip only "
        "steps whose loss or gradient norm is not finite",
    )
    stages: tuple[StageSettings, ...] = Field(
        (), description="Early training stages with smaller images; a last stage at data.size_px follows"
    )

    @property
    def batches(self) -> tuple[int, ...]:
        """Return the number of images per update in each stage, in the order of the stages."""
        return (*(stage.batch or self.batch for stage in self.stages), self.batch)

    @property
    def alike(self) -> int:
        """Return how many consecutive images must share a shape, so that each stage's micro-batches have one shape."""
        return math.lcm(*(batch // self.accumulate for batch in self.batches))

    def batch_at(self, step: int) -> int:
        """Return the number of images in a step, counted from 0."""
        return next((stage.batch or self.batch for stage in self.stages if step < stage.until), self.batch)

    def images_before(self, step: int) -> int:
        """Return the number of images of all steps before this one."""
        images, first = 0, 0
        for stage, batch in zip(self.stages, self.batches, strict=False):
            images += max(0, min(step, stage.until) - first) * batch
            first = stage.until
        return images + max(0, step - first) * self.batch

    def step_at(self, image: int) -> int:
        """Return the step of the image at this position of the order."""
        first = 0
        for stage, batch in zip(self.stages, self.batches, strict=False):
            if image < (stage.until - first) * batch:
                return first + image // batch
            image -= (stage.until - first) * batch
            first = stage.until
        return first + image // self.batch

    @property
    def warmup_warning(self) -> str | None:
        """Return a warning if the warm-up does not end before the training, otherwise None."""
        if self.warmup_steps <= self.steps:
            return None
        return (
            f"train.warmup_steps is {self.warmup_steps:,}, and the run has {self.steps:,} steps (train.steps): the "
            f"learning rate never exceeds {self.steps / self.warmup_steps:.0%} of optimizer.lr; lower "
            "train.warmup_steps"
        )

    def problems(self) -> Iterator[str]:
        if self.batch % self.accumulate:
            yield f"batch ({self.batch}) must be a multiple of accumulate ({self.accumulate})"
        for stage in self.stages:
            if stage.batch is not None and stage.batch % self.accumulate:
                yield f"stages: batch ({stage.batch}) must be a multiple of accumulate ({self.accumulate})"
        if self.skip_spikes is not None and self.skip_spikes.window >= 2 * self.steps:
            yield (
                f"skip_spikes.window is {self.skip_spikes.window}, but the run has {self.steps} steps, and no spike is "
                "known before half of the window is filled; lower it"
            )


class IslandSettings(Settings):
    """Operations of the denoiser whose precision can be set one by one. The defaults change nothing.

    With `bf16`, every operand and result of the operation is rounded to bf16, whatever `compute` is. Under `compute:
    fp32`, operations set to `bf16` are the only operations in bf16.
    """

    norms: Literal["fp32", "bf16"] = Field("fp32", description="LayerNorm and RMSNorm: statistics and scaling")
    softmax: Literal["fused", "fp32", "bf16"] = Field(
        "fused",
        description="Precision of attention (scores, softmax, weighted sum). fused: a kernel that computes in "
        "fp32, with inputs and outputs in the type of `compute`",
    )
    rope: Literal["fp32", "bf16"] = Field(
        "fp32", description="Precision of the rotation of queries and keys, and of its table"
    )
    timestep: Literal["fp32", "bf16"] = Field(
        "fp32", description="Precision of t as an input of the denoiser; the sinusoidal embedding is computed in fp32"
    )
    modulation: Literal["autocast", "fp32", "bf16"] = Field(
        "autocast",
        description="Precision of adaLN: time embedding, scale, shift, gate and residual addition. autocast: "
        "linear layers in the type of `compute`, other operations in the type of their inputs",
    )


class PrecisionSettings(Settings):
    """Precision of a run.

    `storage` is the dtype of the trained weights and of the optimizer's moments. `compute` is the dtype of matrix
    products. Weights that belong to losses, and weight averages, are always fp32.
    """

    storage: Literal["fp32", "bf16"] = Field(
        "fp32", description="Type of the stored weights and of the optimizer's moments"
    )
    rounding: Literal["nearest", "stochastic", "kahan"] = Field(
        "nearest", description="How an updated weight is rounded to bf16"
    )
    compute: Literal["fp32", "bf16"] = Field("bf16", description="Type of the matrix products")
    gather: Literal["fp32", "bf16"] = Field(
        "fp32",
        description="Type in which FSDP2 gathers weights; bf16 halves the traffic, but also rounds the "
        "weights of norms",
    )
    matmul: Literal["plain", "fp8"] = Field(
        "plain",
        description="Matrix products of the blocks' linear layers, either plain (in the type of `compute`) or in FP8",
    )
    islands: IslandSettings = Field(
        IslandSettings(), description="Islands: operations of the denoiser, each with its own precision"
    )
    loss_scale: float = Field(
        1.0, gt=0, description="Factor by which the loss is multiplied; the gradients are divided by it before clipping"
    )

    def check(self, model: ModelSettings) -> None:
        """Raise ValueError if a size of the model does not allow FP8 products."""
        for layer, setting, size in (
            ("img_qkv_proj", "model.width", model.width),
            ("gate_proj", "model.width × model.mlp_ratio", model.hidden),
        ):
            if self.matmul == "fp8" and size % FP8_MULTIPLE:
                raise ValueError(
                    f"precision.matmul is fp8, which needs layer sizes that are multiples of {FP8_MULTIPLE}, "
                    f"but {layer} has {size} ({setting})"
                )

    def problems(self) -> Iterator[str]:
        if self.gather == "bf16" and self.compute == "fp32":
            yield "weights gathered in bf16 are computed with in bf16: set compute to bf16, or gather to fp32"
        if self.storage == "bf16" and self.compute == "fp32":
            yield "weights stored in bf16 are computed with in bf16: set compute to bf16"
        if self.storage == "fp32" and self.rounding != "nearest":
            yield f"rounding '{self.rounding}' is for storage bf16; fp32 is not rounded"
        if self.matmul == "fp8" and (self.storage, self.compute) != ("fp32", "bf16"):
            yield "matmul fp8 is for weights stored in fp32 with compute bf16"
        for name in ("softmax", "modulation"):
            if self.compute == "fp32" and getattr(self.islands, name) == "fp32":
                yield f"islands.{name} fp32 changes nothing where compute is fp32; leave it out"


class DistributionSettings(Settings):
    """Distribution of a run over the ranks that `torchrun` starts. A single process does not use it."""

    kind: Literal["ddp", "fsdp"] = Field(
        "ddp", description="ddp: weights are replicated on each rank; fsdp: weights are sharded (FSDP2)"
    )
    shards: int | None = Field(
        None,
        ge=1,
        description="fsdp: number of ranks over which weights are sharded; across groups of that many ranks, "
        "they are replicated (HSDP)",
    )
    reshard: bool = Field(True, description="fsdp: free a block's gathered weights after its forward pass")

    def problems(self) -> Iterator[str]:
        if self.kind == "ddp" and (self.shards is not None or not self.reshard):
            yield "shards and reshard are for kind fsdp; with ddp every rank has all weights"


class WatchdogSettings(Settings):
    """Limits after which all ranks that `torchrun` started are ended because one rank is stuck."""

    multiple: float = Field(
        20.0,
        ge=1,
        description="Longest time of a step before the watchdog ends the run, as a multiple of the median step",
    )
    floor_minutes: float | None = Field(
        15.0,
        gt=0,
        description="Lower bound of the time limit in minutes, however short the steps are; a step's time "
        "includes compiling, a save and an evaluation. null: no watchdog",
    )


ProtocolName = Literal["mini", "pocket", "prx", "prx-speedrun"]
"""Names of the packaged protocols. The names are listed here because a plan opens no file."""
TrackerName = Literal["tensorboard", "wandb", "trackio", "mlflow"]


class RunSettings(Settings):
    """Housekeeping settings.

    Housekeeping cannot change what a run learns, so the plan's hash and an arm's diff leave them out.
    """

    device: str = Field("auto", description="Device: auto, cpu, cuda or cuda:N")
    threads: int = Field(
        1,
        ge=1,
        description="Number of CPU threads for computing. The number of threads decides the last bits of "
        "results, so the default "
        "does not depend on the machine. A single run on a machine is faster with more threads",
    )
    deterministic: bool = Field(
        True,
        description="On a GPU, use deterministic algorithms only, so that the same seed gives the same run to the bit. "
        "An event and the report name operations that have no deterministic algorithm. Nothing changes on the CPU",
    )
    save_every_steps: int = Field(1000, ge=1, description="Number of steps between two checkpoints")
    save: Literal["auto", "wait", "background"] = Field(
        "auto",
        description="wait: training pauses while a checkpoint is written. background: the state is copied to "
        "host memory and written during training. auto: background once saves have taken over 1% of the "
        "time, if the copy fits into half of the free memory",
    )
    keep_checkpoints: int = Field(
        2, ge=2, description="Number of checkpoints to keep; at least two, in case one is damaged"
    )
    log_every_steps: int = Field(10, ge=1, description="Number of steps between two lines of `metrics.jsonl`")
    trackers: tuple[TrackerName, ...] = Field(
        (),
        description="Experiment trackers that get the run's metrics, scores, images and plan. Each one is an "
        "optional dependency (extra). A tracker that fails does not stop the run",
    )
    tracker_project: str = Field(
        "tintype", min_length=1, description="Name of the project in wandb and trackio, and of the experiment in mlflow"
    )
    ranks: int = Field(
        1,
        ge=1,
        description="Number of processes, each with its own GPU, that train one run of a study; `tintype train` "
        "uses as many as torchrun starts",
    )
    distribution: DistributionSettings = Field(
        DistributionSettings(), description="How several ranks hold the weights: replicated or sharded"
    )
    watchdog: WatchdogSettings = Field(WatchdogSettings(), description="When the watchdog ends ranks that are stuck")
    latents: Literal["none", "disk"] = Field(
        "none",
        description="disk: encode each image once and cache its latents on disk, in fp32, for all runs. Latents "
        "of pixels and of trained tokenizers are never cached",
    )
    latents_folder: str | None = Field(
        None,
        min_length=1,
        description="Folder of the cached latents; by default a folder whose name is a hash of their inputs",
    )

    protocol: ProtocolName | None = Field(
        None,
        description="Preset of the evaluation in `tintype evaluate` and in studies with this plan; null: the "
        "general defaults",
    )
    text_embeddings: Literal["live", "disk"] = Field(
        "live",
        description="disk: encode each caption once and cache its embedding on disk, for all runs. Embeddings "
        "of trained text encoders are never cached",
    )

    def problems(self) -> Iterator[str]:
        if self.latents_folder is not None and self.latents == "none":
            yield "latents_folder is where latents are cached, but run.latents is none; set it to disk"
        for name in dict.fromkeys(self.trackers):
            if self.trackers.count(name) > 1:
                yield f"trackers: '{name}' is given twice"


def plain(settings: Settings) -> Plain:
    """Return plain dictionaries, lists and scalars, with every default written out."""
    return settings.model_dump(mode="json")


def chosen(settings: Settings) -> Plain:
    """Return plain data of the settings that are not at their defaults, and of the kinds of parts.

    The hash of a plan is computed from it. So a setting that is added later keeps the hash of every plan that does not
    use it. The default of a setting must not change: plans with the old and the new default would have the same hash.
    """
    found: Plain = _chosen(settings, plain(settings))
    return found


def _chosen(value: object, content: Any) -> Any:
    """Return the plain `content` of a value, without settings at their defaults."""
    if isinstance(value, Settings):
        beside = value.left_out_of_hash() if isinstance(value, Part) else ()
        return {
            name: _chosen(own, content[name])
            for name, default in _defaults(type(value))
            if name in content and name not in beside
            if (own := getattr(value, name)) != default or name == "kind"
        }
    if isinstance(value, Mapping):
        return {key: _chosen(one, content[key]) for key, one in value.items()}
    if isinstance(value, (tuple, list)):
        return [_chosen(one, inner) for one, inner in zip(value, content, strict=True)]
    return content


@cache
def _defaults(settings: type[Settings]) -> list[tuple[str, object]]:
    """Return each setting that can change what a run learns, with its default."""
    fields = settings.model_fields.items()
    return [
        (name, field.get_default(call_default_factory=True))
        for name, field in fields
        if not is_housekeeping(settings, name)
    ]
