"""The seams: protocols of the exchangeable parts, and the data that passes between them.

B: samples, C: channels, H, W: latent rows and columns, L: tokens, D: width of the denoiser, K: kept tokens,
F: size of a feature vector.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn

from tintype import rng
from tintype.runtime.clock import Clock
from tintype.runtime.dist import ALONE, World
from tintype.runtime.layout import Layout


@dataclass(frozen=True)
class Draws:
    """The random numbers of a batch: one stream family per sample position, whatever the batch."""

    seed: int
    position_B: Tensor

    def uniform(self, stream: str, shape: tuple[int, ...] = ()) -> Tensor:
        return rng.uniform(self.seed, stream, self.position_B, shape)

    def normal(self, stream: str, shape: tuple[int, ...] = ()) -> Tensor:
        return rng.normal(self.seed, stream, self.position_B, shape)


@dataclass(frozen=True)
class TextTokens:
    """An encoded batch of captions; `mask_BL` is True where there is text and False at padding."""

    tokens_BLC: Tensor
    mask_BL: Tensor
    lengths: tuple[int, ...] | None = None
    """Real tokens of each caption, which then come first, where the host knows them."""


Merge = Callable[[Tensor, Tensor, Tensor | None], Tensor]
"""(all tokens before a range of blocks, the kept ones after it, their indices or None for all) -> all tokens."""


@dataclass(frozen=True)
class Route:
    """Blocks `start` to `end` - 1 see the kept tokens only, or do not run where none is kept."""

    start: int
    end: int
    kept_BK: Tensor | None
    """None where all are kept."""
    merge: Merge | None = None
    """Makes the tokens after the range. Without it those that skipped come back unchanged."""

    def __post_init__(self) -> None:
        if not 0 <= self.start < self.end:
            raise ValueError(f"a route from block {self.start} to {self.end} holds no block")


class _Routed:
    features: Mapping[int, Tensor]
    route: Route | None

    def tokens_at(self, block: int) -> Tensor | None:
        """Indices of the tokens in `features[block]`, or None when they are all there."""
        if self.route is None or not self.route.start <= block < self.route.end:
            return None
        return self.route.kept_BK


@dataclass(frozen=True)
class Tapped(_Routed):
    """Features of the tapped blocks, from a pass that ends with the last of them, and the route of the tokens."""

    features: Mapping[int, Tensor]
    route: Route | None


@dataclass(frozen=True)
class Output(_Routed):
    """Prediction of the denoiser, features of the tapped blocks, and the route of the tokens."""

    prediction_BCHW: Tensor
    features: Mapping[int, Tensor]
    route: Route | None
    attention: Mapping[int, Tensor] = field(default_factory=dict)
    """Attention among the image tokens in some blocks, before the softmax: [B, heads, K, K]."""
    class_BT: Tensor | None = None
    """Velocity of the class token, where the denoiser has one."""


@dataclass(frozen=True)
class Sample:
    """A point on the path: x_t between the data x (t = 0) and the noise (t = 1)."""

    x_BCHW: Tensor
    noise_BCHW: Tensor
    t_B: Tensor
    x_t_BCHW: Tensor


TapAverage = Callable[[Tensor, frozenset[int]], Tapped]
"""(t of each sample, blocks) -> features of the averaged denoiser on the batch's images and noise at these t."""


@dataclass(frozen=True)
class LossInputs:
    """Inputs of a loss term. Velocities are what the objective compares, whatever the denoiser predicts."""

    output: Output
    sample: Sample
    velocity_BCHW: Tensor
    """The prediction, as a velocity."""
    target_BCHW: Tensor
    """The velocity that it should be."""
    weight_B: Tensor | None
    """How much each sample counts in the objective, where the plan weights them."""
    image_BCHW: Tensor | None
    """None where no term asks for the images: cached latents need none."""
    captions: Sequence[str]
    draws: Draws
    step: int
    seen: Tensor | None = None
    """Result of the term's own `look` at the clean images."""
    world: World = ALONE
    """The ranks that share the micro-batch; all else here is of this rank's samples."""
    averaged: TapAverage | None = None
    """Runs the weight average, without gradient and with all tokens; the denoiser's own weights before its first update
    and where the plan has none."""


@dataclass(frozen=True)
class LossContext:
    """The run, as far as a loss term may know it when it is built."""

    width: int
    grid: tuple[int, int]
    """Rows and columns of the denoiser's tokens, of the square images of the last stage."""
    device: torch.device
    source: ImageSource
    data_key: str
    """Names the data and all that decides its pixels."""
    token_px: int | None = None
    """Side of the square of pixels that a token covers; None where every image has the grid above."""
    grids: tuple[tuple[int, int], ...] = ()
    """Grids of the shapes that `source` has, where there are several."""
    stage_grids: tuple[tuple[tuple[int, int], ...], ...] = ()
    """Grids of the same shapes in each earlier stage."""
    batch: int = 1
    """Images of a micro-batch of one rank, in the last stage."""

    def grid_of(self, image_BCHW: Tensor) -> tuple[int, int]:
        """Return the grid of tokens of a batch of images, which have one shape."""
        return self.grid_at(*image_BCHW.shape[-2:])

    def grid_at(self, height: int, width: int) -> tuple[int, int]:
        """Return the grid of tokens of images of this size in pixels."""
        return self.grid if self.token_px is None else (height // self.token_px, width // self.token_px)


@dataclass(frozen=True)
class Record:
    """Captions and attributes of one image."""

    captions: Mapping[str, str]
    attributes: Any


class Order(Protocol):
    """Map from training positions to images: a pure function, the same for any number of ranks."""

    def ids(self, first: int, count: int) -> list[int]:
        """Return the ids of the source's images at positions first … first + count - 1."""

    def once(self, first: int, end: int, chunk: int) -> Iterator[list[int]]:
        """Yield the ids at positions first … end - 1 in chunks, each once or little more: those to prepare before."""


class ImageSource(Protocol):
    @property
    def identity(self) -> str | None:
        """SHA-256 over its images and captions; None where the settings say all."""

    @property
    def columns(self) -> frozenset[str]:
        """The captions that each record has."""

    def __len__(self) -> int: ...
    def prepare(self, ids: Sequence[int]) -> None:
        """Make the images now, where the source caches them."""

    def expect(self, ids: Sequence[int]) -> None:
        """Prefetch a batch, where images are made anew each time. The call does not wait.

        Batches are prefetched in the order in which they are read; a second call for one changes nothing.
        """

    def images(self, ids: Sequence[int]) -> Tensor: ...
    def records(self, ids: Sequence[int]) -> list[Record]: ...


@dataclass(frozen=True)
class TransformersForm:
    """A text encoder as transformers loads it."""

    network: Any
    """A model that gives `last_hidden_state`."""
    tokenizer: Any
    nothing: int
    """The one token of a caption of which the tokenizer leaves nothing."""
    max_tokens: int
    clean: bool | str
    compute: str


class TextEncoder(Protocol):
    @property
    def dim(self) -> int: ...
    @property
    def identity(self) -> str | None:
        """SHA-256 over weights, tokenizer and settings of a frozen encoder; None where it is trained."""

    def identity_at(self, max_tokens: int) -> str | None:
        """Return the identity that it would have if it truncated captions to this many tokens."""

    def truncate(self, captions: Sequence[str], max_tokens: int) -> list[str]:
        """Truncate captions to `max_tokens` tokens. Special tokens count."""

    def encode(self, captions: Sequence[str]) -> TextTokens:
        """Encode captions to a fixed number of tokens; each caption, the empty one too, has at least one."""

    def transformers_form(self) -> TransformersForm | None:
        """Return the network and the tokenizer as transformers loads them; None where it has no class for them."""


@dataclass(frozen=True)
class DiffusersForm:
    """An autoencoder of diffusers, and how its latents are normalised: z = (latent - shift) · scale."""

    network: Any
    shift_C: Tensor
    scale_C: Tensor


class Tokenizer(Protocol):
    @property
    def channels(self) -> int: ...
    @property
    def stride_px(self) -> int: ...
    @property
    def identity(self) -> str | None:
        """SHA-256 over its weights and its normalisation; None where it has neither."""

    @property
    def arithmetic(self) -> str:
        """Number type of the network and form of its moments, in words: other words mean other numbers."""

    @property
    def moment_channels(self) -> int: ...
    def encode(self, image_BCHW: Tensor, draws: Draws) -> Tensor:
        """Encode uint8 images to float32 latents of about mean 0 and deviation 1, without gradient.

        `draws` serve a tokenizer that samples: a latent is a function of its image and its draws, whatever the batch.
        """

    def moments(self, image_BCHW: Tensor) -> Tensor:
        """Return the part of `encode` without chance, float32 [B, moment_channels, H, W]: this is cached of an image.

        On a CPU it is a function of the image alone, to the last bit, whatever the batch.
        """

    def drawn(self, moment_BCHW: Tensor, draws: Draws) -> Tensor:
        """Draw latents from moments: `encode(image, draws)` is `drawn(moments(image), draws)`."""

    def decode(self, z_BCHW: Tensor) -> Tensor:
        """Decode latents to uint8 images."""

    def decode_float(self, z_BCHW: Tensor) -> Tensor:
        """Decode latents to float32 images before they are rounded: about [-1, 1]."""

    def diffusers_form(self) -> DiffusersForm | None:
        """Return the network and its normalisation; None where no autoencoder of diffusers has these latents."""

    def check_latents(self, mean_C: Tensor, std_C: Tensor) -> str | None:
        """Return what is wrong with latents of these means and deviations, and the remedy; None for nothing."""


class Objective(Protocol):
    """The prediction of the denoiser. The main loss compares `velocity` and `target`."""

    def draw(self, x_BCHW: Tensor, draws: Draws) -> Sample: ...
    @property
    def noise_scale(self) -> float:
        """Deviation of the noise."""

    def target(self, sample: Sample) -> Tensor: ...
    def velocity(self, prediction_BCHW: Tensor, x_t_BCHW: Tensor, t_B: Tensor) -> Tensor: ...
    def x_weight(self, t_B: Tensor) -> Tensor:
        """Return the factor between the squared error of x and the loss, at each t.

        Where x is not predicted itself, x is x_t - t v. v is the velocity that the loss compares, clamped or not.
        """

    def noise_weight(self, t_B: Tensor) -> Tensor:
        """Return the factor between the squared error of the noise and the loss, at each t.

        Where the noise is not predicted itself, it is x_t + (1 - t) v, with the same v.
        """


class TimeDensity(Protocol):
    """The density from which training draws t."""

    def draw(self, draws: Draws) -> Tensor:
        """Return t of each sample, fp32 in [0, 1)."""

    def mean_of(self, function: Callable[[Tensor], Tensor]) -> float:
        """Return the mean of a function of t under the density."""

    def at(self, height: int, width: int) -> TimeDensity:
        """Return the density for latents of this size."""


class MainLoss(Protocol):
    """Main loss: a function of the difference between the objective's `velocity` and `target`."""

    def __call__(self, velocity_BCHW: Tensor, target_BCHW: Tensor, t_B: Tensor) -> Tensor:
        """Return the loss of each sample, not weighted."""


class Weighting(Protocol):
    """Weight of a sample at t in the main loss."""

    def __call__(self, t_B: Tensor) -> Tensor: ...


class AverageUpdate(Protocol):
    """One update of the weight averages, which an optimizer can do along with the weights.

    Each average moves by its share of the way to its weight: average + share x (weight - average).
    """

    shares: Sequence[Tensor]
    """A scalar for each of a weight's averages, 0 where the step is skipped."""

    def take(self, weight: Tensor) -> list[Tensor]:
        """Return the averages of a weight, in the order of `shares`; the caller moves them. Empty: it has none."""

    def finish(self) -> None:
        """Move the averages that nobody took."""


class WeightAverage(Protocol):
    """Average, in fp32, of the weights that it was built with; the optimizer updates those in place."""

    def begin(self, skipped: Tensor) -> AverageUpdate:
        """Count an update, unless `skipped` is 1, and return it: it is done after the weights have moved."""

    def update(self, skipped: Tensor) -> None:
        """Average the weights in, unless `skipped` (a scalar on their device) is 1. The host does not wait."""

    def tensors(self) -> dict[str, Tensor]:
        """Return its whole state: a checkpoint saves these tensors and restores them in place."""


class Router(Protocol):
    """Choice of the tokens that go through each block. One with parameters is an `nn.Module` too."""

    def plan(self, grid: tuple[int, int], step: int, draws: Draws) -> Route | None:
        """Return the route of a training step."""

    def whole(self) -> Route | None:
        """Return the route of all tokens through all blocks, for sampling and validation."""

    def sparse(self, kept_BK: Tensor) -> Route:
        """Return the route on which only these tokens see the routed blocks: the weak branch of some guidances."""


class LossTerm:
    """A term beside the objective; its weight and schedule are the plan's. One with parameters is an `nn.Module` too.

    The order: built; `ready` before the first step that needs it; `prepare` before the first step; at each step
    `expect` for the next batches, `look`, then `loss`; and `release` when its weight stays zero.
    """

    taps: frozenset[int] = frozenset()
    """Blocks (counted from 0) whose output tokens it wants."""
    attention_taps: frozenset[int] = frozenset()
    """Blocks (counted from 0) whose attention among image tokens it wants."""
    needs_images: bool = True
    """Whether `look` or `loss` want the clean images. Without, `look` is not called: fetching images takes time."""

    needs_average: bool = False
    """Whether it calls `LossInputs.averaged`."""
    caches: bool = False
    """Whether it caches what `look` returns of an image: then `filled_together`, `prepare` and `expect` are called."""

    def ready(self) -> str | None:
        """Load what only a running loss needs, such as a teacher, and return its identity.

        A run is resumed with the same identity, or not at all.
        """

    def filled_together(self, ids: Sequence[int]) -> list[list[int]]:
        """Return the images that are computed together, and of which some are among these. Each image is alone here."""
        return [[id_] for id_ in ids]

    def prepare(self, ids: Sequence[int], shape: tuple[int, int], images: Callable[[Sequence[int]], Tensor]) -> None:
        """Compute and cache what `look` returns of these images, whole blocks, which have this height and width.

        `images` returns some of them on the device. Every rank is given all: those that share a cache share the work.
        """

    def expect(self, ids: Sequence[int], shape: tuple[int, int]) -> None:
        """Begin to read what `look` will return of a batch of images of this height and width."""

    def look(self, image_BCHW: Tensor, ids: Sequence[int]) -> Tensor | None:
        """Return what it needs of the clean images, without gradient; its time is reported as the teacher's."""

    def loss(self, view: LossInputs) -> Tensor:
        """Return the loss of each sample."""
        raise NotImplementedError

    def release(self) -> None:
        """Free what `ready` loaded."""


@dataclass(frozen=True)
class JointGroup:
    """Parameters that a joint training optimizes in a group of their own, with AdamW."""

    name: str
    """Name in `optimizer.json`."""
    prefix: str
    """Prefix of the names of its parameters."""
    lr: float


class JointBatch(Protocol):
    """A micro-batch as a joint training sees it."""

    @property
    def image_BCHW(self) -> Tensor | None: ...  # noqa: N802
    @property
    def text(self) -> TextTokens: ...
    @property
    def draws(self) -> Draws: ...
    @property
    def step(self) -> int: ...
    @property
    def seen(self) -> Mapping[str, Tensor | None]:
        """Results of `look` by the name of the loss term."""


class JointHost(Protocol):
    """The run that a joint training belongs to."""

    @property
    def world(self) -> World: ...
    def compute(self) -> AbstractContextManager[None]:
        """Run matrix products in the type of the denoiser."""

    def tap(self, x_BCHW: Tensor, batch: JointBatch, taps: frozenset[int]) -> Tapped:
        """Run the denoiser up to the last tapped block, at the t and with the noise of the batch."""


class JointStep(Protocol):
    """The part of a joint training in one step."""

    def latents(self, batch: JointBatch, last: bool) -> Tensor:
        """Add the gradients of a micro-batch, and return the latents that the denoiser trains on."""

    def clip(self, grad_norm: Tensor) -> Tensor:
        """Clip its own gradients; return the given norm of all others, or NaN where the step must be skipped."""

    def finish(self, skipped: Tensor) -> dict[str, Tensor]:
        """Return the numbers to log. A skipped step leaves no trace."""


class JointTraining(Protocol):
    """Trains the tokenizer with the denoiser, by losses of its own and in a backward pass of its own.

    The order: built with the modules; `begin` once they are on the device; `attach` once they are laid out over the
    ranks; `ready` before the first step.
    """

    @property
    def modules(self) -> Mapping[str, nn.Module]:
        """The modules that it trains, by their names in a checkpoint."""

    @property
    def groups(self) -> Sequence[JointGroup]: ...
    @property
    def clipped_apart(self) -> Sequence[nn.Parameter]:
        """Parameters whose gradients it clips itself."""

    def begin(self, source: ImageSource, order: Order, seed: int, images: int, alike: int | None = None) -> None:
        """Measure what it needs of the first of the run's `images` images, which have the first stage's size.

        `alike` is the number of them, in order, that are sure to have one shape; None where all have it.
        """

    def attach(self, terms: Mapping[str, LossTerm], frozen: Sequence[nn.Parameter], layout: Layout) -> None:
        """Take the loss terms, by name, and the parameters that its own backward pass must not reach."""

    def ready(self) -> dict[str, str | None]:
        """Load what only training needs, and return its identities."""

    def begin_step(self, host: JointHost, clock: Clock, loss_scale: float, accumulate: int) -> JointStep: ...


TrackerStatus = Literal["finished", "stopped", "failed"]
VerdictRow = Mapping[str, str | float | None]
"""A comparison of a study in plain words and numbers. All rows have the same keys."""


class Tracker(Protocol):
    """Mirrors a run or a study elsewhere. Its files stay what reports read. Any method may raise: the run goes on."""

    def log(self, step: int, numbers: Mapping[str, float]) -> None: ...
    def log_images(self, step: int, files: Mapping[str, Path]) -> None:
        """Log image files by name."""

    def log_verdicts(self, rows: Sequence[VerdictRow]) -> None:
        """Log the verdicts of a study, at least one."""

    def close(self, status: TrackerStatus) -> None:
        """Send what is left. The same run may be opened again."""


VelocityFn = Callable[[Tensor, float], Tensor]
"""(x_t_BCHW, t) -> velocity, all samples at the same t."""


class Sampler(Protocol):
    """Integrates the velocity from noise (t = 1) to data (t = 0)."""

    def __call__(
        self, velocity: VelocityFn, noise: Tensor, times: Sequence[float], draws: Draws, on_step: Callable[[], None]
    ) -> Tensor:
        """Return the data at the last of the descending `times`, from the noise at the first.

        It calls `on_step` after each of them. Random numbers come from `draws`: an image depends neither on its batch
        nor on torch's generator. The state is fp32; its first dimension is the samples', and the others can have any
        shape: with a class token, rows of numbers.
        """


class Encoder(Protocol):
    """A frozen image encoder. Its preprocessing is a part of every metric that is taken on it."""

    def __hash__(self) -> int: ...
    @property
    def name(self) -> str: ...
    @property
    def definition(self) -> str:
        """The network, its output, and exactly how an image is brought to its input, in words."""

    @property
    def identity(self) -> str:
        """SHA-256 over the weights and the preprocessing: features of two identities must never be compared."""

    def prepare(self, image_BCHW: Tensor) -> Tensor:
        """Bring uint8 images of one size to the network's float32 input, on the network's device."""

    def encode(self, input_BCHW: Tensor) -> Tensor:
        """Encode prepared images to float32 features, one row for each, on the network's device."""


class TextImageEncoder(Encoder, Protocol):
    """An encoder that puts texts into the same space as images."""

    @property
    def text_identity(self) -> str:
        """SHA-256 over the tokenizer, which `identity` leaves out: with it, it decides the features of texts."""

    def encode_text(self, prompts: Sequence[str]) -> Tensor: ...


Direction = Literal["lower", "higher"]
Range = tuple[float | None, float | None]
"""The smallest and the largest value that a metric can have; None where there is no bound."""
ANY_VALUE: Range = (None, None)
