"""Guidance of sampling.

Guidance belongs to the evaluation protocol, so by default all arms are sampled with the same guidance.

Each kind of guidance extrapolates from a weak velocity beyond a strong velocity: v = weak + scale (strong - weak).
Guidance applies for t inside of its interval; elsewhere v = strong. The strong velocity is the model's velocity with
the caption. The kinds of guidance differ in the weak velocity.

B: samples, C: channels, H, W: latent rows and columns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated, Literal, Protocol

import torch
from pydantic import BeforeValidator, Field
from torch import Tensor

from tintype.seams import VelocityFn
from tintype.settings import OneOf, OpenKinds, Part, kind_alone

PairFn = Callable[[Tensor, float], tuple[Tensor, Tensor]]
"""Function of (x_t_BCHW, t) that returns the strong and the weak velocity."""


class Branches(Protocol):
    """Velocities of a model with the caption, without the caption, and with some tokens skipping blocks."""

    def captioned(self, x_t_BCHW: Tensor, t: float) -> Tensor: ...

    def captioned_and_null(self, x_t_BCHW: Tensor, t: float) -> tuple[Tensor, Tensor]:
        """Return the velocities with and without the caption, computed in one batch."""

    def captioned_sparse(self, share: float) -> VelocityFn:
        """Return the velocity with the caption, while this share of the tokens, the same at every t, skips blocks."""

    def null_shallow(self, x_t_BCHW: Tensor, t: float) -> Tensor:
        """Return the velocity without the caption, while all tokens skip the blocks of the route."""

    def earlier(self, guide: Guide) -> VelocityFn:
        """Return the velocity with the caption, from earlier weights of the run."""


@dataclass(frozen=True)
class Guide:
    """Identifies earlier weights of a run."""

    step: int | float
    """Step of the weights, or a fraction of the training."""
    length: float | None
    """Length of the weight average; None for the default length of sampling."""


class GuidancePart(Part):
    scale: float = Field(3.5, ge=0, description="Guidance scale; 1 switches guidance off")
    from_t: float = Field(
        0.0, ge=0, le=1, description="Smallest t at which guidance is used; t = 0 is data, t = 1 is noise"
    )
    to_t: float = Field(
        1.0, ge=0, le=1, description="Largest t at which guidance is used; t = 0 is data, t = 1 is noise"
    )
    unbias: bool = Field(
        False, description="Correct the bias that the contrastive loss of the run causes; no effect without that loss"
    )

    def problems(self) -> Iterator[str]:
        if self.from_t > self.to_t:
            yield f"from_t ({self.from_t}) is above to_t ({self.to_t})"

    @property
    def words(self) -> str:
        """Describe the guidance in words, for a metric's definition."""
        interval = "" if (self.from_t, self.to_t) == (0, 1) else f" for t in {self.from_t:g}-{self.to_t:g}"
        return f"{self.kind} guidance {self.scale:g}{interval}" + (", unbiased velocity" if self.unbias else "")

    @property
    def guide(self) -> Guide | None:
        """Return the earlier weights of the run that this guidance needs; None if it needs none."""
        return None

    def pair(self, branches: Branches) -> PairFn:
        raise NotImplementedError

    def build(self, branches: Branches, bias: VelocityBias | None = None) -> VelocityFn:
        """Return the guided velocity. The bias is removed once, from the guided velocity.

        The correction is exact, since it is affine and the weights of the two velocities sum to one.
        """
        pair = self.pair(branches)

        def guided(x_t_BCHW: Tensor, t: float) -> Tensor:
            if self.scale == 1 or not self.from_t <= t <= self.to_t:
                v_BCHW = branches.captioned(x_t_BCHW, t)
            else:
                strong_BCHW, weak_BCHW = pair(x_t_BCHW, t)
                v_BCHW = torch.lerp(weak_BCHW, strong_BCHW, self.scale)
            return v_BCHW if bias is None else bias.undo(v_BCHW)

        return guided


class ClassifierFreeSettings(GuidancePart):
    """Classifier-free guidance: the weak velocity is the velocity without the caption."""

    kind: Literal["classifier-free"] = "classifier-free"

    def pair(self, branches: Branches) -> PairFn:
        return branches.captioned_and_null


class SelfSettings(GuidancePart):
    """TREAD's guidance: the weak velocity has the caption, while some tokens skip the middle blocks.

    TREAD's guidance needs no null caption. The skipped blocks are the blocks of the run's route. For a run without a
    route, they are PRX's range of blocks.
    """

    kind: Literal["self"] = "self"
    share: float = Field(
        0.5, gt=0, lt=1, description="Share of the tokens that skip the middle blocks in the weak branch"
    )

    @property
    def words(self) -> str:
        return f"{super().words} ({self.share:g} of the tokens skip in the weak branch)"

    def pair(self, branches: Branches) -> PairFn:
        weak = branches.captioned_sparse(self.share)
        return lambda x_t_BCHW, t: (branches.captioned(x_t_BCHW, t), weak(x_t_BCHW, t))


class PathDropSettings(GuidancePart):
    """SPRINT's guidance: the weak velocity has no caption and skips the middle blocks.

    Path-drop guidance needs about half of the compute.
    """

    kind: Literal["path-drop"] = "path-drop"

    def pair(self, branches: Branches) -> PairFn:
        return lambda x_t_BCHW, t: (branches.captioned(x_t_BCHW, t), branches.null_shallow(x_t_BCHW, t))


class AutoguidanceSettings(GuidancePart):
    """Autoguidance: the weak velocity comes from earlier weights of the same run, with the caption (arXiv 2406.02507).

    Differs from Karras et al. 2024, whose guide is also a smaller network, trained separately.
    """

    kind: Literal["autoguidance"] = "autoguidance"
    step: int | float = Field(
        0.0625,
        description="Step of the earlier weights, or a share of the training; the first snapshot at or after "
        "this step is used",
    )
    length: float | None = Field(
        None,
        gt=0,
        description="Length of the weight average to use at the earlier step; by default the length "
        "that sampling loads",
    )

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        if self.step < 1 if isinstance(self.step, int) else not 0 < self.step < 1:
            yield f"step ({self.step}) is neither a step, from 1 on, nor a share of the training between 0 and 1"

    @property
    def words(self) -> str:
        when = f"step {self.step:,}" if isinstance(self.step, int) else f"{self.step:g} of the training"
        length = "" if self.length is None else f", average {self.length:g}"
        return f"{super().words} (led away from the weights of {when}{length})"

    @property
    def guide(self) -> Guide | None:
        return None if self.scale == 1 else Guide(self.step, self.length)

    def pair(self, branches: Branches) -> PairFn:
        if self.guide is None:
            return branches.captioned_and_null  # never asked: the scale is 1
        weak = branches.earlier(self.guide)
        return lambda x_t_BCHW, t: (branches.captioned(x_t_BCHW, t), weak(x_t_BCHW, t))


GUIDANCES: OpenKinds[GuidancePart] = OpenKinds(
    "guidances", ClassifierFreeSettings, SelfSettings, PathDropSettings, AutoguidanceSettings
)
Guidance = Annotated[GuidancePart, OneOf(GUIDANCES, "classifier-free"), BeforeValidator(kind_alone)]
"""Any guidance in a user's notation, such as `{scale: 3.5}`, `{kind: self, scale: 2}`, or only a kind."""


@dataclass(frozen=True)
class VelocityBias:
    """The bias that training leaves in velocity v. The unbiased velocity is (v - strength mean) / (1 - strength)."""

    strength: float
    mean_CHW: Tensor

    def undo(self, v_BCHW: Tensor) -> Tensor:
        return torch.lerp(v_BCHW, self.mean_CHW, self.strength)
