"""Base settings of objectives, time densities, main losses, weightings and routes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol

import torch
from pydantic import Field
from torch import Tensor

from tintype import settings
from tintype.flow.path import unshift_time
from tintype.plugins.registry import is_built_in
from tintype.seams import Draws, MainLoss, Objective, Router, TimeDensity, Weighting
from tintype.settings import ExportForm, ModelSettings, Obstacle, Part, Plain, ShiftBy, shift_factor
from tintype.wording import setting

_NODES = 1 << 17


class PlanView(settings.PlanView, Protocol):
    """The parts of a plan that weightings and routes can read."""

    @property
    def main_loss(self) -> MainLossPart: ...


class TimePart(Part):
    """The density from which training draws t.

    All kinds share these keys, so a change of the kind changes only one key.
    """

    uniform_share: float = Field(
        0.1, ge=0, le=1, description="mixture: share of the times that are drawn uniformly, without a shift"
    )
    mean: float = Field(0.0, description="Mean of the logit-normal density before the logistic function")
    std: float = Field(1.0, gt=0, description="Its standard deviation")
    lowest: float = Field(0.001, ge=0, lt=1, description="Smallest t that training draws")
    shift: float = Field(
        1.0,
        gt=0,
        description="Shift s of training times, t' = s t / (1 + (s - 1) t); sampling has its own, sampling.shift",
    )

    shift_by: ShiftBy = Field(
        "none",
        description="Factor of shift that depends on the image size: sqrt (root of the number of tokens, 1 at "
        "256 tokens), flux (exp of FLUX's mu), or dimension (RAE: root of the number of latent values, 1 at "
        "4096); sampling has its own, sampling.shift_by",
    )

    @property
    def common(self) -> Plain:
        """Return the settings that a plan keeps if its density changes to another kind."""
        return {key: getattr(self, key) for key in TimePart.model_fields if key != "kind"}

    def density(self, patch: int, tokens: int, token_numbers: int | None = None) -> TimeDensity:
        """Return the density for latents of any size. `patch` is the side of a patch, which becomes one token.

        `tokens` is the number of tokens at the data's own size. Each token has `token_numbers` numbers.
        """
        return self if self.shift_by == "none" else _ByResolution(self, patch, tokens, token_numbers)

    def at(self, height: int, width: int) -> TimePart:
        return self

    def at_tokens(self, tokens: int, token_numbers: int | None = None) -> TimePart:
        """Return the density for images with this number of tokens."""
        shift = self.shift * shift_factor(self.shift_by, tokens, token_numbers)
        return self.model_copy(update={"shift": shift, "shift_by": "none"})

    def quantile(self, value: Tensor, choice: Tensor) -> Tensor:
        """Return t from two uniform float64 numbers.

        `value` is the quantile of t. `choice` selects a mixture's first component if it is below `uniform_share`.
        `mean_of` integrates over both.
        """
        raise NotImplementedError

    def draw(self, draws: Draws) -> Tensor:
        value, choice = draws.uniform("time", (2,)).double().unbind(1)
        return self.quantile(value, choice).float().clamp(self.lowest, 1 - 2**-24)

    def mean_of(self, function: Callable[[Tensor], Tensor]) -> float:
        """Return the mean of a function of t, integrated over `quantile`'s inputs by the midpoint rule, in float64."""
        value = (torch.arange(_NODES, dtype=torch.float64) + 0.5) / _NODES
        choices = (torch.full_like(value, choice) for choice in (0.0, 1.0))
        uniform, other = (function(self.quantile(value, choice)).mean() for choice in choices)
        return float(self.uniform_share * uniform + (1 - self.uniform_share) * other)

    def unshifted_lowest(self) -> Tensor:
        return unshift_time(torch.tensor(self.lowest, dtype=torch.float64), self.shift)


@dataclass(frozen=True)
class _ByResolution:
    """A density whose shift depends on the number of tokens."""

    time: TimePart
    patch: int
    tokens: int
    """Number of tokens at the data's own size. `draw` and `mean_of` use this number."""
    token_numbers: int | None = None

    def at(self, height: int, width: int) -> TimePart:
        return self._at_tokens((height // self.patch) * (width // self.patch))

    def draw(self, draws: Draws) -> Tensor:
        return self._at_tokens(self.tokens).draw(draws)

    def mean_of(self, function: Callable[[Tensor], Tensor]) -> float:
        return self._at_tokens(self.tokens).mean_of(function)

    def _at_tokens(self, tokens: int) -> TimePart:
        return self.time.at_tokens(tokens, self.token_numbers)


class ObjectivePart(Part):
    predicts: ClassVar[Literal["velocity", "x", "epsilon"]]
    """The quantity that the denoiser predicts. `build` converts it to a velocity."""

    noise_scale: float = Field(
        1.0, gt=0, description="Standard deviation of the noise in training, validation and sampling; PRXPixel uses 2"
    )

    @property
    def common(self) -> Plain:
        """Return the settings that a plan keeps if its objective changes to another kind."""
        return {"noise_scale": self.noise_scale}

    def obstacles(self, form: ExportForm) -> Iterator[Obstacle]:
        if not is_built_in("objectives", self.kind):
            where = "a program that reads one file of weights" if form == "safetensors" else form
            yield Obstacle(
                f"objective: '{self.kind}' is of a plugin, and {where} does not know how its prediction becomes a "
                "velocity",
                setting("objective.kind", "velocity"),
            )
        if form == "PRXPipeline" and self.noise_scale != 1:
            yield Obstacle(
                f"objective.noise_scale is {self.noise_scale:g}, and PRXPipeline starts from noise of deviation 1",
                setting("objective.noise_scale", 1.0),
            )

    def build(self, time: TimeDensity) -> Objective:
        raise NotImplementedError


class NoisePart(Part):
    """A rule that selects the noise of a training sample."""

    def pair(self, objective: Objective) -> Objective:
        """Return the objective with noise that this rule selects."""
        raise NotImplementedError


class RoutePart(Part):
    any_shape: ClassVar[bool] = False
    """Whether the route supports images of several shapes in one run."""

    def check(self, plan: PlanView) -> None:
        """Raise ValueError if the plan cannot use this route."""

    def sparse_blocks(self, step: int) -> range:
        """Return the blocks that process only some of the tokens at this step. Blocks are counted from 0."""
        raise NotImplementedError

    def kept(self, tokens: int) -> int:
        """Return how many of an image's tokens the sparse blocks process. `tintype cost` uses this number."""
        raise NotImplementedError

    def build(self, model: ModelSettings) -> Router:
        raise NotImplementedError


class MainLossPart(Part):
    """Main loss, which is a function of the difference between the predicted and the true velocity."""

    def build(self) -> MainLoss:
        raise NotImplementedError


class WeightingPart(Part):
    def check(self, plan: PlanView) -> None:
        """Raise ValueError if the plan cannot use this weighting."""

    def build(self, time: TimeDensity, objective: Objective) -> Weighting:
        raise NotImplementedError
