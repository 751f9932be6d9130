"""Refuse to export a run in a format that cannot represent it. The error lists all reasons and an alternative.

`PRXPipeline` needs latents of `AutoencoderKL` or `AutoencoderDC`, and a denoiser that predicts the velocity.
`PRXPixelPipeline` needs pixels, and a denoiser that predicts the clean image, divided by max(t, 0.05). Each part of a
plan reports why it cannot be exported.
"""

from __future__ import annotations

import json
from pathlib import Path
from shlex import quote

from tintype.errors import UserError
from tintype.plan import Plan
from tintype.settings import ExportForm, ModelSettings, Obstacle, plain
from tintype.tokenizers.part import Pipeline
from tintype.wording import option, rendered, setting

LATENT: Pipeline = "PRXPipeline"
PIXEL: Pipeline = "PRXPixelPipeline"
_RECIPES = ("pocket-diffusers", "mini-diffusers")


def pipeline_for(plan: Plan, run: Path | None = None) -> Pipeline:
    """Return the pipeline that samples in the same way as tintype; raise if there is none. Errors name `run`."""
    _refuse(plan, plan.tokenizer.pipeline, f"diffusers' {plan.tokenizer.pipeline} cannot hold this run", run)
    return plan.tokenizer.pipeline


def holds(plan: Plan) -> bool:
    return not obstacles(plan, plan.tokenizer.pipeline)


def check_single_file(plan: Plan, run: Path | None = None) -> None:
    """Raise if a file with the denoiser alone is useless, since other tools lack a part that sampling needs."""
    _refuse(plan, "safetensors", "a single file with the denoiser cannot represent this run", run)


def obstacles(plan: Plan, form: ExportForm) -> list[Obstacle]:
    parts = [plan.text, plan.objective, plan.tokenizer, plan.data, plan.captions, plan.optimizer, plan.main_loss]
    every = [*parts, plan.weighting, plan.route, plan.tuning, *plan.losses]
    return [
        *model_obstacles(plan),
        *route_obstacles(plan),
        *(one for part in every if part is not None for one in part.obstacles(form)),
    ]


def model_obstacles(plan: Plan) -> list[Obstacle]:
    """Return the settings that give the denoiser's blocks layers which PRX's transformer lacks."""
    usual = plain(ModelSettings())
    return [
        Obstacle(
            f"model.{name}: PRX's transformer has no block with {name} {value}",
            option("set", _assignment(name, usual[name])),
        )
        for name, value in plan.model.variants.items()
    ]


def _assignment(name: str, value: object) -> str:
    return f"model.{name}={value if isinstance(value, str) else json.dumps(value)}"


def route_obstacles(plan: Plan) -> list[Obstacle]:
    """Return a reason if the route, like SPRINT's, adds a layer that sampling needs.

    TREAD adds no such layer, since sampling runs all tokens through all blocks.
    """
    if plan.route is None or plan.route.build(plan.model).whole() is None:
        return []
    return [
        Obstacle(
            f"route: '{plan.route.kind}' joins two streams of tokens with a layer of its own in sampling too, and "
            "PRX's transformer has no such layer; without it the later blocks see what they were never trained on. "
            "Train without a route, or with tread, which samples like a plain transformer",
            setting("route", "null"),
        )
    ]


def _refuse(plan: Plan, form: ExportForm, what: str, run: Path | None) -> None:
    found, folder = obstacles(plan, form), Path("RUN") if run is None else run
    if not found:
        return
    listed = "".join(f"\n- {one.reason}" for one in found)
    ways = [
        f"`tintype export {quote(str(folder))} --to tintype --out DIR` writes this run as it is; tintype samples and "
        "pushes it"
    ]
    if all(one.option for one in found):
        options = rendered(" ".join(dict.fromkeys(one.option for one in found)))
        train = f"tintype train {quote(str(folder / 'plan.yaml'))} "
        ways.append(f"`{train}{options} --out DIR` trains this plan so that it can be exported")
    ways.append(f"the recipes {' and '.join(_RECIPES)} train models that diffusers opens")
    raise UserError(f"{what}:{listed}", "\nWhat works:" + "".join(f"\n- {way}" for way in ways))
