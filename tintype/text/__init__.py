"""All text encoders implement one protocol (`seams.TextEncoder`)."""

from typing import Annotated

from pydantic import BeforeValidator

from tintype.settings import OneOf, OpenKinds, kind_alone
from tintype.text import published
from tintype.text.part import TextPart
from tintype.text.words import WordsSettings

PARTS: OpenKinds[TextPart] = OpenKinds(
    "text_encoders",
    WordsSettings,
    published.T5GemmaSettings,
    published.T5Settings,
    published.Qwen3VlSettings,
    published.Qwen3VlEmbeddingSettings,
    published.ClipSettings,
    published.MiniLmSettings,
    published.TransformersSettings,
)


TextChoice = Annotated[TextPart, OneOf(PARTS, "words"), BeforeValidator(kind_alone)]
"""Any text encoder in the notation of a plan file, `{kind: t5gemma, weights: FOLDER}` or a kind; default: `words`."""
