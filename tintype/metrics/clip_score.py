"""CLIP score and CLIP retrieval. Both measure whether images show their prompts, with an encoder of images and texts.

N: images, R: images of a block, F: size of a feature vector, P: distinct prompts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor
from torch.nn import functional

from tintype.metrics.metric import SHARE, Measured, Metric
from tintype.metrics.resample import mean_with_error

_BLOCK = 1024


@dataclass(frozen=True)
class TextFeatures:
    image_NF: Tensor
    text_PF: Tensor
    prompt_N: Sequence[int]
    """For each image, the row of its prompt in `text_PF`."""
    groups: Mapping[str, Sequence[str]]
    """For each grouping, such as `tag`, the labels of the images."""

    @cached_property
    def cosines(self) -> tuple[Tensor, Tensor]:
        """Return the cosine of each image with its own prompt, and its cosine with the most similar other prompt."""
        unit_NF, unit_PF = (functional.normalize(one.double(), dim=1) for one in (self.image_NF, self.text_PF))
        own_N = torch.tensor(self.prompt_N, device=self.image_NF.device)
        cosines, bests = [], []
        for rows_RF, own_R in zip(unit_NF.split(_BLOCK), own_N.split(_BLOCK), strict=True):
            cosine_RP = rows_RF @ unit_PF.T
            cosines.append(cosine_RP.gather(1, own_R[:, None]).squeeze(1))
            bests.append(cosine_RP.scatter_(1, own_R[:, None], -torch.inf).amax(1))
        return torch.cat(cosines), torch.cat(bests)


def _rank(features: TextFeatures) -> Measured:
    own_N, best_other_N = features.cosines
    return _summarise((own_N > best_other_N).double(), features.groups)


def _summarise(value_N: Tensor, groups: Mapping[str, Sequence[str]]) -> Measured:
    """Return the mean with its error. The breakdown has the mean of each group, such as `tag: two_object`."""
    parts = {}
    for group, labels in groups.items():
        for label in dict.fromkeys(labels):
            rows = torch.tensor([one == label for one in labels], device=value_N.device)
            parts[f"{group}: {label}"] = float(value_N[rows].mean())
    return replace(mean_with_error(value_N), parts=parts)


SCORE = Metric[TextFeatures](
    name="clip_score",
    label="CLIP score",
    direction="higher",
    definition="mean over images of 100 · max(cos(image, prompt), 0) (arXiv 2104.08718 with the weight 100), prompts "
    "cut at the encoder's limit",
    measure=lambda features: _summarise(100 * features.cosines[0].clamp_min(0), features.groups),
    range=(0.0, 100.0),
)
RANK = Metric(
    name="clip_rank",
    label="CLIP retrieval",
    direction="higher",
    definition="share of images that are nearer (cosine) to their own prompt than to every other prompt asked, by the "
    "encoder's eyes; chance is one over the number of prompts",
    measure=_rank,
    range=SHARE,
)
