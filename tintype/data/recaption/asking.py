"""Questions about images, replies, and the protocol of those who answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

from tintype.data.image_file import Encoded
from tintype.runtime.interrupt import Interrupt

_HOTTER = 0.4
"""Added to the temperature with each further attempt: at 0 the same question has the same answer."""
_HOTTEST = 1.0


@dataclass(frozen=True)
class Asking:
    """Prompt and sampling settings, the same for each image."""

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
    """Number of earlier attempts without a usable answer."""


@dataclass(frozen=True)
class Reply:
    question: Question
    text: str | None = None
    cut_off: bool = False
    refused: bool = False
    failure: str | None = None
    """Why there is no answer, where the server failed again and again at this image."""
    input_tokens: int = 0
    output_tokens: int = 0


Pull = Callable[[], Question | None]
"""The next question; None when there is none now. A reply may bring a further one."""


class Captioner(Protocol):
    @property
    def where(self) -> str:
        """The place where it runs, on which the answers do not depend."""

    def identity(self) -> dict[str, str]:
        """Return who answers, with all that the answers depend on."""

    def check(self) -> None:
        """Raise where it cannot be asked, before the work begins."""

    def alive(self) -> bool:
        """Return whether it can still be asked."""

    def replies(self, pull: Pull, interrupt: Interrupt) -> Iterator[Reply]:
        """Yield replies to the pulled questions, in any order, until there are none, or until a signal comes: open
        questions are then dropped."""
