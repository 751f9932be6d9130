"""The settings of the embedded scenes as the data of a plan."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field, model_validator

from tintype.data.scenes.scene import COLOURS, HELD_OUT_PAIRS, SHAPES
from tintype.settings import DataPart


class ScenesSettings(DataPart):
    """The embedded scenes. `count` scenes make one epoch; the evaluation split never shares a held-out combination."""

    count_key: ClassVar[str] = "count"

    kind: Literal["scenes"] = "scenes"
    count: int = Field(8192, ge=1, description="Number of training images")
    style: Literal["render", "photo", "both"] = "render"
    min_objects: int = Field(1, ge=1, le=4)
    max_objects: int = Field(4, ge=1, le=4)
    seed: int = Field(0, ge=0, description="Which scenes are drawn; apart from the training seed")

    @model_validator(mode="after")
    def _range(self) -> ScenesSettings:
        if self.min_objects > self.max_objects:
            raise ValueError(f"min_objects ({self.min_objects}) is above max_objects ({self.max_objects})")
        return self

    @property
    def of_scenes(self) -> bool:
        return True

    def held_out(self, count: int) -> ScenesSettings:
        return self.model_copy(update={"count": count})

    def describe(self) -> str:
        return "tintype's embedded scenes, drawn and captioned by tintype"

    def describe_held_out(self) -> str:
        return "held-out scenes"

    def intended_use(self) -> str:
        return (
            "Study of training decisions: the scenes have captions that are exactly true, so that how a model follows "
            "a prompt can be measured. The images are of no other use."
        )

    def limits(self) -> list[str]:
        least, most = self.min_objects, self.max_objects
        number = f"{least} to {most} objects" if most > least else f"{most} object" + "s" * (most > 1)
        return [
            f"The scenes that it was trained on show {number} ({', '.join(SHAPES)}) in {len(COLOURS)} colours on a "
            "backdrop of two colours: they teach it no people, animals, writing, places or anything else.",
            f"{len(HELD_OUT_PAIRS)} pairs of colour and shape never occur in the training scenes; every held-out scene "
            "has one, so the scores on scenes are of combinations that are new to the model.",
        ]
