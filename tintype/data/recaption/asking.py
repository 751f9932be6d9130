"""Questions about images, the replies, and the protocol of the models that answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

from tintype.data.image_file import Encoded
from tintype.runtime.interrupt import Interrupt

_HOTTER = 0.4
"""Temperature added at each further attempt. At temperature 0, the same question would get the same answer."""
_HOTTEST = 1.0


@dataclass(frozen=True)
class Asking:
    """Prompt and sampling settings, which are equal for all images."""

    prompt: str
    max_tokens: int
    temperature: float = 0.0
    seed: int = 0

    def temperature_of(self, attempt: int) -> float:
        return self.temperature if attempt == 0 else max(self.temperature, min(_HOTTEST, _HOTTER * attempt))


@dataclass(frozen=True)
class Question:
    key: str
    """The SHA-256 of the image's bytes."""
    image: Encoded
    attempt: int = 0
    """Number of earlier attempts that gave no usable answer."""


@dataclass(frozen=True)
class Reply:
    question: Question
    text: str | None = None
    cut_off: bool = False
    refused: bool = False
    failure: str | None = None
    """Why there is no answer, if the server repeatedly failed on this image."""
    input_tokens: int = 0
    output_tokens: int = 0


Pull = Callable[[], Question | None]
"""Function that returns the next question; None if there is none yet, since a reply can cause a later question."""


class Captioner(Protocol):
    @property
    def where(self) -> str:
        """The URL or the device of the model. The answers do not depend on the URL or device."""

    def identity(self) -> dict[str, str]:
        """Return the model, and all settings on which the captioner's answers depend."""

    def check(self) -> None:
        """Raise before the work begins, if the captioner cannot answer."""

    def alive(self) -> bool:
        """Return whether the captioner can still answer."""

    def replies(self, pull: Pull, interrupt: Interrupt) -> Iterator[Reply]:
        """Yield replies in any order until no questions are left. After a signal, drop the open questions and stop."""
