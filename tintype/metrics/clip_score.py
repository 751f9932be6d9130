"""Whether images show what their prompts say, as an encoder of images and texts sees it.

N: images, F: size of a feature vector, P: different prompts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from tintype.metrics.resample import mean_with_error
from tintype.seams import Measured


@dataclass(frozen=True)
class TextMetric:
    label: str
    definition: str


DEFINITIONS = {
    "clip_score": TextMetric(
        "CLIP score",
        "mean over images of 100 · max(cos(image, prompt), 0) (arXiv 2104.08718 with the weight 100), prompts cut at "
        "the encoder's limit",
    ),
    "clip_rank": TextMetric(
        "CLIP retrieval",
        "share of images that are nearer (cosine) to their own prompt than to every other prompt asked, by the "
        "encoder's eyes; chance is one over the number of prompts",
    ),
}


def text_scores(image_NF: Tensor, text_PF: Tensor, asked_N: Sequence[int]) -> dict[str, Tensor]:
    """Each metric's value for each image. `asked_N` is the row of each image's prompt."""
    cosine_NP = functional.normalize(image_NF.double(), dim=1) @ functional.normalize(text_PF.double(), dim=1).T
    own = torch.tensor(asked_N, device=cosine_NP.device)
    cosine_N = cosine_NP.gather(1, own[:, None]).squeeze(1)
    others_NP = cosine_NP.scatter(1, own[:, None], -torch.inf)
    return {
        "clip_score": 100 * cosine_N.clamp_min(0),
        "clip_rank": (cosine_N > others_NP.amax(1)).double(),
    }


def summarise(value_N: Tensor, groups: Mapping[str, Sequence[str]]) -> tuple[Measured, dict[str, float]]:
    """The mean with its error, and the mean of each group, as `tag: two_object`."""
    parts = {}
    for group, labels in groups.items():
        for label in dict.fromkeys(labels):
            rows = torch.tensor([one == label for one in labels], device=value_N.device)
            parts[f"{group}: {label}"] = float(value_N[rows].mean())
    return mean_with_error(value_N), parts
