"""caption-truncation: captions are truncated after their first words, before the text encoder reads them.

The encoder's own `max_tokens` also truncates captions, and reduces the number of token positions. This technique leaves
`max_tokens` unchanged.
"""

from __future__ import annotations

from pydantic import Field

from tintype.settings import Settings
from tintype.techniques.technique import Technique


class Options(Settings):
    words: int = Field(ge=1, description="Number of words to keep of a caption")


TECHNIQUE = Technique(
    seam="captions",
    setting="max_words",
    summary="truncate captions after their first words",
    options=Options,
)
