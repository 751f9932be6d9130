"""Text encoders behind one protocol (`seams.TextEncoder`)."""

from typing import Annotated, Any

from pydantic import BeforeValidator, Discriminator, Tag

from tintype.settings import TextPart, kind_alone
from tintype.text.published import (
    ClipSettings,
    MiniLmSettings,
    Qwen3VlSettings,
    T5GemmaSettings,
    T5Settings,
    TransformersSettings,
)
from tintype.text.words import WordsSettings

PARTS: tuple[type[TextPart], ...] = (
    WordsSettings,
    T5GemmaSettings,
    T5Settings,
    Qwen3VlSettings,
    ClipSettings,
    MiniLmSettings,
    TransformersSettings,
)


def _kind_of(value: Any) -> Any:
    return value.get("kind", "words") if isinstance(value, dict) else getattr(value, "kind", None)


TextChoice = Annotated[
    Annotated[WordsSettings, Tag("words")]
    | Annotated[T5GemmaSettings, Tag("t5gemma")]
    | Annotated[T5Settings, Tag("t5")]
    | Annotated[Qwen3VlSettings, Tag("qwen3-vl")]
    | Annotated[ClipSettings, Tag("clip")]
    | Annotated[MiniLmSettings, Tag("minilm")]
    | Annotated[TransformersSettings, Tag("transformers")],
    Discriminator(_kind_of),
    BeforeValidator(kind_alone),
]
"""Any text encoder, as a user writes it: `{kind: t5gemma, weights: FOLDER}`, or a kind alone; without one
it is `words`, as in older plans."""

__all__ = ["PARTS", "TextChoice"]
