"""The tables of image encoders for features, and of teachers for alignment."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator

from tintype.errors import UserError
from tintype.pretrained.weights import Known, at_hand, fetch
from tintype.settings import OneOf, kind_alone
from tintype.vision import inception, lpips
from tintype.vision.clip import ClipSettings, SiglipSettings
from tintype.vision.dino import Dinov2Settings, Dinov2TeacherSettings, Dinov3Settings, Dinov3TeacherSettings
from tintype.vision.inception import InceptionSettings
from tintype.vision.part import EncoderPart, TeacherPart
from tintype.vision.scene_encoder import SceneEncoderSettings, SceneTeacherSettings
from tintype.vision.transformers_teacher import TransformersTeacherSettings
from tintype.vision.vgg import VggSettings, VggTeacherSettings

ENCODERS: tuple[type[EncoderPart], ...] = (
    SceneEncoderSettings,
    InceptionSettings,
    VggSettings,
    ClipSettings,
    SiglipSettings,
    Dinov2Settings,
    Dinov3Settings,
)

EncoderChoice = Annotated[EncoderPart, OneOf(ENCODERS), BeforeValidator(kind_alone)]
"""Any encoder in the notation of a plan file, such as `{kind: dinov2, form: prx}`, or only a kind."""


TEACHERS: tuple[type[TeacherPart], ...] = (
    SceneTeacherSettings,
    VggTeacherSettings,
    Dinov2TeacherSettings,
    Dinov3TeacherSettings,
    TransformersTeacherSettings,
)

TeacherChoice = Annotated[TeacherPart, OneOf(TEACHERS), BeforeValidator(kind_alone)]
"""Any teacher in the notation of a plan file, such as `{kind: dinov2, source: FOLDER}`, or only a kind."""


def general_encoder() -> tuple[EncoderPart, str]:
    """Return an encoder for distances between any images, and a note if the encoder is a fallback.

    FID's Inception comes before VGG16, but weights on this machine come before weights to download.
    """
    choices = {InceptionSettings(): inception.WEIGHTS, VggSettings(): lpips.WEIGHTS["vgg16"]}
    ways = (encoder for ready in (at_hand, _fetched) for encoder, known in choices.items() if ready(known))
    if (encoder := next(ways, None)) is None:
        raise UserError(
            "encoders: no encoder network for the distances is installed, and none could be downloaded",
            f"\n{inception.WEIGHTS.advice}",
        )
    if isinstance(encoder, InceptionSettings):
        return encoder, ""
    return encoder, (
        f"the distances are taken on {encoder.title} and are not FID, for which Inception's weights are missing. "
        f"{inception.WEIGHTS.advice}"
    )


def _fetched(known: Known) -> bool:
    """Try to download the weights. If the download fails, `fetch` reports the reason."""
    try:
        fetch(known)
    except UserError:
        return False
    return True
