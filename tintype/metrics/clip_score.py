"""Whether images show what their prompts say, as an encoder of images and texts sees it.

N: images, R: those of a block, F: size of a feature vector, P: different prompts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from tintype.metrics.resample import mean_with_error
from tintype.seams import SHARE, Measured, Range

_BLOCK = 1024


@dataclass(frozen=True)
class TextMetric:
    label: str
    definition: str
    range: Range


DEFINITIONS = {
    "clip_score": TextMetric(
        "CLIP score",
        "mean over images of 100 · max(cos(image, prompt), 0) (arXiv 2104.08718 with the weight 100), prompts cut at "
        "the encoder's limit",
        (0.0, 100.0),
    ),
    "clip_rank": TextMetric(
        "CLIP retrieval",
        "share of images that are nearer (cosine) to their own prompt than to every other prompt asked, by the "
        "encoder's eyes; chance is one over the number of prompts",
        SHARE,
    ),
}


def text_scores(image_NF: Tensor, text_PF: Tensor, asked_N: Sequence[int]) -> dict[str, Tensor]:
    """Each metric's value for each image. `asked_N` is the row of each image's prompt."""
    unit_NF, unit_PF = (functional.normalize(table.double(), dim=1) for table in (image_NF, text_PF))
    own_N = torch.tensor(asked_N, device=image_NF.device)
    cosines, bests = [], []
    for rows_RF, own_R in zip(unit_NF.split(_BLOCK), own_N.split(_BLOCK), strict=True):
        cosine_RP = rows_RF @ unit_PF.T
        cosines.append(cosine_RP.gather(1, own_R[:, None]).squeeze(1))
        bests.append(cosine_RP.scatter_(1, own_R[:, None], -torch.inf).amax(1))
    cosine_N, best_other_N = torch.cat(cosines), torch.cat(bests)
    return {"clip_score": 100 * cosine_N.clamp_min(0), "clip_rank": (cosine_N > best_other_N).double()}


def summarise(value_N: Tensor, groups: Mapping[str, Sequence[str]]) -> tuple[Measured, dict[str, float]]:
    """The mean with its error, and the mean of each group, as `tag: two_object`."""
    parts = {}
    for group, labels in groups.items():
        for label in dict.fromkeys(labels):
            rows = torch.tensor([one == label for one in labels], device=value_N.device)
            parts[f"{group}: {label}"] = float(value_N[rows].mean())
    return mean_with_error(value_N), parts
