"""text-encoder: captions are read by another encoder, a frozen one of others for example.

The denoiser stays as it is but for its first layer on texts, which is as wide as the encoder.
"""

from __future__ import annotations

from pydantic import Field

from tintype.settings import Settings
from tintype.techniques.technique import Technique
from tintype.text import TextChoice


class Options(Settings):
    to: TextChoice = Field(description="A kind alone (to=t5gemma), or with settings (to.kind=t5,to.weights=DIR)")


TECHNIQUE = Technique(
    seam="text",
    summary="read captions with another text encoder, frozen or trained",
    apply=lambda plan, options: {"text": options.to},
    options=Options,
)
