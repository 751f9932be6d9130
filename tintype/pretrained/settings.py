"""Settings of frozen networks, such as the source of the weights, the pins of the weights, and the arithmetic."""

from __future__ import annotations

from typing import Annotated

import torch
from pydantic import Field, model_validator

from tintype.pretrained.frozen import Compute
from tintype.pretrained.hub import Checkpoint
from tintype.runtime.identity import Pin
from tintype.settings import LocalFiles, Part, PathText, Plain

Source = Annotated[PathText, Field(min_length=1, description="Repository on the hub, or a local folder")]
Revision = Annotated[str | None, Field(description="Branch, tag or commit of the repository; a commit never changes")]
Subfolder = Annotated[
    str, Field(description="Subfolder with the model, in the repository or in a local folder without a config.json")
]


_COPIED = frozenset({".safetensors", ".json", ".txt", ".model"})
"""Suffixes of checkpoint files that are copied: weights, configs and tokenizers, but never pickles."""


class PretrainedPart(Part):
    """Settings that frozen text encoders and autoencoders have in common."""

    weights: Source
    revision: Revision = None
    subfolder: Subfolder = ""
    sha256: Pin = Field(
        None, description="First digits of the network's identity hash; a network with another identity is refused"
    )
    compute: Compute = Field("fp32", description="Compute type of the network; tf32 and bf16 are faster on a GPU")

    @model_validator(mode="before")
    @classmethod
    def _unpinned_elsewhere(cls, given: object) -> object:
        """Do not pin the user's own weights. The default revision is a commit of the default repository only."""
        if not isinstance(given, dict) or "revision" in given:
            return given
        default = cls.model_fields["weights"].default
        return given if given.get("weights", default) == default else {**given, "revision": None}

    @property
    def checkpoint(self) -> Checkpoint:
        return Checkpoint(self.weights, self.revision, subfolder=self.subfolder)

    @property
    def checkpoints(self) -> tuple[Checkpoint, ...]:
        """Return all checkpoints that the part reads."""
        return (self.checkpoint,)

    def local_files(self) -> LocalFiles | None:
        found = {
            f"{one.subfolder}/{file.name}".lstrip("/"): file
            for one in self.checkpoints
            if one.folder is not None
            for file in sorted((one.folder / one.subfolder).iterdir())
            if file.is_file() and file.suffix in _COPIED
        }
        return LocalFiles("weights", found) if found else None

    def portable(self) -> Plain:
        """Keep the name of a hub repository, which is the same on all machines. Drop the path of a local folder."""
        named = {"weights", "revision", "subfolder"}
        kept = named if self.checkpoint.folder is None else set()
        return {
            key: value
            for key, value in super().portable().items()
            if key not in named | {"sha256"} or (key in kept and value)
        }

    @property
    def dtype(self) -> torch.dtype:
        return torch.bfloat16 if self.compute == "bf16" else torch.float32
