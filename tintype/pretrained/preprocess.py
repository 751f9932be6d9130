"""Preprocessing of images for a network's input. Every metric on the network's features depends on the preprocessing.

Libraries implement a resize differently, which can change an FID by several points (Parmar et al. 2022, arXiv
2104.11222). So a resize in this module states each choice explicitly. A resize is computed as two matrix products in
float64, one per axis, for one image at a time. The result is the same on any device and in any batch.

B: images. C: channels. H, W: rows, columns. O, I: output and input pixels along one axis. T: taps of a filter.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Literal, Protocol

import torch
from pydantic import BaseModel, ConfigDict, model_validator
from torch import Tensor

from tintype.errors import UserError

Fit = Literal["squash", "short-side", "crop-first"]
Filter = Literal["bilinear", "bicubic", "bicubic-0.75"]
Grid = Literal["centred", "tf1"]
Triple = tuple[float, float, float]
"""One number for each colour channel."""

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
_FILTERS: dict[int, Filter] = {2: "bilinear", 3: "bicubic"}
"""Names of filters, by Pillow's numbers."""
_BICUBIC_A: dict[Filter, float] = {"bicubic": -0.5, "bicubic-0.75": -0.75}
_GPU_NUMBERS = 1 << 27
_FIXED_POINT = 2.0**22
"""When Pillow resizes bytes, its weights are multiples of 2^-22. In float64, their products with bytes are exact."""


@dataclass(frozen=True)
class Resampling:
    """Definition of a resize.

    When an image is shrunk, `antialias` widens the filter and drops taps beyond the edge, as Pillow always does.
    Without `antialias`, the filter is not widened and the edge pixel is repeated, as in torch's `interpolate`. `grid`
    "tf1" is TensorFlow 1's corner rule, source = target * in / out, without the half pixel. `clip` clamps overshoot to
    0 and 255.

    `quantise` rounds to bytes after each pass, columns first. For images of bytes, the result then equals Pillow's
    result bit for bit, for versions up to 12. Pillow 13 resizes the cheaper axis first, which changes single pixels of
    a portrait image by up to 20 levels.
    """

    filter: Filter = "bicubic"
    antialias: bool = True
    grid: Grid = "centred"
    quantise: bool = False
    clip: bool = True

    def __post_init__(self) -> None:
        if self.antialias and self.grid == "tf1":
            raise ValueError("TensorFlow 1's resizing has no antialiasing; set antialias to False")

    @property
    def definition(self) -> str:
        kernel = self.filter if self.filter == "bilinear" else f"bicubic (a = {_BICUBIC_A[self.filter]})"
        words = [kernel, "antialiased" if self.antialias else "not antialiased"]
        words += ["TensorFlow 1's grid"] if self.grid == "tf1" else []
        words += ["rounded to bytes after each axis, columns first"] if self.quantise else ["in float"]
        words += ["clipped to [0, 255]"] if self.clip and not self.quantise and self.filter != "bilinear" else []
        return ", ".join(words)


class Preparation(Protocol):
    """Conversion from uint8 images to a network's float32 input."""

    @property
    def definition(self) -> str: ...
    @property
    def hash_input(self) -> str:
        """Return all settings that determine the result, as one line of text in a stable format."""

    def __call__(self, image_BCHW: Tensor) -> Tensor: ...


@dataclass(frozen=True)
class Preprocess:
    """Convert uint8 images of one size to a float32 input by a resize, then by (x * scale - mean) / std.

    If `size_px` is height and width, an image is stretched to this size. Networks with a given patch grid need such a
    size. If `size_px` is one number, it is the side of a square, and `fit` says how images become square. "squash"
    ignores the proportions, "short-side" resizes the short side and center-crops, and "crop-first" center-crops and
    resizes.
    """

    size_px: int | tuple[int, int]
    resampling: Resampling
    fit: Fit = "squash"
    scale: float = 1.0 / 255.0
    mean: Triple = (0.0, 0.0, 0.0)
    std: Triple = (1.0, 1.0, 1.0)

    @property
    def sides(self) -> tuple[int, int]:
        """Return height and width of the input."""
        return self.size_px if isinstance(self.size_px, tuple) else (self.size_px, self.size_px)

    @property
    def definition(self) -> str:
        height, width = self.sides
        ways = {
            "squash": f"squashed to {height} px squared",
            "short-side": f"short side to {height} px, then the middle cut out",
            "crop-first": f"the middle square cut out, then resized to {height} px",
        }
        way = f"stretched to {height} × {width} px" if isinstance(self.size_px, tuple) else ways[self.fit]
        numbers = f"(x * {self.scale:.6g} - {_short(self.mean)}) / {_short(self.std)}"
        return f"uint8, {way}, {self.resampling.definition}, {numbers}"

    @property
    def hash_input(self) -> str:
        """Return all settings that determine the result, as one line of text in a stable format."""
        content = asdict(self)
        if isinstance(self.size_px, tuple):
            del content["size_px"], content["fit"]
            content["height_px"], content["width_px"] = self.size_px
        return json.dumps(content, sort_keys=True)

    def __call__(self, image_BCHW: Tensor) -> Tensor:
        """Prepare images; on a CPU one at a time, to use its caches well, and on a GPU many at once."""
        check_bytes(image_BCHW)
        largest = max(image_BCHW[0].numel(), 3 * math.prod(self.sides))
        at_once = 1 if image_BCHW.device.type == "cpu" else max(1, _GPU_NUMBERS // largest)
        return torch.cat([self._some(some_BCHW) for some_BCHW in image_BCHW.split(at_once)])

    def _some(self, image_BCHW: Tensor) -> Tensor:
        short = min(image_BCHW.shape[2:])
        if self.fit == "crop-first":
            image_BCHW = _middle(image_BCHW, short)
        (height, width), crop_px = self.sides, None
        if self.fit == "short-side":  # the long side is rounded down, as in transformers and torchvision
            crop_px = height
            height, width = (crop_px * side // short for side in image_BCHW.shape[2:])
        resized_BCHW = resize(image_BCHW, height, width, self.resampling, crop_px)
        mean_C11, std_C11 = (_per_channel(numbers, image_BCHW.device) for numbers in (self.mean, self.std))
        return ((resized_BCHW * self.scale - mean_C11) / std_C11).to(torch.float32)


def check_bytes(image_BCHW: Tensor) -> None:
    """Refuse all images except uint8 [B, 3, H, W]. The range of a float or int64 image is unknown.

    PRX's evaluation multiplied uint8 images by 255 in uint8, and so scored their negatives without an error.
    """
    if image_BCHW.dtype != torch.uint8:
        raise TypeError(
            f"images must be uint8 with values 0 to 255, not {image_BCHW.dtype}, since the value range of other "
            f"types is unknown"
        )
    if image_BCHW.ndim != 4 or image_BCHW.shape[1] != 3 or 0 in image_BCHW.shape[2:]:
        raise ValueError(f"images must have the shape [B, 3, H, W], not {list(image_BCHW.shape)}")


def resize(image_BCHW: Tensor, height: int, width: int, how: Resampling, crop_px: int | None = None) -> Tensor:
    """Resize bytes to float64 images of height × width, columns first; `crop_px` keeps the middle of each axis."""
    columns_OI = _axis_weights(image_BCHW.shape[-1], width, how, crop_px, image_BCHW.device)
    rows_OI = _axis_weights(image_BCHW.shape[-2], height, how, crop_px, image_BCHW.device)
    wide_BCHO = _settle(image_BCHW.to(torch.float64) @ columns_OI.T, how, last=False)
    return _settle(rows_OI @ wide_BCHO, how, last=True)


def _settle(x: Tensor, how: Resampling, last: bool) -> Tensor:
    if how.quantise:
        return (x + 0.5).floor_().clamp_(0.0, 255.0)
    return x.clamp_(0.0, 255.0) if how.clip and last else x


def axis_weights(in_px: int, out_px: int, how: Resampling, crop_px: int | None, device: torch.device) -> Tensor:
    """Return the resize matrix [O, I] of one axis. Each row sums to one."""
    weights_OI = _widened(in_px, out_px, how.filter) if how.antialias else _pointed(in_px, out_px, how)
    if how.quantise:
        scaled_OI = weights_OI * _FIXED_POINT
        weights_OI = torch.copysign((scaled_OI.abs() + 0.5).floor(), scaled_OI) / _FIXED_POINT
    if crop_px is not None:
        first = (out_px - crop_px) // 2
        weights_OI = weights_OI[first : first + crop_px]
    return weights_OI.to(device)


@lru_cache(maxsize=64)
def _per_channel(values: tuple[float, ...], device: torch.device) -> Tensor:
    return torch.tensor(values, dtype=torch.float64, device=device).view(-1, 1, 1)


def _widened(in_px: int, out_px: int, name: Filter) -> Tensor:
    """Return Pillow's weights. The filter covers at least one output pixel, and rows are renormalised at the edges."""
    ratio = in_px / out_px
    centre_O1 = (torch.arange(out_px, dtype=torch.float64)[:, None] + 0.5) * ratio
    reach = math.ceil(2.0 * max(ratio, 1.0))
    index_OT = centre_O1.floor().to(torch.int64) + torch.arange(
        -reach - 1, reach + 1
    )  # all other pixels have no weight
    distance_OT = index_OT.to(torch.float64) + 0.5 - centre_O1
    tap_weights_OT = _kernel(distance_OT * (1.0 / max(ratio, 1.0)), name)
    tap_weights_OT.masked_fill_((index_OT < 0) | (index_OT >= in_px), 0.0)
    weights_OI = torch.zeros(out_px, in_px, dtype=torch.float64)
    weights_OI.scatter_add_(1, index_OT.clamp_(0, in_px - 1), tap_weights_OT)
    return weights_OI / weights_OI.sum(dim=1, keepdim=True)


def _pointed(in_px: int, out_px: int, how: Resampling) -> Tensor:
    """Return weights of the two or four pixels nearest to the source position; edge pixels are repeated."""
    out_O = torch.arange(out_px, dtype=torch.float64)
    source_O = (out_O + 0.5) * (in_px / out_px) - 0.5 if how.grid == "centred" else out_O * (in_px / out_px)
    reach = 1 if how.filter == "bilinear" else 2
    taps_T = torch.arange(1 - reach, reach + 1)
    index_OT = source_O.floor().to(torch.int64)[:, None] + taps_T
    tap_weights_OT = _kernel(index_OT - source_O[:, None], how.filter)
    weights_OI = torch.zeros(out_px, in_px, dtype=torch.float64)
    return weights_OI.scatter_add_(1, index_OT.clamp(0, in_px - 1), tap_weights_OT)


def _kernel(x: Tensor, name: Filter) -> Tensor:
    """Evaluate the triangle filter, or Keys' cubic with its free parameter a (Keys 1981, eq. 4)."""
    x = x.abs()
    if name == "bilinear":
        return (1.0 - x).clamp(min=0.0)
    a = _BICUBIC_A[name]
    near = ((a + 2.0) * x - (a + 3.0)) * x * x + 1.0
    far = (((x - 5.0) * x + 8.0) * x - 4.0) * a
    return torch.where(x < 1.0, near, torch.where(x < 2.0, far, 0.0))


def _middle(image_BCHW: Tensor, side: int) -> Tensor:
    top, left = ((length - side) // 2 for length in image_BCHW.shape[2:])
    return image_BCHW[:, :, top : top + side, left : left + side]


_axis_weights = lru_cache(maxsize=256)(axis_weights)


def _short(values: tuple[float, ...]) -> str:
    """Return one number if all channels have the same number, else a list."""
    texts = [f"{value:.6g}" for value in values]
    return texts[0] if len(set(texts)) == 1 else "[" + ", ".join(texts) + "]"


class ImageProcessor(BaseModel):
    """The used keys of preprocessor_config.json, with the defaults of transformers; disabled steps are skipped."""

    model_config = ConfigDict(strict=True, frozen=True)

    do_rescale: bool | None = None
    rescale_factor: float | None = None
    do_normalize: bool | None = None
    image_mean: Triple | None = None
    image_std: Triple | None = None
    resample: object = 3
    size: object = None
    """The size in one of the forms `336`, `{"shortest_edge": 336}` or `{"height": 336, "width": 336}`."""
    crop_size: object = None

    @model_validator(mode="after")
    def _has_statistics(self) -> ImageProcessor:
        if self.do_normalize is not False and (self.image_mean is None or self.image_std is None):
            raise ValueError("image_mean and image_std must have three numbers each")
        return self

    @property
    def normalisation(self) -> tuple[float, Triple, Triple]:
        """Return scale, mean and standard deviation of the input."""
        scale = 1.0 if self.do_rescale is False else self.rescale_factor or 1.0 / 255.0
        if self.do_normalize is False or self.image_mean is None or self.image_std is None:
            return scale, (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)
        return scale, self.image_mean, self.image_std

    def other_sides(self, size_px: int) -> list[object]:
        """Return the sides, other than `size_px`, to which the processor resizes or crops."""
        stated = [size for size in (self.size, self.crop_size) if size]
        sides = [side for size in stated for side in (size.values() if isinstance(size, dict) else [size])]
        return [side for side in sides if side != size_px]

    def resize_filter(self, words: str) -> Filter:
        """Return the resize filter. Error messages name the checkpoint by `words`."""
        if not isinstance(self.resample, int) or self.resample not in _FILTERS:
            raise UserError(
                f"{words}: the preprocessor config has resample={self.resample}, which is not supported",
                "valid: 2 (bilinear) and 3 (bicubic)",
            )
        return _FILTERS[self.resample]
