"""Prepare one image for a store: decode it, turn it upright, shrink it if requested, and hash it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from PIL import Image
from torch import Tensor

from tintype.data.fit import shrunk
from tintype.data.image_file import LIMITS, BadImageError, Limits, open_image
from tintype.data.image_sets import encode, pixels_of
from tintype.data.importers.importer import Item
from tintype.wording import option, rendered

_ORIENTATION = 0x0112


@dataclass(frozen=True)
class Sizing:
    """How an import resizes images. An unchanged image keeps its bytes.

    `short_px`: shrink to this short side. `min_px`: refuse images with a smaller short side. `quality`: JPEG quality of
    changed images.
    """

    short_px: int | None = None
    min_px: int | None = None
    quality: int = 95


@dataclass(frozen=True)
class Prepared:
    image: bytes
    width: int
    height: int
    sha256: str
    pixels: str
    """SHA-256 of the decoded pixels: equal for two files of the same image."""


@dataclass(frozen=True)
class Refused:
    reason: str
    bad: bool = True
    """False if the image is intact, but the import's options leave out such images."""


def prepare(item: Item, sizing: Sizing, limits: Limits = LIMITS) -> Prepared | Refused:
    if item.content is None:
        return Refused(item.problem)
    try:
        with open_image(item.content, item.source, limits) as image:
            if _is_animated(image):
                return Refused("the image is animated or has several pages; extract one image first")
            image_CHW, turned = pixels_of(image, item.source), _orientation(image)
    except BadImageError as error:
        return Refused(str(error))
    image_CHW, changed = _upright(image_CHW, turned), turned != 1
    short = min(image_CHW.shape[1:])
    if sizing.min_px is not None and short < sizing.min_px:
        return Refused(f"the image's short side has {short} px, fewer than {sizing.min_px}", bad=False)
    if sizing.short_px is not None and short > sizing.short_px:
        image_CHW, changed = shrunk(image_CHW, sizing.short_px), True
    content = item.content
    if changed:  # colours at full resolution: the usual halving would harm a small image more than JPEG itself does
        content = encode(image_CHW, "JPEG", quality=sizing.quality, subsampling=0, optimize=True)
    height, width = image_CHW.shape[1:]
    if width * height > LIMITS.pixels or len(content) > LIMITS.bytes:
        found = f"the image has {width} × {height} pixels in {len(content):,} bytes"
        most = f"an image of a store has at most {LIMITS.pixels:,} pixels and {LIMITS.bytes:,} bytes"
        return Refused(rendered(f"{found}; {most}: shrink it with {option('short-px')}"))
    pixels = hashlib.sha256(f"{width}x{height}".encode())
    pixels.update(image_CHW.contiguous().numpy().data)
    return Prepared(content, width, height, hashlib.sha256(content).hexdigest(), pixels.hexdigest())


def _upright(image_CHW: Tensor, orientation: int) -> Tensor:
    if orientation >= 5:
        image_CHW = image_CHW.transpose(1, 2)
    axes = {2: [2], 3: [1, 2], 4: [1], 6: [2], 7: [1, 2], 8: [1]}.get(orientation, [])
    return image_CHW.flip(axes).contiguous() if axes or orientation >= 5 else image_CHW


def _orientation(image: Image.Image) -> int:
    """Return the EXIF orientation; 1, upright, if it is missing or invalid."""
    turned = image.getexif().get(_ORIENTATION, 1)
    return turned if isinstance(turned, int) and 1 <= turned <= 8 else 1


def _is_animated(image: Image.Image) -> bool:
    """Return whether the image has several frames or pages. A photograph with a preview (MPO) is one image."""
    return image.format != "MPO" and bool(getattr(image, "is_animated", False))
