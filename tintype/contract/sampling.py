"""The contract of samplers and guidances. A check raises `BrokenContractError`, which describes the violation."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from tintype.contract.ground import Ground
from tintype.contract.technique import BrokenContractError
from tintype.sampling.generate import SamplerSettings, sample_latents
from tintype.seams import Draws
from tintype.train.parts import Model, build_model

SAMPLED = ("samplers", "guidances")
"""Groups of parts under this contract."""
_CAPTIONS = ("a red ball", "a blue star", "a green ring")
_STEPS = 4
_NEAR = 1e-2
"""Largest accepted difference of a tiny model's latents (deviation about 1) between batches of different sizes."""


def check_samples(ground: Ground, group: str, name: str) -> str:
    """Samples finite images that depend on the seed alone, not on the batch or on torch's generator."""
    own = {"method": name} if group == "samplers" else {"guidance": {"kind": name}}
    settings = SamplerSettings.model_validate({"steps": _STEPS, **own})
    model, steps = _model(ground, settings), list[int]()
    together_BCHW = _sampled(model, settings, 0, len(_CAPTIONS), steps)
    if not together_BCHW.isfinite().all():
        raise BrokenContractError("the sampled images are not finite")
    if steps != [len(_CAPTIONS)] * _STEPS:
        raise BrokenContractError(
            f"the sampler calls `on_step` {len(steps)} times in {_STEPS} steps; call it once after each step"
        )
    for index in range(len(_CAPTIONS)):
        alone_BCHW = _sampled(model, settings, index, 1)
        if not torch.allclose(alone_BCHW, together_BCHW[index : index + 1], rtol=_NEAR, atol=_NEAR):
            raise BrokenContractError(
                "with the same seed, an image differs between two batches: draw random numbers from `draws`, "
                "and compute each sample independently of the others"
            )
    return f"{len(_CAPTIONS)} images, {_STEPS} steps"


def _model(ground: Ground, settings: SamplerSettings) -> Model:
    """Return a tiny model in which every weight affects the output; if need be, the model is its own guide."""
    model = build_model(ground.plan())
    generator = torch.Generator().manual_seed(0)
    for parameter in model.modules.parameters():
        nn.init.normal_(parameter, std=0.15, generator=generator)
    guide = settings.guidance.guide
    return model if guide is None else replace(model, guides={guide: model})


def _sampled(model: Model, settings: SamplerSettings, first: int, count: int, steps: list[int] | None = None) -> Tensor:
    """Advance torch's generator, then sample latents for some of the captions."""
    torch.rand(1)
    captions, draws = _CAPTIONS[first : first + count], Draws(0, torch.arange(first, first + count))
    on_step = (lambda images: None) if steps is None else steps.append
    return sample_latents(model, captions, settings, draws, model.plan.data.size_px, on_step)
