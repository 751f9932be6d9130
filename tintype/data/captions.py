"""Caption policies: which of an image's captions the model reads, and how often it reads none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from tintype.seams import CaptionPolicy, Draws, Record
from tintype.settings import CaptionsPart

NULL_CAPTION = ""


class ColumnSettings(CaptionsPart):
    """Always the same caption column."""

    kind: Literal["column"] = "column"
    column: str = "long"

    def build(self) -> Column:
        return Column(self.column)

    def columns(self) -> frozenset[str]:
        return frozenset({self.column})


@dataclass(frozen=True)
class Column:
    column: str

    def pick(self, captions: Mapping[str, str], u: float) -> str:
        return captions[self.column]


def captions_of(records: Sequence[Record], policy: CaptionPolicy, dropout: float, draws: Draws) -> list[str]:
    """The caption of each sample. Choice and dropout are drawn by sample position, which a host must know: a GPU's
    positions would make it wait."""
    choice, drop = draws.uniform("caption", (2,)).unbind(1)
    return [
        NULL_CAPTION if dropped < dropout else policy.pick(record.captions, chosen)
        for record, chosen, dropped in zip(records, choice.tolist(), drop.tolist(), strict=True)
    ]
