"""class-token: the denoiser also denoises the class token of a frozen teacher (REG, arXiv 2507.01467).

Wu et al. 2025, "Representation Entanglement for Generation". The class token c of the clean image is noised with the
image's own t, c_t = (1 - t) c + t n, and joins the image's tokens. The denoiser predicts the velocity n - c of the
class token, and the loss is the mean squared error. In sampling the class token starts from noise and is denoised
together with the image, so no teacher is needed.

Differs: a layer norm without weights gives c mean 0 and standard deviation 1. So the class token of any teacher has the
scale of the noise. For a teacher without a class token, c is the mean of its tokens. Inside the denoiser, only the
patch tokens are aligned, and c is not. Guidance uses the same scale for the image and the class token.

B: samples. T: width of the class token.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import layer_norm

from tintype.errors import UserError
from tintype.flow.objective import mean_square
from tintype.flow.path import interpolate, velocity
from tintype.losses.part import LossPart, PlanView
from tintype.seams import Draws, LossContext, LossInputs, LossTerm
from tintype.vision.dino import Dinov2TeacherSettings
from tintype.vision.encoders import TeacherChoice
from tintype.vision.part import Grid, Teacher

CLASS_TOKEN: Literal["class-token"] = "class-token"


class ClassTokenSettings(LossPart):
    any_shape: ClassVar[bool] = True

    kind: Literal["class-token"] = CLASS_TOKEN
    weight: float = Field(
        0.03, gt=0, description="Loss weight of the class token's velocity; the image's velocity has weight 1"
    )
    teacher: TeacherChoice = Field(
        Dinov2TeacherSettings(), description="The frozen teacher network; the kind scenes needs no download"
    )

    def check(self, plan: PlanView) -> None:
        super().check(plan)
        if not plan.model.class_token:
            raise ValueError(
                "class-token: the denoiser has no class token; set model.class_token to the width "
                "of the teacher's class token"
            )
        if self.schedule.kind != "constant":
            raise ValueError(
                "class-token: the denoiser reads a class token at every step, so the schedule of this loss must "
                "be constant"
            )

    def fetch(self, grid: tuple[int, int]) -> None:
        self.teacher.build(grid, torch.device("cpu"))

    def build(self, context: LossContext) -> ClassTokenTerm:
        return ClassTokenTerm(ClassTokens(self.teacher, context.device), context)


class ClassTokens:
    """Class tokens of clean images, from a teacher that is loaded on first use."""

    def __init__(self, settings: TeacherChoice, device: torch.device) -> None:
        self._settings, self._device = settings, device
        self._teachers: dict[Grid, Teacher] = {}

    def load(self, grid: Grid) -> Teacher:
        """Return the teacher for a grid of tokens. All grids share one network."""
        if grid not in self._teachers:
            first = next(iter(self._teachers.values()), None)
            self._teachers[grid] = self._settings.build(grid, self._device) if first is None else first.at_grid(grid)
        return self._teachers[grid]

    def release(self) -> None:
        self._teachers = {}

    def __call__(self, image_BCHW: Tensor, grid: Grid) -> Tensor:
        """Return the class tokens of uint8 images as float32 [B, T]. Each token has mean 0 and standard deviation 1."""
        class_BT = self.load(grid).class_tokens(image_BCHW)
        return layer_norm(class_BT, class_BT.shape[1:])


class ClassTokenTerm(LossTerm):
    def __init__(self, tokens: ClassTokens, context: LossContext) -> None:
        self._tokens, self._context = tokens, context

    def ready(self) -> str:
        return self._tokens.load(self._context.grid).identity

    def release(self) -> None:
        self._tokens.release()

    def look(self, image_BCHW: Tensor, ids: Sequence[int]) -> Tensor:
        return self._tokens(image_BCHW, self._context.grid_of(image_BCHW))

    def loss(self, inputs: LossInputs) -> Tensor:
        if inputs.seen is None or inputs.output.class_BT is None:
            raise RuntimeError("class-token: call look() before loss(), with a denoiser that has a class token")
        target_BT = velocity(inputs.seen, class_noise(inputs.draws, inputs.seen.shape[1]))
        return mean_square(inputs.output.class_BT, target_BT)


def class_noise(draws: Draws, width: int) -> Tensor:
    """Return the noise [B, T] of the class tokens."""
    return draws.normal(CLASS_TOKEN, (width,))


def noised_class_tokens(width: int, seen: Mapping[str, Tensor | None], draws: Draws, t_B: Tensor) -> Tensor | None:
    """Return the class tokens [B, T] noised to t; None if `width` is 0, since the denoiser then has no class token.

    `seen` maps names of losses to the class tokens of the clean images.
    """
    if not width:
        return None
    class_BT = seen.get(CLASS_TOKEN)
    if class_BT is None or class_BT.shape[1] != width:
        found = "none" if class_BT is None else f"one of {class_BT.shape[1]} numbers"
        raise UserError(
            f"model.class_token is {width}, but the teacher gives {found}",
            "set model.class_token to the teacher's width",
        )
    return interpolate(class_BT, class_noise(draws, width), t_B)
