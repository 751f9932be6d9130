"""Settings that all text encoders share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar

import torch

from tintype.seams import TextEncoder
from tintype.settings import ExportForm, Obstacle, Part
from tintype.wording import technique


class TextPart(Part):
    is_frozen: ClassVar[bool] = False
    """Whether the encoder's weights are pretrained and frozen."""

    model_types: ClassVar[Mapping[str, str]] = {}
    """Model types of transformers that an import maps to this kind, with their classes."""

    def obstacles(self, form: ExportForm) -> Iterator[Obstacle]:
        yield Obstacle(
            f"text: the encoder '{self.kind}' is trained with the run and is no class of transformers, so that it "
            "could be loaded only by running code of the folder; a frozen one can be loaded",
            technique("text-encoder:to=minilm"),
        )

    def limits(self) -> list[str]:
        """Return one sentence for each limitation of a model's prompts that this encoder causes."""
        return []

    def check_packages(self) -> None:
        """Raise if the encoder's package is not installed, without loading weights."""

    def build(self, device: torch.device) -> TextEncoder:
        """Build the encoder. A frozen encoder is loaded onto the device; a trained encoder moves with the model."""
        raise NotImplementedError
