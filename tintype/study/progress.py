"""Progress of a study, for whoever shows it. Nothing in this room prints."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Literal

from tintype.runtime.interrupt import Interrupt


@dataclass(frozen=True)
class Message:
    """Progress of one run, sent by its worker. `share` is how much of the task is done, 0 to 1."""

    key: tuple[str, int]
    state: Literal["waiting", "training", "scoring", "done", "diverged", "failed", "interrupted"]
    share: float = 0.0
    text: str = ""
    step: int = 0
    loss: float | None = None
    images_per_s: float | None = None


class StudyProgress:
    """Receives what a study reports while it works. This one shows nothing; `terminal/` has one that does."""

    def phase(self, doing: str, kept: str) -> AbstractContextManager[Callable[[str], None]]:
        """Enclose a part of the work; call the value to name the next part.

        `kept` says what an interrupted command keeps and how to resume it.
        """
        return nullcontext(lambda doing: None)

    def runs(self, total: int, interrupt: Interrupt) -> AbstractContextManager[Callable[[Message], None]]:
        """Enclose the training and scoring of `total` runs; the value receives their messages."""
        return nullcontext(lambda message: None)

    def note(self, text: str) -> None:
        """Report something that the user should know and that stops nothing."""
