"""Settings of text encoders: what all kinds do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar

import torch

from tintype.seams import TextEncoder
from tintype.settings import ExportForm, Obstacle, Part
from tintype.wording import technique


class TextPart(Part):
    is_frozen: ClassVar[bool] = False
    """Whether its weights are those of others, and are not trained."""

    model_types: ClassVar[Mapping[str, str]] = {}
    """Types of transformers' models that an import takes for this kind, and their classes."""

    def obstacles(self, form: ExportForm) -> Iterator[Obstacle]:
        yield Obstacle(
            f"text: the encoder '{self.kind}' is trained with the run and is no class of transformers, so that it "
            "could be loaded only by running code of the folder; a frozen one can be loaded",
            technique("text-encoder:to=minilm"),
        )

    def limits(self) -> list[str]:
        """Return what a model cannot read because of this encoder, one limit each."""
        return []

    def check_packages(self) -> None:
        """Refuse an encoder whose package is not installed, without loading its weights."""

    def build(self, device: torch.device) -> TextEncoder:
        """Loads what is frozen onto the device; what is trained goes there with all that is."""
        raise NotImplementedError
