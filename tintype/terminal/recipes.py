"""The lists of packaged recipes and studies."""

from __future__ import annotations

from typing import Any

import torch
from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from tintype.model import Transformer
from tintype.page import numerals
from tintype.plan import Plan, read_plan
from tintype.pretrained.published import PUBLISHED
from tintype.recipes import packaged
from tintype.study.study import load_study
from tintype.terminal.lines import say
from tintype.text.frozen import FrozenTextPart
from tintype.text.words import WordsSettings


def recipe_rows() -> list[dict[str, Any]]:
    plans = {name: read_plan(name) for name in packaged.names("plans")}
    return [
        {
            "name": name,
            "description": packaged.describe("plans", name),
            "device": _device(plan),
            "size_px": plan.data.size_px,
            "denoiser_parameters": _denoiser_parameters(plan),
            "steps": plan.train.steps,
            "batch": plan.train.batch,
        }
        for name, plan in plans.items()
    ]


def study_rows() -> list[dict[str, Any]]:
    studies = {name: load_study(name) for name in packaged.names("studies")}
    return [
        {
            "name": name,
            "description": packaged.describe("studies", name),
            "question": study.settings.question,
            "device": _device(study.arms[0].plans[0]),
            "recipe": study.settings.recipe,
            "seeds": study.settings.every_seed.seeds,
            "arms": [arm.label for arm in study.arms],
            "runs": sum(len(arm.plans) for arm in study.arms),
        }
        for name, study in studies.items()
    ]


def show_recipes(console: Console) -> None:
    numbers = [Column(head, justify="right", no_wrap=True) for head in ("px", "denoiser", "steps × batch")]
    table = Table(Column("recipe", no_wrap=True), "what it is", "device", *numbers)
    for row in recipe_rows():
        size = row["denoiser_parameters"]
        denoiser = "" if size is None else numerals.count(size, 2)
        sizes = [str(row["size_px"]), denoiser, f"{row['steps']:,} × {row['batch']}"]
        words = row["description"].partition(": ")[0]  # the rest says what the other columns say
        table.add_row(row["name"], escape(words), row["device"], *sizes)
    console.print(table)


def show_studies(console: Console) -> None:
    table = Table(Column("study", no_wrap=True), "question", "device", "recipe", Column("runs", justify="right"))
    for row in study_rows():
        table.add_row(row["name"], escape(row["question"]), row["device"], row["recipe"], str(row["runs"]))
    console.print(table)
    say(console, "`tintype ablate STUDY --out DIR --dry-run` shows the arms of one", "dim")


def _device(plan: Plan) -> str:
    """Return what a recipe is meant for: compiled blocks pay on a GPU only."""
    return "GPU" if plan.model.compile else "CPU"


def _denoiser_parameters(plan: Plan) -> int | None:
    """Return how many weights the denoiser has; None where only loading the text encoder tells."""
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
