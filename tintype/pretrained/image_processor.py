"""Read the preprocessing that a checkpoint states in its preprocessor_config.json."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, model_validator

from tintype.errors import UserError
from tintype.pretrained.preprocess import Filter, Triple

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
_FILTERS: dict[int, Filter] = {2: "bilinear", 3: "bicubic"}
"""By Pillow's numbers."""


class ImageProcessor(BaseModel):
    """The keys that are used here, with the defaults of transformers. A step that is switched off is left out."""

    model_config = ConfigDict(strict=True, frozen=True)

    do_rescale: bool | None = None
    rescale_factor: float | None = None
    do_normalize: bool | None = None
    image_mean: Triple | None = None
    image_std: Triple | None = None
    resample: object = 3
    size: object = None
    """`336`, `{"shortest_edge": 336}` or `{"height": 336, "width": 336}`."""
    crop_size: object = None

    @model_validator(mode="after")
    def _has_statistics(self) -> ImageProcessor:
        if self.do_normalize is not False and (self.image_mean is None or self.image_std is None):
            raise ValueError("image_mean and image_std must have three numbers each")
        return self

    @property
    def normalisation(self) -> tuple[float, Triple, Triple]:
        """Return scale, mean and deviation of the input."""
        scale = 1.0 if self.do_rescale is False else self.rescale_factor or 1.0 / 255.0
        if self.do_normalize is False or self.image_mean is None or self.image_std is None:
            return scale, (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)
        return scale, self.image_mean, self.image_std

    def other_sides(self, size_px: int) -> list[object]:
        """Return the sides, other than `size_px`, that it resizes or crops to."""
        stated = [size for size in (self.size, self.crop_size) if size]
        sides = [side for size in stated for side in (size.values() if isinstance(size, dict) else [size])]
        return [side for side in sides if side != size_px]

    def resize_filter(self, words: str) -> Filter:
        """Return the filter; `words` names the checkpoint in an error."""
        if not isinstance(self.resample, int) or self.resample not in _FILTERS:
            raise UserError(f"{words}: its preprocessor has resample {self.resample}; known: 2 and 3")
        return _FILTERS[self.resample]
