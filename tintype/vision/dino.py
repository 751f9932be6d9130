"""`dinov2` and `dinov3` provide class tokens as features of metrics, and patch tokens as targets of alignment.

Tensor dimensions are B (images), C (channels), H (rows), W (columns) and F (size of the feature vector).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from tintype.pretrained.preprocess import IMAGENET_MEAN, IMAGENET_STD, Preprocess, Resampling, Triple
from tintype.pretrained.published import PUBLISHED, Outline, outline_of
from tintype.pretrained.settings import Source
from tintype.seams import Encoder
from tintype.vision.part import HubEncoderPart, TransformersEncoder
from tintype.vision.transformers_teacher import HubTeacherPart

DINOV2 = {"dinov2": "Dinov2Model", "dinov2_with_registers": "Dinov2WithRegistersModel"}
DINOV3 = {"dinov3_vit": "DINOv3ViTModel"}
_DINOV3_SOURCE = "facebook/dinov3-vitl16-pretrain-lvd1689m"
_OUTPUT = "class token after the last norm"


@dataclass(frozen=True)
class _Form:
    """A published definition of DINOv2 features, with its preprocessing."""

    source: str
    size_px: int
    resampling: Resampling
    metric: dict[str, str]


_FORMS = {
    "fd": _Form("facebook/dinov2-large", 224, Resampling("bicubic", quantise=True), {"fd": "FD-DINOv2"}),
    "prx": _Form(
        "facebook/dinov2-with-registers-large",
        518,
        Resampling("bicubic-0.75", antialias=False, clip=False),
        {"mmd_published": "DINO-MMD"},
    ),
}
"""Forms by name. fd: dgm-eval's FD-DINOv2 (arXiv 2306.04675). prx: PRX's DINO-MMD, resized without antialiasing."""


def _outline(source: str, size_px: int, number_bytes: int) -> Outline | None:
    features = PUBLISHED[source].width if source in PUBLISHED else 0
    return outline_of(source, (size_px, size_px), number_bytes, features)


class _ClassTokenEncoder(TransformersEncoder):
    def _features(self, input_BCHW: Tensor) -> Tensor:
        feature_BF: Tensor = self._network(pixel_values=input_BCHW).last_hidden_state[:, 0]
        return feature_BF


class Dinov2Settings(HubEncoderPart):
    """Settings of DINOv2's class token.

    `fd` is the definition of FD-DINOv2, and `prx` is the definition of PRX's DINO-MMD.
    """

    kind: Literal["dinov2"] = "dinov2"
    form: Literal["fd", "prx"] = Field(
        "fd", description="Definition of the features: fd (as in FD-DINOv2) or prx (as in PRX's DINO-MMD)"
    )
    source: Source | None = Field(
        None, description="Repository or local folder of the network; by default that of the form"
    )
    size_px: int | None = Field(
        None, ge=14, description="Side of the network's input in pixels; by default 224 for fd and 518 for prx"
    )

    @property
    def published(self) -> dict[str, str]:
        form = _FORMS[self.form]
        theirs = Path(self.source or form.source).name == Path(form.source).name
        return form.metric if theirs and self.size_px in (None, form.size_px) else {}

    def _make(self, device: torch.device) -> Encoder:
        form = _FORMS[self.form]
        checkpoint = self._checkpoint(self.source or form.source)
        how = Preprocess(self.size_px or form.size_px, form.resampling, mean=IMAGENET_MEAN, std=IMAGENET_STD)
        return _ClassTokenEncoder(self.title, checkpoint, checkpoint.model(DINOV2), how, _OUTPUT, device)

    def outline(self) -> Outline | None:
        form = _FORMS[self.form]
        size_px = self.size_px or form.size_px
        return _outline(self.source or form.source, size_px, self.number_bytes)


class Dinov3Settings(HubEncoderPart):
    """Settings of DINOv3's class token.

    Float images are resized to a square without preserving the aspect ratio, as in the checkpoint's own processor.
    """

    kind: Literal["dinov3"] = "dinov3"
    source: Source = _DINOV3_SOURCE
    size_px: int = Field(224, ge=16, description="Side of the network's input in pixels")

    def _make(self, device: torch.device) -> Encoder:
        checkpoint = self._checkpoint(self.source)
        model = checkpoint.model(DINOV3)
        said = checkpoint.image_processor()  # models for satellite images have other means
        resampling = Resampling(said.resize_filter(checkpoint.words))
        how = Preprocess(self.size_px, resampling, "squash", *said.normalisation)
        return _ClassTokenEncoder(self.title, checkpoint, model, how, _OUTPUT, device)

    def outline(self) -> Outline | None:
        return _outline(self.source, self.size_px, self.number_bytes)


class Dinov2TeacherSettings(HubTeacherPart):
    """Settings of DINOv2's patch tokens after its last norm, with or without registers, which are the teacher in REPA's
    paper.

    The authors' code calls these tokens `x_norm_patchtokens`.
    """

    classes: ClassVar[Mapping[str, str] | None] = DINOV2
    kind: Literal["dinov2"] = "dinov2"
    source: Source = "facebook/dinov2-base"

    def _normalisation(self) -> tuple[float, Triple, Triple]:
        said = self._checkpoint.stated_image_processor()
        return (1.0 / 255.0, IMAGENET_MEAN, IMAGENET_STD) if said is None else said.normalisation


class Dinov3TeacherSettings(HubTeacherPart):
    """Settings of DINOv3's patch tokens after its last norm.

    The network's weights are gated and have a separate licence.
    """

    classes: ClassVar[Mapping[str, str] | None] = DINOV3
    kind: Literal["dinov3"] = "dinov3"
    source: Source = _DINOV3_SOURCE
