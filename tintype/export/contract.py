"""What diffusers' pipelines can hold of a run, and why they cannot hold the rest.

`PRXPipeline` takes latents of `AutoencoderKL` or `AutoencoderDC` and a denoiser that predicts the velocity;
`PRXPixelPipeline` takes pixels and a denoiser that predicts the clean image, divided by max(t, 0.05).
"""

from __future__ import annotations

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


def pipeline_for(plan: Plan) -> Pipeline:
    """The pipeline that samples as tintype does. A run that none can hold is refused, with every reason at once."""
    pipeline = PIXEL if plan.tokenizer.kind == "pixels" else LATENT
    reasons = [*_of_denoiser(plan), *_of_text(plan), *_of_space(plan, pipeline)]
    if reasons:
        listed = "".join(f"\n- {reason}" for reason in reasons)
        raise UserError(f"diffusers' {pipeline} cannot hold this run:{listed}")
    return pipeline


def check_single_file(plan: Plan) -> None:
    """A file of the denoiser alone: all that sampling needs besides must be elsewhere to be had."""
    reasons = _of_denoiser(plan)
    if not isinstance(plan.text, FrozenTextPart):
        reasons += [_own_text(plan)]
    if reasons:
        raise UserError("one file of the denoiser cannot hold this run:" + "".join(f"\n- {one}" for one in reasons))


def _of_denoiser(plan: Plan) -> list[str]:
    """TREAD is dense in sampling and holds; SPRINT's layer is a part of every sample."""
    if plan.route is None or plan.route.build(plan.model).whole() is None:
        return []
    return [
        f"route: '{plan.route.kind}' joins two streams of tokens with a layer of its own in sampling too, and PRX's "
        "transformer has no such layer; without it the blocks behind see what they were never trained on. Train "
        "without a route, or with tread, which samples like a plain transformer"
    ]


def _of_text(plan: Plan) -> list[str]:
    text = plan.text
    if not isinstance(text, FrozenTextPart):
        return [_own_text(plan)]
    if text.skip_layers:
        return [
            f"text.skip_layers is {text.skip_layers}: the pipelines read the last layer behind its norm "
            "(`last_hidden_state`) and no other; train with text.skip_layers=0"
        ]
    return []


def _own_text(plan: Plan) -> str:
    return (
        f"text: the encoder '{plan.text.kind}' is trained with the run and is no class of transformers, so that it "
        "could be loaded only by running code of the folder; train with a frozen one, for example --technique "
        "text-encoder:to=t5"
    )


def _of_space(plan: Plan, pipeline: Pipeline) -> list[str]:
    predicts, kind = plan.objective.predicts, plan.tokenizer.kind
    if pipeline == PIXEL:
        if predicts == "velocity":
            return [
                "objective: PRXPixelPipeline takes a prediction of the clean image, and this run predicts the velocity "
                "of pixels. x = x_t - t v also needs x_t and t, which no last layer can add; train with --technique "
                "x-prediction"
            ]
        clamp = getattr(plan.objective, "clamp", None)
        if clamp != PIXEL_CLAMP:
            return [
                f"objective.clamp is {clamp}, and PRXPixelPipeline divides by max(t, {PIXEL_CLAMP}): samples would "
                f"differ in steps with t below; train with clamp={PIXEL_CLAMP}"
            ]
        return []
    reasons = []
    if predicts != "velocity":
        reasons.append(
            "objective: PRXPipeline takes a prediction of the velocity, and this run predicts clean latents. The way "
            "from one to the other needs x_t and t, which no last layer can add, and a pipeline of its own would be "
            f"code that the folder brings; train without x-prediction, or {_SINGLE_FILE}"
        )
    if kind not in (*KL, *DC):
        reasons.append(f"tokenizer '{kind}': {_WHY_NOT_HELD.get(kind, 'PRXPipeline has no class for it')}")
    return reasons
