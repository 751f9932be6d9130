"""The table of teachers for alignment."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator

from tintype.settings import OneOf, kind_alone
from tintype.vision.dino import Dinov2TeacherSettings, Dinov3TeacherSettings
from tintype.vision.part import TeacherPart
from tintype.vision.scenes import SceneTeacherSettings
from tintype.vision.transformers_teacher import TransformersTeacherSettings
from tintype.vision.vgg import VggTeacherSettings

TEACHERS: tuple[type[TeacherPart], ...] = (
    SceneTeacherSettings,
    VggTeacherSettings,
    Dinov2TeacherSettings,
    Dinov3TeacherSettings,
    TransformersTeacherSettings,
)

TeacherChoice = Annotated[TeacherPart, OneOf(TEACHERS), BeforeValidator(kind_alone)]
"""Any teacher, as a user writes it: `{kind: dinov2, source: FOLDER}`, or a kind alone."""
