"""One small part of every kind that a plugin can add: the patterns to copy from (docs/plugins.md).

    tintype --plugin examples/every_part.py techniques
    tintype check examples/every_part.py

The file has a module-level name for each kind of part that it adds. The tests train, sample, score, import and launch
with all of them.

B: images or captions. C: channels. H, W: rows, columns. L: tokens. K: kept tokens. N: images. F: features.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import pixel_shuffle, pixel_unshuffle

from tintype.data.image_file import read_file
from tintype.data.importers.importer import Importer, Item, Reading
from tintype.errors import UserError
from tintype.flow.guidance import Branches, GuidancePart, PairFn
from tintype.flow.objective import VelocityObjective
from tintype.flow.part import MainLossPart, ObjectivePart, PlanView, RoutePart, TimePart, WeightingPart
from tintype.flow.path import over_image, shift_time
from tintype.losses.part import LossPart
from tintype.metrics.metric import NOT_NEGATIVE, Measured, Metric
from tintype.metrics.pair import FeaturePair
from tintype.optim.part import OptimizerPart
from tintype.optim.storage import Storage
from tintype.plan import Plan
from tintype.runtime.files import write_text
from tintype.runtime.forms import Form, form_of
from tintype.runtime.layout import Layout
from tintype.seams import (
    Draws,
    LossContext,
    LossInputs,
    LossTerm,
    MainLoss,
    Objective,
    Route,
    TextTokens,
    TimeDensity,
    VelocityFn,
    Weighting,
)
from tintype.settings import ModelSettings, Settings
from tintype.study.launch.launcher import Crew
from tintype.techniques.technique import Changes, Technique
from tintype.text.part import TextPart
from tintype.tokenizers.part import Compression, TokenizerPart, to_bytes, to_floats

# ---------------------------------------------------------------------------------------------------------------- loss


class EdgesSettings(LossPart):
    """Compares the differences between neighbours of the velocity: errors at edges count more."""

    any_shape: ClassVar[bool] = True  # it takes images of several shapes in one run

    kind: Literal["edges"] = "edges"
    weight: float = Field(0.1, gt=0, description="Weight of this term in the sum of the losses")

    def build(self, context: LossContext) -> Edges:
        return Edges()


class Edges(LossTerm):
    needs_images = False

    def loss(self, inputs: LossInputs) -> Tensor:
        """Return the loss of each sample."""
        error_BCHW = inputs.velocity_BCHW - inputs.target_BCHW
        down = error_BCHW.diff(dim=2).square().mean((1, 2, 3))
        across = error_BCHW.diff(dim=3).square().mean((1, 2, 3))
        return down + across


LOSSES = (EdgesSettings,)

# ----------------------------------------------------------------------------------------------------------- main loss


class PseudoHuberSettings(MainLossPart):
    """2 c² (√(1 + (e / c)²) - 1) for each error e of the velocity: e² where it is small, 2 c |e| where it is large."""

    kind: Literal["pseudo-huber"] = "pseudo-huber"
    c: float = Field(0.5, gt=0, description="Errors above this count less than their squares")

    def build(self) -> MainLoss:
        def loss(velocity_BCHW: Tensor, target_BCHW: Tensor, t_B: Tensor) -> Tensor:
            ratio_BCHW = (velocity_BCHW.to(target_BCHW.dtype) - target_BCHW) / self.c
            return 2 * self.c**2 * ((1 + ratio_BCHW.square()).sqrt() - 1).flatten(1).mean(1)

        return loss


MAIN_LOSSES = (PseudoHuberSettings,)

# ----------------------------------------------------------------------------------------------------------- objective


class PreconditionedSettings(ObjectivePart):
    """EDM's preconditioning (arXiv 2206.00364, table 1) on the straight path, for data of deviation σ.

    x = c_skip x_t + c_out F, with F the prediction, which makes the velocity
    v = (t n² - (1 - t) σ²) / V x_t - n σ / √V F, where V = (1 - t)² σ² + t² n² and n is the noise's deviation.
    """

    predicts: ClassVar[Literal["velocity", "x", "epsilon"]] = "velocity"

    kind: Literal["preconditioned"] = "preconditioned"
    data_std: float = Field(0.5, gt=0, description="σ: deviation of the data")

    def build(self, time: TimeDensity) -> Objective:
        return Preconditioned(time, self.noise_scale, self.data_std)


@dataclass(frozen=True)
class Preconditioned(VelocityObjective):
    data_std: float = 0.5

    def velocity(self, prediction_BCHW: Tensor, x_t_BCHW: Tensor, t_B: Tensor) -> Tensor:
        noise, data = self.noise_scale, self.data_std
        variance_B = ((1 - t_B) * data).square() + (t_B * noise).square()
        skip_B = (t_B * noise**2 - (1 - t_B) * data**2) / variance_B
        out_B = noise * data / variance_B.sqrt()
        prediction_BCHW = prediction_BCHW.to(x_t_BCHW.dtype)
        return over_image(skip_B, x_t_BCHW) * x_t_BCHW - over_image(out_B, x_t_BCHW) * prediction_BCHW


OBJECTIVES = (PreconditionedSettings,)

# ----------------------------------------------------------------------------------------------------------- weighting


class MiddleSettings(WeightingPart):
    """(t (1 - t))^power, divided by its mean: the middle of the path counts most."""

    kind: Literal["middle"] = "middle"
    power: float = Field(1.0, gt=0, description="How much more the middle counts")

    def build(self, time: TimeDensity, objective: Objective) -> Weighting:
        def plain(t_B: Tensor) -> Tensor:
            return (t_B * (1 - t_B)) ** self.power

        mean = time.mean_of(plain)
        return lambda t_B: plain(t_B) / mean


WEIGHTINGS = (MiddleSettings,)

# -------------------------------------------------------------------------------------------------------- time density


class KumaraswamyTime(TimePart):
    """Kumaraswamy's distribution, much like a beta distribution, with an inverse in closed form; then the shift."""

    kind: Literal["kumaraswamy"] = "kumaraswamy"
    a: float = Field(2.0, gt=0, description="First shape; above b, t is nearer to the noise")
    b: float = Field(2.0, gt=0, description="Second shape")

    def quantile(self, value: Tensor, choice: Tensor) -> Tensor:
        """Return t of uniform values, float64; `choice` is for mixtures."""
        t = (1 - (1 - value) ** (1 / self.b)) ** (1 / self.a)
        lowest = self.unshifted_lowest()
        return shift_time(lowest + (1 - lowest) * t, self.shift)


TIME_DENSITIES = (KumaraswamyTime,)

# -------------------------------------------------------------------------------------------------------------- router


class EverySecondSettings(RoutePart):
    """One block sees every second token. Whether the even or the odd ones is drawn for each sample."""

    any_shape: ClassVar[bool] = True

    kind: Literal["every-second"] = "every-second"
    block: int = Field(2, ge=1, description="The block, counted from 1")

    def check(self, plan: PlanView) -> None:
        if self.block > plan.model.depth:
            raise ValueError(
                f"every-second: block {self.block} does not exist, since model.depth is {plan.model.depth}"
            )
        if any(rows * columns % 2 for rows, columns in plan.token_grids):
            raise ValueError("every-second: the number of tokens is odd; change model.patch or the images' sizes")

    def sparse_blocks(self, step: int) -> range:
        return range(self.block - 1, self.block)

    def kept(self, tokens: int) -> int:
        return tokens // 2

    def build(self, model: ModelSettings) -> EverySecond:
        return EverySecond(self)


@dataclass(frozen=True)
class EverySecond:
    settings: EverySecondSettings

    def plan(self, grid: tuple[int, int], step: int, draws: Draws) -> Route | None:
        odd_B = (draws.uniform("every-second") < 0.5).long()
        even_K = torch.arange(0, grid[0] * grid[1], 2, device=odd_B.device)
        return self.sparse(even_K + odd_B[:, None])

    def whole(self) -> Route | None:
        return None  # sampling is dense

    def sparse(self, kept_BK: Tensor) -> Route:
        return Route(self.settings.block - 1, self.settings.block, kept_BK)


ROUTERS = (EverySecondSettings,)

# ------------------------------------------------------------------------------------------------------------- sampler


def adams_bashforth(
    velocity: VelocityFn, noise: Tensor, times: Sequence[float], draws: Draws, on_step: Callable[[], None]
) -> Tensor:
    """Extrapolate from the last two velocities: of second order at one evaluation for each step."""
    x, before = noise, None
    for now, then in pairwise(times):
        v = velocity(x, now)
        step = then - now
        slope = 0 if before is None else step / (2 * (now - before[0])) * (v - before[1])
        x, before = x + step * (v + slope), (now, v)
        on_step()
    return x


SAMPLERS = {"adams-bashforth": adams_bashforth}

# ------------------------------------------------------------------------------------------------------------ guidance


class CfgZeroSettings(GuidancePart):
    """CFG-Zero* (arXiv 2503.18886): the velocity without the caption, scaled to be nearest to that with it."""

    kind: Literal["cfg-zero"] = "cfg-zero"

    def pair(self, branches: Branches) -> PairFn:
        def strong_and_weak(x_t_BCHW: Tensor, t: float) -> tuple[Tensor, Tensor]:
            strong_BCHW, weak_BCHW = branches.captioned_and_null(x_t_BCHW, t)
            strong_BN, weak_BN = strong_BCHW.flatten(1), weak_BCHW.flatten(1)
            scale_B = (strong_BN * weak_BN).sum(1) / weak_BN.square().sum(1).clamp_min(1e-8)
            return strong_BCHW, over_image(scale_B, weak_BCHW) * weak_BCHW

        return strong_and_weak


GUIDANCES = (CfgZeroSettings,)

# ----------------------------------------------------------------------------------------------------------- technique


class Options(Settings):
    """Settings that a user may give: `--technique sign-steps:beta=0.95`."""

    beta: float = Field(0.9, ge=0, lt=1, description="Share of the last step in the next one")


def use_lion(plan: Plan, options: Options) -> Changes:
    """Return the fields of the plan that change. The learning rate is a third of what it was, as Lion's paper says."""
    return {"optimizer": LionSettings(lr=plan.optimizer.lr / 3, beta=options.beta)}


class DataDeviation(Settings):
    data_std: float = Field(0.5, gt=0, description="σ: deviation of the data")


def precondition(plan: Plan, options: DataDeviation) -> Changes:
    """Return the objective with what the plan's own has in common with it: the deviation of the noise."""
    return {"objective": PreconditionedSettings(data_std=options.data_std, **plan.objective.common)}


TECHNIQUES = {
    "edges": Technique(seam="losses", summary="errors at edges count more", options=EdgesSettings),
    "pseudo-huber": Technique(seam="main_loss", summary="large errors count less", options=PseudoHuberSettings),
    "preconditioned": Technique(
        seam="objective", summary="EDM's preconditioning", apply=precondition, options=DataDeviation
    ),
    "middle": Technique(seam="weighting", summary="the middle of the path counts most", options=MiddleSettings),
    "kumaraswamy": Technique(
        seam="time",
        summary="draw the training time from Kumaraswamy's distribution",
        apply=lambda plan, options: {"time": KumaraswamyTime(**plan.time.common)},
    ),
    "every-second": Technique(
        seam="route", summary="one block sees every second token in training", options=EverySecondSettings
    ),
    "sign-steps": Technique(
        seam="optimizer", summary="the sign of the momentum is the step", apply=use_lion, options=Options
    ),
}

# ----------------------------------------------------------------------------------------------------------- optimizer


class LionSettings(OptimizerPart):
    """Lion (arXiv 2302.06675), without weight decay, for weights stored in fp32 on one device."""

    kind: Literal["lion"] = "lion"
    lr: float = Field(3e-5, gt=0)
    beta: float = Field(0.9, ge=0, lt=1)

    def build(
        self, named: Iterable[tuple[str, nn.Parameter]], storage: Storage, layout: Layout
    ) -> torch.optim.Optimizer:
        if storage.rounding != "nearest":
            raise UserError(f"lion: weights are stored with the rounding '{storage.rounding}', which it does not know")
        return Lion([parameter for _, parameter in named], self)


class Lion(torch.optim.Optimizer):
    found_inf: Tensor | None = None
    """Set before each step: 1 where a gradient is not finite, and the step must change nothing."""

    def __init__(self, parameters: Sequence[nn.Parameter], settings: LionSettings) -> None:
        super().__init__(parameters, {"lr": settings.lr})
        self.beta = settings.beta

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        moves = 1.0 if self.found_inf is None else 1.0 - self.found_inf
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                if not state:
                    state["momentum"] = torch.zeros_like(parameter)
                gradient = torch.nan_to_num(parameter.grad)
                step = torch.lerp(gradient, state["momentum"], self.beta).sign()
                parameter.sub_(step * (group["lr"] * moves))
                state["momentum"].lerp_(gradient, (1 - self.beta) * moves)

    def slots(self, parameter: Tensor) -> dict[str, Form]:
        """Return the form of each tensor of a parameter's state: a checkpoint is compared with it."""
        return {"momentum": form_of(parameter)}


OPTIMIZERS = (LionSettings,)

# -------------------------------------------------------------------------------------------------------- text encoder


class LettersSettings(TextPart):
    """Letters, embedded and trained with the denoiser."""

    kind: Literal["letters"] = "letters"
    width: int = Field(64, ge=8)
    max_tokens: int = Field(96, ge=2)

    def build(self, device: torch.device) -> Letters:
        return Letters(self)


class Letters(nn.Module):
    identity = None  # its weights are the run's own; of a frozen encoder: the SHA-256 over weights and settings

    def __init__(self, settings: LettersSettings) -> None:
        super().__init__()
        self.dim, self.max_tokens = settings.width, settings.max_tokens
        self.letter = nn.Embedding(258, settings.width)  # bytes, then padding and the start
        self.place = nn.Embedding(settings.max_tokens, settings.width)

    def identity_at(self, max_tokens: int) -> None:
        return None

    def truncate(self, captions: Sequence[str], max_tokens: int) -> list[str]:
        return [caption.encode()[: max_tokens - 1].decode(errors="ignore") for caption in captions]

    def transformers_form(self) -> None:
        return None

    def encode(self, captions: Sequence[str]) -> TextTokens:
        rows = [[257, *caption.encode()[: self.max_tokens - 1]] for caption in captions]
        id_BL = torch.tensor([[*row, *[256] * (self.max_tokens - len(row))] for row in rows])
        id_BL = id_BL.to(self.letter.weight.device)
        return TextTokens(self.letter(id_BL) + self.place.weight, id_BL != 256, tuple(map(len, rows)))


TEXT_ENCODERS = (LettersSettings,)

# ----------------------------------------------------------------------------------------------------------- tokenizer


class UnshuffleSettings(TokenizerPart):
    """Pixels of 2 × 2 squares as channels."""

    kind: Literal["unshuffle"] = "unshuffle"

    @property
    def compression(self) -> Compression:
        return Compression(channels=12, stride_px=2)

    def build(self, device: torch.device) -> Unshuffle:
        return Unshuffle()


class Unshuffle:
    channels, stride_px, moment_channels = 12, 2, 12
    identity = None  # it has no weights
    arithmetic = "fp32"

    def moments(self, image_BCHW: Tensor) -> Tensor:
        return pixel_unshuffle(to_floats(image_BCHW), 2)

    def drawn(self, moment_BCHW: Tensor, draws: Draws) -> Tensor:
        return moment_BCHW

    def encode(self, image_BCHW: Tensor, draws: Draws) -> Tensor:
        return self.drawn(self.moments(image_BCHW), draws)

    def decode_float(self, z_BCHW: Tensor) -> Tensor:
        return pixel_shuffle(z_BCHW.float(), 2)

    def decode(self, z_BCHW: Tensor) -> Tensor:
        return to_bytes(self.decode_float(z_BCHW))

    def diffusers_form(self) -> None:
        return None

    def check_latents(self, mean_C: Tensor, std_C: Tensor) -> str | None:
        return None


TOKENIZERS = (UnshuffleSettings,)

# -------------------------------------------------------------------------------------------------------------- metric


def mean_shift(pair: FeaturePair) -> Measured:
    """Return the distance between the mean features of generated and of real images."""
    offset_NF = pair.points.offset_NF  # from the reference's mean
    return Measured(float(offset_NF.mean(0).norm()))


METRICS = (
    Metric[FeaturePair](
        name="mean-shift",
        label="shift of the mean",
        direction="lower",
        definition="distance between the mean features of generated and of real images",
        measure=mean_shift,
        range=NOT_NEGATIVE,
    ),
)

# ------------------------------------------------------------------------------------------------------------ importer


def open_pairs(path: Path, reading: Reading) -> Pairs | None:
    """Open a `.pairs` file: on each line the path of an image beside it, a tab, and its caption."""
    return Pairs(path, reading) if path.suffix == ".pairs" else None


class Pairs(Importer):
    def __init__(self, path: Path, reading: Reading) -> None:
        lines = path.read_text(encoding="utf-8").splitlines()
        self.rows = [line.split("\t", 1) for line in lines if "\t" in line]
        self.folder, self.most_bytes = path.parent, reading.limits.bytes
        super().__init__([path], ["caption"], {}, len(self.rows))

    def items(self, columns: Collection[str], first: int) -> Iterator[Item]:
        for name, caption in self.rows[first:]:
            file = self.folder / Path(name).name  # nothing outside the folder is read
            try:
                content = read_file(file, self.most_bytes)
            except (OSError, UserError) as error:
                yield Item(name, problem=str(error))
                continue
            yield Item(name, content, {"caption": caption} if "caption" in columns else {})


IMPORTERS = (open_pairs,)

# ------------------------------------------------------------------------------------------------------------ launcher


class ScriptLauncher:
    """Writes a script that starts the workers, for queues that tintype does not know: `launch STUDY --on script`."""

    def __init__(self, where: str) -> None:
        self.queue = where

    def launch(self, crew: Crew) -> list[str]:
        crew.folder.mkdir(exist_ok=True)
        script = crew.folder / "start.sh"
        starts = [f"{crew.command} >> {shlex.quote(str(crew.log(str(n))))} 2>&1 &" for n in range(crew.workers)]
        write_text(script, "\n".join(["#!/bin/bash", *starts, "wait", ""]))
        return [f"written: {script}" + (f" for {self.queue}" if self.queue else "")]


LAUNCHERS = {"script": ScriptLauncher}
