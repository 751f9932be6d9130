"""The settings of the embedded scenes as the data of a plan."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field, model_validator

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
