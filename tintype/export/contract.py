"""What diffusers' pipelines can hold of a run, and why they cannot hold the rest.

`PRXPipeline` takes latents of `AutoencoderKL` or `AutoencoderDC` and a denoiser that predicts the velocity;
`PRXPixelPipeline` takes pixels and a denoiser that predicts the clean image, divided by max(t, 0.05).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Literal

from tintype.errors import UserError
from tintype.plan import Plan
from tintype.text.frozen import FrozenTextPart

Pipeline = Literal["PRXPipeline", "PRXPixelPipeline"]
LATENT: Pipeline = "PRXPipeline"
PIXEL: Pipeline = "PRXPixelPipeline"
PIXEL_CLAMP = 0.05
"""The least t that `PRXPixelPipeline` divides by."""
BINS = {LATENT: (256, 512, 1024), PIXEL: (1024,)}
"""Default sizes for which a pipeline has bins of aspect ratios."""
KL, DC = ("flux1", "e2e-flux"), ("dc-ae",)
"""Tokenizers by their class in diffusers."""
_RECIPES = ("pocket-diffusers", "mini-diffusers")
_SINGLE_FILE = "`--to safetensors` writes the denoiser for loaders of your own"
_WHY_NOT_HELD = {
    "flux2": "FLUX.2's batch-norm statistics depend on a latent's place in a patch of 2 × 2, and PRXPipeline knows one "
    f"scale and one shift; train on flux1, e2e-flux or dc-ae, or {_SINGLE_FILE}",
    "taef1": "PRXPipeline takes AutoencoderKL and AutoencoderDC, and this is an AutoencoderTiny; train on flux1, whose "
    f"latents it approximates, or {_SINGLE_FILE}",
    "taef2": f"diffusers has no class for it; train on flux1, e2e-flux or dc-ae, or {_SINGLE_FILE}",
    "small-vae": "it is tintype's own network, which diffusers has no class for; train on flux1, e2e-flux or dc-ae, or "
    f"{_SINGLE_FILE}",
}


@dataclass(frozen=True)
class Reason:
    """Why another form cannot hold a run, and the option of `tintype train` that trains one which it can."""

    text: str
    option: str = ""


def pipeline_for(plan: Plan, run: Path | None = None) -> Pipeline:
    """Return the pipeline that samples as tintype does.

    Refuse a run that none can hold, with every reason and what works instead. `run` is its folder, for the message.
    """
    pipeline = PIXEL if plan.tokenizer.kind == "pixels" else LATENT
    reasons = [*_of_denoiser(plan), *_of_text(plan), *_of_space(plan, pipeline)]
    _refuse(f"diffusers' {pipeline} cannot hold this run", reasons, run)
    return pipeline


def holds(plan: Plan) -> bool:
    """Return whether a pipeline of diffusers can hold a run of this plan."""
    try:
        pipeline_for(plan)
    except UserError:
        return False
    return True


def check_single_file(plan: Plan, run: Path | None = None) -> None:
    """Refuse a run whose denoiser alone is of no use: all that sampling needs besides must be available elsewhere."""
    reasons = _of_denoiser(plan)
    if not plan.text.is_frozen:
        reasons += [_own_text(plan)]
    _refuse("one file of the denoiser cannot hold this run", reasons, run)


def _refuse(what: str, reasons: Sequence[Reason], run: Path | None) -> None:
    if not reasons:
        return
    folder = Path("RUN") if run is None else run
    listed = "".join(f"\n- {reason.text}" for reason in reasons)
    ways = [
        f"`tintype export {quote(str(folder))} --to tintype --out DIR` writes this run as it is; tintype samples and "
        "pushes it"
    ]
    if all(reason.option for reason in reasons):
        options = " ".join(dict.fromkeys(reason.option for reason in reasons))
        train = f"tintype train {quote(str(folder / 'plan.yaml'))} "
        ways.append(f"`{train}{options} --out DIR` trains this plan so that it can be exported")
    ways.append(f"the recipes {' and '.join(_RECIPES)} train models that diffusers opens")
    raise UserError(f"{what}:{listed}\nWhat works:" + "".join(f"\n- {way}" for way in ways))


def _of_denoiser(plan: Plan) -> list[Reason]:
    """TREAD is dense in sampling and holds; SPRINT's layer is a part of every sample."""
    if plan.route is None or plan.route.build(plan.model).whole() is None:
        return []
    return [
        Reason(
            f"route: '{plan.route.kind}' joins two streams of tokens with a layer of its own in sampling too, and "
            "PRX's transformer has no such layer; without it the later blocks see what they were never trained on. "
            "Train without a route, or with tread, which samples like a plain transformer",
            "--set route=null",
        )
    ]


def _of_text(plan: Plan) -> list[Reason]:
    text = plan.text
    if not isinstance(text, FrozenTextPart):
        return [_own_text(plan)]
    if text.skip_layers:
        return [
            Reason(
                f"text.skip_layers is {text.skip_layers}: the pipelines read the last layer after its norm "
                "(`last_hidden_state`) and no other",
                "--set text.skip_layers=0",
            )
        ]
    return []


def _own_text(plan: Plan) -> Reason:
    return Reason(
        f"text: the encoder '{plan.text.kind}' is trained with the run and is no class of transformers, so that it "
        "could be loaded only by running code of the folder; a frozen one can be loaded",
        "--technique text-encoder:to=minilm",
    )


def _of_space(plan: Plan, pipeline: Pipeline) -> list[Reason]:
    predicts, kind = plan.objective.predicts, plan.tokenizer.kind
    if pipeline == PIXEL:
        if predicts == "velocity":
            return [
                Reason(
                    "objective: PRXPixelPipeline takes a prediction of the clean image, and this run predicts the "
                    "velocity of pixels. x = x_t - t v also needs x_t and t, which no last layer can add",
                    "--technique x-prediction",
                )
            ]
        clamp = getattr(plan.objective, "clamp", None)
        if clamp != PIXEL_CLAMP:
            return [
                Reason(
                    f"objective.clamp is {clamp}, and PRXPixelPipeline divides by max(t, {PIXEL_CLAMP}): samples would "
                    "differ in steps with t below",
                    f"--set objective.clamp={PIXEL_CLAMP:g}",
                )
            ]
        return []
    reasons = []
    if predicts != "velocity":
        reasons.append(
            Reason(
                "objective: PRXPipeline takes a prediction of the velocity, and this run predicts clean latents. The "
                "way from one to the other needs x_t and t, which no last layer can add, and a pipeline of its own "
                f"would be code that the folder brings; train without x-prediction, or {_SINGLE_FILE}",
                "--set objective.kind=velocity",
            )
        )
    if kind not in (*KL, *DC):
        reasons.append(Reason(f"tokenizer '{kind}': {_WHY_NOT_HELD.get(kind, 'PRXPipeline has no class for it')}"))
    return reasons
