"""Define the seams, which are protocols of exchangeable parts, and the data that the parts pass to each other.

Tensor dimensions are B (samples), C (channels), H (latent rows), W (latent columns), L (tokens), D (width of the
denoiser), K (kept tokens) and F (size of a feature vector).
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
    """The random numbers of a batch. Each sample position has its own random streams, independent of the batch."""

    seed: int
    position_B: Tensor

    def uniform(self, stream: str, shape: tuple[int, ...] = ()) -> Tensor:
        return rng.uniform(self.seed, stream, self.position_B, shape)

    def normal(self, stream: str, shape: tuple[int, ...] = ()) -> Tensor:
        return rng.normal(self.seed, stream, self.position_B, shape)


@dataclass(frozen=True)
class TextTokens:
    """An encoded batch of captions. `mask_BL` is True for text tokens and False for padding."""

    tokens_BLC: Tensor
    mask_BL: Tensor
    lengths: tuple[int, ...] | None = None
    """Number of text tokens of each caption, if known on the host. Text tokens then come before the padding."""


Merge = Callable[[Tensor, Tensor, Tensor | None], Tensor]
"""Function (all tokens before the blocks, kept tokens after them, indices of kept tokens or None) -> all tokens."""


@dataclass(frozen=True)
class Route:
    """The path of the tokens through the blocks.

    Blocks `start` to `end` - 1 process only the kept tokens; if no token is kept, these blocks do not run.
    """

    start: int
    end: int
    kept_BK: Tensor | None
    """Indices of the kept tokens; None if all tokens are kept."""
    merge: Merge | None = None
    """Function that computes the tokens after the routed blocks; None to return skipping tokens unchanged."""

    def __post_init__(self) -> None:
        if not 0 <= self.start < self.end:
            raise ValueError(f"a route from block {self.start} to {self.end} contains no blocks")


class _Routed:
    features: Mapping[int, Tensor]
    route: Route | None

    def tokens_at(self, block: int) -> Tensor | None:
        """Return the indices of the tokens in `features[block]`; None if no tokens were left out."""
        if self.route is None or not self.route.start <= block < self.route.end:
            return None
        return self.route.kept_BK


@dataclass(frozen=True)
class Tapped(_Routed):
    """Features of the tapped blocks and the route, from a forward pass that ends with the last tapped block."""

    features: Mapping[int, Tensor]
    route: Route | None


@dataclass(frozen=True)
class Output(_Routed):
    """Prediction of the denoiser, features of the tapped blocks, and the route of the tokens."""

    prediction_BCHW: Tensor
    features: Mapping[int, Tensor]
    route: Route | None
    attention: Mapping[int, Tensor] = field(default_factory=dict)
    """Attention logits between the image tokens in some blocks, before the softmax, as [B, heads, K, K]."""
    class_BT: Tensor | None = None
    """Velocity of the class token; None for a denoiser without a class token."""


@dataclass(frozen=True)
class Sample:
    """A point x_t on the path between the data x (t = 0) and the noise (t = 1)."""

    x_BCHW: Tensor
    noise_BCHW: Tensor
    t_B: Tensor
    x_t_BCHW: Tensor


TapAverage = Callable[[Tensor, frozenset[int]], Tapped]
"""Function (t of each sample, blocks) -> features of the averaged denoiser for the batch's images and noise."""


@dataclass(frozen=True)
class LossInputs:
    """Inputs of a loss term. The velocities are the ones that the objective compares, for every prediction type."""

    output: Output
    sample: Sample
    velocity_BCHW: Tensor
    """The prediction, converted to a velocity."""
    target_BCHW: Tensor
    weight_B: Tensor | None
    """Weight of each sample in the objective; None if the plan has no weighting."""
    image_BCHW: Tensor | None
    """The images; None if no loss term needs them, since cached latents replace the images."""
    captions: Sequence[str]
    draws: Draws
    step: int
    seen: Tensor | None = None
    """Output of the loss term's own `look` method for the clean images."""
    world: World = ALONE
    """The ranks among which the micro-batch is divided. All other fields contain only this rank's samples."""
    averaged: TapAverage | None = None
    """Run the averaged weights, without gradient and with all tokens.

    Without an average, or before its first update, this method uses the denoiser's own weights.
    """


@dataclass(frozen=True)
class LossContext:
    """Information about the run that is needed to build a loss term."""

    width: int
    grid: tuple[int, int]
    """Rows and columns of the denoiser's tokens, for the square images of the last stage."""
    device: torch.device
    source: ImageSource
    data_key: str
    """Key of the data, including everything that determines its pixels."""
    token_px: int | None = None
    """Side in pixels of the square that a token covers; None if every image has the grid above."""
    grids: tuple[tuple[int, int], ...] = ()
    """Token grids of the image shapes in `source`; empty if all images have one shape."""
    stage_grids: tuple[tuple[tuple[int, int], ...], ...] = ()
    """Token grids of the same image shapes in each earlier stage."""
    batch: int = 1
    """Images per micro-batch and rank in the last stage."""

    def grid_of(self, image_BCHW: Tensor) -> tuple[int, int]:
        """Return the token grid of a batch of images, which must all have the same shape."""
        return self.grid_at(*image_BCHW.shape[-2:])

    def grid_at(self, height: int, width: int) -> tuple[int, int]:
        return self.grid if self.token_px is None else (height // self.token_px, width // self.token_px)


@dataclass(frozen=True)
class Record:
    captions: Mapping[str, str]
    attributes: Any


class Order(Protocol):
    """Map from training positions to images, which is a pure function and does not depend on the number of ranks."""

    def ids(self, first: int, count: int) -> list[int]:
        """Return the ids of the source's images at positions first to first + count - 1."""

    def once(self, first: int, end: int, chunk: int) -> Iterator[list[int]]:
        """Yield the ids at positions first to end - 1 in chunks, to prepare them; a few ids may be repeated."""


class ImageSource(Protocol):
    @property
    def identity(self) -> str | None:
        """Return the SHA-256 over images and captions; None if the settings determine both."""

    @property
    def columns(self) -> frozenset[str]:
        """Return the names of the captions that each record has."""

    def __len__(self) -> int: ...
    def prepare(self, ids: Sequence[int]) -> None:
        """Render the images now, if the source caches images."""

    def expect(self, ids: Sequence[int]) -> None:
        """Prefetch a batch without waiting, if the source renders images again each time.

        Batches must be prefetched in the order in which they are read. A second call for the same batch does nothing.
        """

    def images(self, ids: Sequence[int]) -> Tensor: ...
    def records(self, ids: Sequence[int]) -> list[Record]: ...


@dataclass(frozen=True)
class TransformersForm:
    """A text encoder in the form that transformers loads."""

    network: Any
    """A model that returns `last_hidden_state`."""
    tokenizer: Any
    nothing: int
    """The only token of a caption for which the tokenizer returns no tokens."""
    max_tokens: int
    clean: bool | str
    compute: str


class TextEncoder(Protocol):
    @property
    def dim(self) -> int: ...
    @property
    def identity(self) -> str | None:
        """Return the SHA-256 over a frozen encoder's weights, tokenizer and settings; None for a trainable encoder."""

    def identity_at(self, max_tokens: int) -> str | None:
        """Return the identity of this encoder with another `max_tokens`."""

    def truncate(self, captions: Sequence[str], max_tokens: int) -> list[str]:
        """Truncate captions to `max_tokens` tokens. Special tokens count."""

    def encode(self, captions: Sequence[str]) -> TextTokens:
        """Encode each caption to a fixed number of tokens, at least one even for an empty caption."""

    def transformers_form(self) -> TransformersForm | None:
        """Return the network and the tokenizer for transformers; None if transformers has no class for them."""


@dataclass(frozen=True)
class DiffusersForm:
    """An autoencoder of diffusers, and the normalisation of its latents, z = (latent - shift) · scale."""

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
        """Return the SHA-256 over weights and normalisation; None for a tokenizer without weights and normalisation."""

    @property
    def arithmetic(self) -> str:
        """Describe the network's dtype and the form of its moments; a different description means different numbers."""

    @property
    def moment_channels(self) -> int: ...
    def encode(self, image_BCHW: Tensor, draws: Draws) -> Tensor:
        """Encode uint8 images to float32 latents of about mean 0 and standard deviation 1, without gradient.

        A tokenizer that samples uses `draws`, so that a latent depends on its image and draws, but not on the batch.
        """

    def moments(self, image_BCHW: Tensor) -> Tensor:
        """Return the deterministic part of `encode`, which can be cached, as float32 [B, moment_channels, H, W].

        On a CPU, an image's moments are bit-identical in any batch.
        """

    def drawn(self, moment_BCHW: Tensor, draws: Draws) -> Tensor:
        """Sample latents from moments: `encode(image, draws)` equals `drawn(moments(image), draws)`."""

    def decode(self, z_BCHW: Tensor) -> Tensor:
        """Decode latents to uint8 images."""

    def decode_float(self, z_BCHW: Tensor) -> Tensor:
        """Decode latents to float32 images, before rounding: about [-1, 1]."""

    def diffusers_form(self) -> DiffusersForm | None:
        """Return the network and its normalisation for diffusers; None if diffusers has no such autoencoder."""

    def check_latents(self, mean_C: Tensor, std_C: Tensor) -> str | None:
        """Return the error and its fix if latents have wrong means and standard deviations; None if they are right."""


class Objective(Protocol):
    """The prediction of the denoiser. The main loss compares the fields `velocity` and `target`."""

    def draw(self, x_BCHW: Tensor, draws: Draws) -> Sample: ...
    @property
    def noise_scale(self) -> float:
        """Return the standard deviation of the noise."""

    def target(self, sample: Sample) -> Tensor: ...
    def velocity(self, prediction_BCHW: Tensor, x_t_BCHW: Tensor, t_B: Tensor) -> Tensor: ...
    def x_weight(self, t_B: Tensor) -> Tensor:
        """Return the factor between the squared error of x and the loss, for each t.

        If the network does not predict x, x is computed as x_t - t v, where v is the velocity in the loss (clamped or
        not).
        """

    def noise_weight(self, t_B: Tensor) -> Tensor:
        """Return the factor between the squared error of the noise and the loss, for each t.

        If the network does not predict the noise, the noise is computed as x_t + (1 - t) v, where v is the velocity in
        the loss.
        """


class TimeDensity(Protocol):
    """The density from which training samples t."""

    def draw(self, draws: Draws) -> Tensor:
        """Return t for each sample, as fp32 in [0, 1)."""

    def mean_of(self, function: Callable[[Tensor], Tensor]) -> float:
        """Return the mean of a function of t under the density."""

    def at(self, height: int, width: int) -> TimeDensity:
        """Return the density that is used for latents of this size."""


class MainLoss(Protocol):
    """Main loss, a function of the difference between `velocity` and `target` of the objective."""

    def __call__(self, velocity_BCHW: Tensor, target_BCHW: Tensor, t_B: Tensor) -> Tensor:
        """Return the unweighted loss of each sample."""


class Weighting(Protocol):
    """Weight of a sample at t in the main loss."""

    def __call__(self, t_B: Tensor) -> Tensor: ...


class AverageUpdate(Protocol):
    """One update of the weight averages, which an optimizer can compute together with the update of the weights.

    Each average moves towards its weight by its share, so the new average is average + share x (weight - average).
    """

    shares: Sequence[Tensor]
    """A scalar for each average of a weight; 0 if the step is skipped."""

    def take(self, weight: Tensor) -> list[Tensor]:
        """Return the averages of a weight in the order of `shares`, for the caller to update; empty if it has none."""

    def finish(self) -> None:
        """Update the averages that were not requested by `take`."""


class WeightAverage(Protocol):
    """An fp32 average of the given weights, which the optimizer updates in place."""

    def begin(self, skipped: Tensor) -> AverageUpdate:
        """Count an update, unless `skipped` is 1. The caller must apply the update after the weights have changed."""

    def update(self, skipped: Tensor) -> None:
        """Update the average, unless `skipped` (a scalar on its device) is 1. The host does not wait."""

    def tensors(self) -> dict[str, Tensor]:
        """Return the complete state of the average. A checkpoint saves these tensors and restores them in place."""


class Router(Protocol):
    """A rule that selects the tokens that each block processes. A router with parameters is also an `nn.Module`."""

    def plan(self, grid: tuple[int, int], step: int, draws: Draws) -> Route | None:
        """Return the route of a training step."""

    def whole(self) -> Route | None:
        """Return the route of all tokens through all blocks, for sampling and validation."""

    def sparse(self, kept_BK: Tensor) -> Route:
        """Return the route that sends only these tokens through the routed blocks, for guidance with a weak branch."""


class LossTerm:
    """A loss in addition to the objective. The plan sets the weight and the schedule of the loss term.

    A term with parameters is also an `nn.Module`.

    The trainer calls the methods in this order:

    - construction
    - `ready` before the first step that needs the term
    - `prepare` before the first step
    - `expect` for the next batches, then `look` and `loss` at each step
    - `release` when the weight of the term stays zero
    """

    taps: frozenset[int] = frozenset()
    """Blocks (counted from 0) whose output tokens the term needs."""
    attention_taps: frozenset[int] = frozenset()
    """Blocks (counted from 0) whose attention between image tokens the term needs."""
    needs_images: bool = True
    """Whether `look` or `loss` need the clean images. If no, `look` is not called, since fetching images takes time."""

    needs_average: bool = False
    """Whether the term calls `LossInputs.averaged`."""
    caches: bool = False
    """Whether `look`'s output is cached per image, by `filled_together`, `prepare` and `expect`."""

    def ready(self) -> str | None:
        """Load resources needed only while the term's weight is not zero, such as a teacher; return their identity.

        A run can resume only with the same identity.
        """

    def filled_together(self, ids: Sequence[int]) -> list[list[int]]:
        """Return all groups, computed together, that contain these images. By default, each image is its own group."""
        return [[id_] for id_ in ids]

    def prepare(self, ids: Sequence[int], shape: tuple[int, int], images: Callable[[Sequence[int]], Tensor]) -> None:
        """Cache `look`'s output for images of this height and width, in complete groups.

        `images` is a function that returns images by id on the device. Every rank gets all ids; ranks that share a
        cache divide the work.
        """

    def expect(self, ids: Sequence[int], shape: tuple[int, int]) -> None:
        """Prefetch the output of `look` for a batch of images of this height and width."""

    def look(self, image_BCHW: Tensor, ids: Sequence[int]) -> Tensor | None:
        """Return the features that the term needs from the clean images, without gradient.

        The duration of this call counts as time of the teacher.
        """

    def loss(self, view: LossInputs) -> Tensor:
        """Return the loss of each sample."""
        raise NotImplementedError

    def release(self) -> None:
        """Free the resources that `ready` loaded."""


@dataclass(frozen=True)
class JointGroup:
    """Parameters that joint training optimizes as a separate group, with AdamW."""

    name: str
    """Name of the parameter group in `optimizer.json`."""
    prefix: str
    """Prefix of the parameters' names."""
    lr: float


class JointBatch(Protocol):
    """Inputs of one micro-batch for joint training."""

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
        """Return the outputs of `look` by the names of the loss terms."""


class JointHost(Protocol):
    """The run that joint training belongs to."""

    @property
    def world(self) -> World: ...
    def compute(self) -> AbstractContextManager[None]:
        """Run matrix products in the denoiser's dtype."""

    def tap(self, x_BCHW: Tensor, batch: JointBatch, taps: frozenset[int]) -> Tapped:
        """Run the denoiser up to the last tapped block, with the times and noise of the batch."""


class JointStep(Protocol):
    """Inputs of one step of joint training."""

    def latents(self, batch: JointBatch, last: bool) -> Tensor:
        """Add the gradients of a micro-batch, and return the latents for the training of the denoiser."""

    def clip(self, grad_norm: Tensor) -> Tensor:
        """Clip joint training's gradients. Return the given norm of all others, or NaN to skip the step."""

    def finish(self, skipped: Tensor) -> dict[str, Tensor]:
        """Return the numbers to log. A skipped step changes no state."""


class JointTraining(Protocol):
    """Training of the tokenizer together with the denoiser, with separate losses and a separate backward pass.

    The trainer calls the methods in this order: construction with the modules; `begin` when the modules are on the
    device; `attach` when they are sharded or replicated; `ready` before the first step.
    """

    @property
    def modules(self) -> Mapping[str, nn.Module]:
        """Return the trained modules, by their names in a checkpoint."""

    @property
    def groups(self) -> Sequence[JointGroup]: ...
    @property
    def clipped_apart(self) -> Sequence[nn.Parameter]:
        """Return the parameters whose gradients joint training clips itself."""

    def begin(self, source: ImageSource, order: Order, seed: int, images: int, alike: int | None = None) -> None:
        """Compute statistics on the first of the run's `images` images, which have the size of the first stage.

        `alike` is the number of consecutive images that certainly have the same shape; None if all images have the same
        shape.
        """

    def attach(self, terms: Mapping[str, LossTerm], frozen: Sequence[nn.Parameter], layout: Layout) -> None:
        """Set the loss terms by name, and the parameters that the backward pass of joint training must not reach."""

    def ready(self) -> dict[str, str | None]:
        """Load resources that only training needs, and return their identities."""

    def begin_step(self, host: JointHost, clock: Clock, loss_scale: float, accumulate: int) -> JointStep: ...


TrackerStatus = Literal["finished", "stopped", "failed"]
VerdictRow = Mapping[str, str | float | None]
"""A comparison from a study, as words and numbers. All rows have the same keys."""


class Tracker(Protocol):
    """A copy of a run or study in a tracking service. Reports read the run's own files. Errors do not stop the run."""

    def log(self, step: int, numbers: Mapping[str, float]) -> None: ...
    def log_images(self, step: int, files: Mapping[str, Path]) -> None:
        """Log image files by name."""

    def log_verdicts(self, rows: Sequence[VerdictRow]) -> None:
        """Log the verdicts of a study; there is at least one row."""

    def close(self, status: TrackerStatus) -> None:
        """Send the rest. The same run can be opened again later."""


VelocityFn = Callable[[Tensor, float], Tensor]
"""Function that takes x_t_BCHW and one t for all samples, and returns the velocity."""


class Sampler(Protocol):
    """Integrator of the velocity from noise (t = 1) to data (t = 0)."""

    def __call__(
        self, velocity: VelocityFn, noise: Tensor, times: Sequence[float], draws: Draws, on_step: Callable[[], None]
    ) -> Tensor:
        """Integrate from the noise at the first of the descending `times`; return the data at the last time.

        `on_step` is called after each step. Random numbers come from `draws`, so an image does not depend on its batch
        or on torch's generator. The state is fp32. The first dimension of the state is the samples. The other
        dimensions can have any shape, such as flat rows for latents with a class token.
        """


class Encoder(Protocol):
    """A frozen image encoder. The preprocessing of images is part of every metric that uses the encoder."""

    def __hash__(self) -> int: ...
    @property
    def name(self) -> str: ...
    @property
    def definition(self) -> str:
        """Describe the network, its output, and the exact preprocessing of an image."""

    @property
    def identity(self) -> str:
        """Return the SHA-256 over weights and preprocessing. Never compare features of different identities."""

    def prepare(self, image_BCHW: Tensor) -> Tensor:
        """Convert uint8 images of one size to the network's float32 input, on the network's device."""

    def encode(self, input_BCHW: Tensor) -> Tensor:
        """Encode prepared images to float32 features, one row per image, on the network's device."""


class TextImageEncoder(Encoder, Protocol):
    """An encoder that maps texts and images to the same space."""

    @property
    def text_identity(self) -> str:
        """Return the SHA-256 over the tokenizer, which `identity` does not cover. Features of texts depend on both."""

    def encode_text(self, prompts: Sequence[str]) -> Tensor: ...


Direction = Literal["lower", "higher"]
Range = tuple[float | None, float | None]
"""The smallest and the largest possible value of a metric; None for no bound."""
ANY_VALUE: Range = (None, None)
