"""Lists in Python: recipes, studies and techniques by name. Heavy modules are imported when they are needed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tintype.plan import Plan


@dataclass(frozen=True)
class ListedRecipe:
    """A recipe: a plan that comes with tintype."""

    name: str
    description: str
    device: str
    """Device for which the plan is meant: GPU or CPU."""
    size_px: int
    denoiser_parameters: int | None
    """Number of the denoiser's parameters. None if the text encoder's width is unknown without loading its weights."""
    steps: int
    batch: int


@dataclass(frozen=True)
class ListedStudy:
    """A study that comes with tintype."""

    name: str
    description: str
    question: str
    device: str
    """Device for which the plan is meant: GPU or CPU."""
    recipe: str
    """The recipe of the study's baseline."""
    seeds: list[int]
    arms: list[str]
    runs: int


@dataclass(frozen=True)
class ListedTechnique:
    """A technique of tintype or of a loaded plugin."""

    name: str
    seam: str
    """The section of a plan that the technique changes."""
    summary: str
    paper: str | None
    options: dict[str, Any]
    """JSON schema of the technique's options."""


def recipes() -> list[ListedRecipe]:
    """List the recipes. A recipe is a plan that comes with tintype, to train or to use as a study's baseline."""
    from tintype.plan import read_plan
    from tintype.recipes import packaged

    plans = {name: read_plan(name) for name in packaged.names("plans")}
    return [
        ListedRecipe(
            name=name,
            description=packaged.describe("plans", name),
            device=_device(plan),
            size_px=plan.data.size_px,
            denoiser_parameters=_denoiser_parameters(plan),
            steps=plan.train.steps,
            batch=plan.train.batch,
        )
        for name, plan in plans.items()
    ]


def studies() -> list[ListedStudy]:
    """List the studies that come with tintype, for `ablate`."""
    from tintype.recipes import packaged
    from tintype.study.study import load_study

    found = {name: load_study(name) for name in packaged.names("studies")}
    return [
        ListedStudy(
            name=name,
            description=packaged.describe("studies", name),
            question=study.settings.question,
            device=_device(study.arms[0].plans[0]),
            recipe=study.settings.recipe,
            seeds=list(study.settings.every_seed.seeds),
            arms=[arm.label for arm in study.arms],
            runs=sum(len(arm.plans) for arm in study.arms),
        )
        for name, study in found.items()
    ]


def techniques() -> list[ListedTechnique]:
    """List the techniques with their options and papers."""
    from tintype.techniques import TECHNIQUES

    return [
        ListedTechnique(one.name, one.seam, one.summary, one.paper, one.options.model_json_schema())
        for one in TECHNIQUES.values()
    ]


def _device(plan: Plan) -> str:
    """Return the device for which a recipe is meant.

    The device is the GPU if the recipe compiles its blocks, which is only faster on a GPU. Otherwise, it is the CPU.
    """
    return "GPU" if plan.model.compile else "CPU"


def _denoiser_parameters(plan: Plan) -> int | None:
    """Return the number of the denoiser's parameters.

    Return None if the text encoder's width is unknown without loading its weights.
    """
    import torch

    from tintype.model import Transformer
    from tintype.pretrained.published import PUBLISHED
    from tintype.text.frozen import FrozenTextPart
    from tintype.text.words import WordsSettings

    if isinstance(plan.text, WordsSettings):
        text_width = plan.text.width
    elif isinstance(plan.text, FrozenTextPart) and plan.text.weights in PUBLISHED:
        text_width = PUBLISHED[plan.text.weights].width
    else:
        return None
    settings = plan.model.model_copy(update={"compile": False})
    with torch.device("meta"):
        model = Transformer(settings, plan.tokenizer.compression.channels, text_width)
    return sum(parameter.numel() for parameter in model.parameters())
