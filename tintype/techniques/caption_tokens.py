"""caption-tokens: training captions are truncated to their first tokens, as counted by the plan's text encoder.

In contrast, the encoder's own `max_tokens` also truncates prompts, and reduces the number of token positions. This
technique changes neither prompts nor token positions.
"""

from __future__ import annotations

from pydantic import Field

from tintype.settings import Settings
from tintype.techniques.technique import Technique


class Options(Settings):
    tokens: int = Field(ge=2, description="Number of tokens to keep of a caption, including special tokens")


TECHNIQUE = Technique(
    seam="captions",
    setting="max_tokens",
    summary="truncate captions to their first tokens",
    options=Options,
)
