"""text-encoder: another text encoder reads the captions, for example a published frozen encoder.

In the denoiser, only the first layer on texts changes, since its size depends on the encoder's width.
"""

from __future__ import annotations

from pydantic import Field

from tintype.settings import Settings
from tintype.techniques.technique import Technique
from tintype.text import TextChoice


class Options(Settings):
    to: TextChoice = Field(
        description="The new text encoder, as a kind alone (to=t5gemma) or a kind with settings "
        "(to.kind=t5,to.weights=DIR)"
    )


TECHNIQUE = Technique(
    seam="text",
    summary="use another text encoder, frozen or trained",
    apply=lambda plan, options: {"text": options.to},
    options=Options,
)
