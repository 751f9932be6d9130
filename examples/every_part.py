"""One small part of every kind that a plugin can add: the patterns to copy from (docs/plugins.md).

    tintype --plugin examples/every_part.py techniques

The file has a module-level name for each kind of part that it adds. The tests train, score, import and launch with all
of them.

B: images or captions. C: channels. H, W: rows, columns. L: tokens. N: images. F: features.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import pixel_shuffle, pixel_unshuffle

from tintype.data.image_file import read_file
from tintype.data.importers.importer import Importer, Item, Reading
from tintype.errors import UserError
from tintype.losses.part import LossPart
from tintype.metrics.metric import NOT_NEGATIVE, Measured, Metric
from tintype.metrics.pair import FeaturePair
from tintype.optim.part import OptimizerPart
from tintype.optim.storage import Storage
from tintype.plan import Plan
from tintype.runtime.files import write_text
from tintype.runtime.forms import Form, form_of
from tintype.runtime.layout import Layout
from tintype.seams import Draws, LossContext, LossInputs, LossTerm, TextTokens
from tintype.settings import Settings
from tintype.study.launch.launcher import Crew
from tintype.techniques.technique import Changes, Technique
from tintype.text.part import TextPart
from tintype.tokenizers.part import Compression, TokenizerPart, to_bytes, to_floats

# ---------------------------------------------------------------------------------------------------------------- loss


class EdgesSettings(LossPart):
    """Compares the differences between neighbours of the velocity: errors at edges count more."""

    any_shape: ClassVar[bool] = True  # it takes images of several shapes in one run

    kind: Literal["edges"] = "edges"
    weight: float = Field(0.1, gt=0, description="Its weight in the sum of the losses")

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

# ----------------------------------------------------------------------------------------------------------- technique


class Options(Settings):
    """Settings that a user may give: `--technique sign-steps:beta=0.95`."""

    beta: float = Field(0.9, ge=0, lt=1, description="Share of the last step in the next one")


def use_lion(plan: Plan, options: Options) -> Changes:
    """Return the fields of the plan that change. The learning rate is a third of what it was, as Lion's paper says."""
    return {"optimizer": LionSettings(lr=plan.optimizer.lr / 3, beta=options.beta)}


TECHNIQUES = {
    "edges": Technique(seam="losses", summary="errors at edges count more", options=EdgesSettings),
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
