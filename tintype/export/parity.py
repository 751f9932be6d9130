"""Measure how much a pipeline's images differ from tintype's, for the same noise, steps and prompts.

The pipeline gets the prompts as embeddings from its own tokenizer and text encoder. So the comparison does not include
text cleaning, which is not part of the model. Images are sampled one at a time, since the pipelines can only guide one
image per call.

B: images, S: text tokens, C: channels, H, W: rows and columns.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tintype.export.pipeline_folder import sampling_shift, timesteps
from tintype.flow.guidance import ClassifierFreeSettings
from tintype.pretrained.packages import pipeline_class, quiet
from tintype.sampling.generate import SamplerSettings, first_noise, sample_latents
from tintype.seams import Draws
from tintype.settings import PrecisionSettings
from tintype.train.parts import Model

PROMPTS = ("a small red ball on the grass", "two blue cubes and one large green cone")
GUIDANCES = (1.0, 3.5)
STEPS = 8


@dataclass(frozen=True)
class Figure:
    """The largest differences over all prompts, in latents (standard deviation about 1) and in images in [0, 1]."""

    guidance: float
    latents: float
    images: float


def open_pipeline(folder: Path, about: dict[str, Any]) -> Any:
    """Open the pipeline as a user does, only from its folder and with all networks in one dtype."""
    pipe = pipeline_class(about["pipeline"]).from_pretrained(folder, local_files_only=True, torch_dtype=torch.float32)
    pipe.set_progress_bar_config(disable=True)
    return pipe


def measure(parts: Model, folder: Path, about: dict[str, Any], steps: int = STEPS) -> list[Figure]:
    """Compare the images of the loaded `parts` and of the pipeline, both in fp32, whatever the plan says."""
    exact = replace(parts, plan=parts.plan.model_copy(update={"precision": PrecisionSettings(compute="fp32")}))
    with quiet("diffusers", "transformers"):
        pipe = open_pipeline(folder, about)
        return [_figure(exact, pipe, about, guidance, steps) for guidance in GUIDANCES]


def _figure(parts: Model, pipe: Any, about: dict[str, Any], guidance: float, steps: int) -> Figure:
    settings = SamplerSettings(steps=steps, guidance=ClassifierFreeSettings(scale=guidance))
    size_px, worst = parts.plan.data.size_px, Figure(guidance, 0.0, 0.0)
    for index, prompt in enumerate(PROMPTS):
        draws = Draws(0, torch.tensor([index]))
        ours_BCHW = sample_latents(parts, [prompt], settings, draws, size_px)
        arguments = {
            **embedded(pipe, prompt, about["call"].get("negative_prompt", "")),
            "latents": first_noise(parts, draws, size_px),
            "timesteps": timesteps(steps, sampling_shift(parts.plan)),
            "guidance_scale": guidance,
            "use_resolution_binning": False,
        }
        theirs_BCHW = pipe(**arguments, output_type="latent").images
        image_BHWC = torch.from_numpy(pipe(**arguments, output_type="np").images)
        ours_in_0_1 = (parts.tokenizer.decode_float(ours_BCHW) / 2 + 0.5).clamp(0, 1)
        latents = float((ours_BCHW - theirs_BCHW).abs().max())
        images = float((ours_in_0_1 - image_BHWC.movedim(-1, 1)).abs().max())
        worst = Figure(guidance, max(worst.latents, latents), max(worst.images, images))
    return worst


@torch.no_grad()
def embedded(pipe: Any, prompt: str, negative: str) -> dict[str, Tensor]:
    length = pipe.config.get("prompt_max_tokens") or pipe.tokenizer.model_max_length
    read = pipe.tokenizer(
        [prompt, negative], padding="max_length", max_length=length, truncation=True, return_tensors="pt"
    )
    mask_BS = read["attention_mask"].bool()
    state_BSC = pipe.text_encoder(input_ids=read["input_ids"], attention_mask=mask_BS)["last_hidden_state"]
    return {
        "prompt_embeds": state_BSC[:1],
        "prompt_attention_mask": mask_BS[:1],
        "negative_prompt_embeds": state_BSC[1:],
        "negative_prompt_attention_mask": mask_BS[1:],
    }
