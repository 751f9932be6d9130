"""Settings of text encoders: what all kinds do."""

from __future__ import annotations

from typing import ClassVar

import torch

from tintype.seams import TextEncoder
from tintype.settings import Part


class TextPart(Part):
    is_frozen: ClassVar[bool] = False
    """Whether its weights are those of others, and are not trained."""

    def limits(self) -> list[str]:
        """Return what a model cannot read because of this encoder, one limit each."""
        return []

    def build(self, device: torch.device) -> TextEncoder:
        """Loads what is frozen onto the device; what is trained goes there with all that is."""
        raise NotImplementedError
