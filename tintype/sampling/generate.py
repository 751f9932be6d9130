"""Generate images from captions, for the command line, evaluation and reports.

Image i starts from noise that depends only on (seed, i), so the batch size does not change the image. Dimensions are B
(images of a batch), C (channels), H (latent rows), W (latent columns) and K (kept tokens).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import torch
from pydantic import Field
from torch import Tensor

from tintype.data.captions import NULL_CAPTION
from tintype.errors import UserError
from tintype.flow.guidance import ClassifierFreeSettings, Guidance, Guide
from tintype.flow.path import sampling_times, scaled
from tintype.flow.routes import random_kept
from tintype.flow.sampler import SAMPLERS, Method
from tintype.losses.class_token import class_noise
from tintype.model import TextCache
from tintype.sampling.velocity_bias import velocity_bias
from tintype.seams import Draws, Route, TextTokens, VelocityFn
from tintype.settings import Settings
from tintype.train.parts import Model

OnEstimate: TypeAlias = Callable[[Callable[[], Tensor]], None]
"""Callback that gets a function to decode the images in progress; a call costs as much as decoding final images."""

Size = int | tuple[int, int]
"""Side of square images in pixels, or the height and width of images."""


def sides(size_px: Size) -> tuple[int, int]:
    """Return height and width in pixels."""
    return (size_px, size_px) if isinstance(size_px, int) else size_px


class SamplerSettings(Settings):
    method: Method = Field(
        "euler", description="Integrator of the sampling, which is euler, heun, or a sampler from a plugin"
    )
    steps: int = Field(50, ge=1, description="Sampling steps")
    guidance: Guidance = Field(
        ClassifierFreeSettings(), description="Kind of guidance: which weak velocity it leads away from"
    )
    batch: int = Field(64, ge=1, description="Number of images sampled at a time; it does not change the images")


@torch.no_grad()
def generate(
    parts: Model,
    captions: Sequence[str],
    settings: SamplerSettings,
    *,
    seed: int,
    size_px: Size,
    first_index: int = 0,
    on_step: Callable[[int], None] = lambda images: None,
    on_estimate: OnEstimate | None = None,
) -> Tensor:
    """Return one image for each caption, as uint8 [N, 3, height, width].

    `on_step` gets the batch size at each sampler step. For each velocity evaluation, `on_estimate` gets a function that
    decodes the current estimate of the batch's final images.
    """
    batches = []
    for first, last in spans(0, len(captions), settings.batch):
        index_B = torch.arange(first, last, device=parts.device) + first_index
        draws = Draws(seed, index_B)
        z_BCHW = sample_latents(parts, captions[first:last], settings, draws, size_px, on_step, on_estimate)
        with parts.compute():
            batches.append(parts.tokenizer.decode(z_BCHW).cpu())
    return torch.cat(batches)


def spans(first: int, last: int, size: int) -> list[tuple[int, int]]:
    """Split the range from `first` to `last` into spans of at most `size`."""
    return [(start, min(start + size, last)) for start in range(first, last, size)]


@torch.no_grad()
def sample_latents(
    parts: Model,
    captions: Sequence[str],
    settings: SamplerSettings,
    draws: Draws,
    size_px: Size,
    on_step: Callable[[int], None] = lambda images: None,
    on_estimate: OnEstimate | None = None,
) -> Tensor:
    """Return the latents of the images of one batch."""
    noise_BCHW = first_noise(parts, draws, size_px)
    rows, columns = (side // parts.plan.model.patch for side in noise_BCHW.shape[-2:])
    state = Joined(tuple(noise_BCHW.shape[1:]), parts.plan.model.class_token)
    with parts.compute():
        caption = parts.denoiser.read_text(parts.text.encode(captions))
        null = parts.denoiser.read_text(_repeat(parts.text.encode([NULL_CAPTION]), len(captions)))
        tokens = rows * columns
        branches = TextBranches(parts, draws, tokens, caption, null, captions, state)
        bias = velocity_bias(parts, size_px) if settings.guidance.unbias else None
        if bias is not None and state.class_width:
            raise UserError(
                "guidance.unbias cannot be used with a class token (technique reg), whose mean velocity is unknown",
                "sample without unbias",
            )
        guided = settings.guidance.build(branches, bias)
        guided = guided if on_estimate is None else _watched(guided, parts, state, on_estimate)
        times = sampling_times(settings.steps, parts.plan.sampling.shift_at(tokens, parts.plan.token_numbers))
        first = state.join(noise_BCHW, class_noise(draws, state.class_width) if state.class_width else None)
        last = SAMPLERS[settings.method](guided, first, times, draws, lambda: on_step(len(captions)))
        return state.split(last)[0]


@dataclass(frozen=True)
class Joined:
    """State of a sampler, which is either latents, or flattened latents together with a denoised class token (REG)."""

    shape: tuple[int, ...]
    """Channels, rows and columns of the latents."""
    class_width: int

    def join(self, x_BCHW: Tensor, class_BT: Tensor | None) -> Tensor:
        return x_BCHW if class_BT is None else torch.cat([x_BCHW.flatten(1), class_BT.to(x_BCHW.dtype)], dim=1)

    def split(self, state_BN: Tensor) -> tuple[Tensor, Tensor | None]:
        if not self.class_width:
            return state_BN, None
        x_BN, class_BT = state_BN.split([math.prod(self.shape), self.class_width], dim=1)
        return x_BN.unflatten(1, self.shape), class_BT


def _watched(velocity: VelocityFn, parts: Model, state: Joined, on_estimate: OnEstimate) -> VelocityFn:
    """Return the velocity unchanged, and pass the estimate of the data at each step, x_t - t v, to `on_estimate`."""

    def watched(state_t: Tensor, t: float) -> Tensor:
        v = velocity(state_t, t)
        on_estimate(lambda: parts.tokenizer.decode(state.split(state_t - t * v)[0]).cpu())
        return v

    return watched


def first_noise(parts: Model, draws: Draws, size_px: Size) -> Tensor:
    height, width = (side // parts.tokenizer.stride_px for side in sides(size_px))
    return scaled(draws.normal("sample", (parts.tokenizer.channels, height, width)), parts.objective.noise_scale)


@dataclass(frozen=True)
class TextBranches:
    """Compute velocities of a batch with captions and with the null caption; with a class token, of `Joined` states."""

    parts: Model
    draws: Draws
    tokens: int
    caption: TextCache
    null: TextCache
    captions: Sequence[str] = ()
    state: Joined = Joined((), 0)

    def captioned(self, x_t_BCHW: Tensor, t: float) -> Tensor:
        return self._velocity(x_t_BCHW, t, self.caption)

    def captioned_and_null(self, x_t_BCHW: Tensor, t: float) -> tuple[Tensor, Tensor]:
        first, second = self._velocity(torch.cat([x_t_BCHW, x_t_BCHW]), t, self._both).chunk(2)
        return first, second

    def captioned_sparse(self, share: float) -> VelocityFn:
        skipping = max(1, int(self.tokens * share))
        kept_BK = random_kept(self.draws, self.tokens, self.tokens - skipping, "guidance")
        route = self.parts.router.sparse(kept_BK)
        return lambda x_t_BCHW, t: self._velocity(x_t_BCHW, t, self.caption, route)

    def null_shallow(self, x_t_BCHW: Tensor, t: float) -> Tensor:
        nothing_BK = torch.empty(len(x_t_BCHW), 0, dtype=torch.int64, device=x_t_BCHW.device)
        return self._velocity(x_t_BCHW, t, self.null, self.parts.router.sparse(nothing_BK))

    def earlier(self, guide: Guide) -> VelocityFn:
        if guide not in self.parts.guides:
            raise UserError(
                "autoguidance needs the folder of a run that has earlier weights", "choose another guidance"
            )
        model = self.parts.guides[guide]
        text = model.denoiser.read_text(model.text.encode(self.captions))
        return lambda x_t_BCHW, t: self._velocity(x_t_BCHW, t, text, model=model)

    def _velocity(
        self, state_t: Tensor, t: float, text: TextCache, route: Route | None = None, model: Model | None = None
    ) -> Tensor:
        x_t_BCHW, class_BT = self.state.split(state_t)
        t_B = x_t_BCHW.new_full((len(x_t_BCHW),), t)
        return self.state.join(*(model or self.parts).velocities(x_t_BCHW, t_B, text, route, class_BT))

    @cached_property
    def _both(self) -> TextCache:
        return self.caption.join(self.null)


def _repeat(text: TextTokens, count: int) -> TextTokens:
    lengths = None if text.lengths is None else text.lengths * count
    return TextTokens(text.tokens_BLC.expand(count, -1, -1), text.mask_BL.expand(count, -1), lengths)
