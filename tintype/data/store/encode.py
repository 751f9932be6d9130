"""What becomes of one picture on its way into a store: decoded, put upright, shrunk where that is asked, and hashed."""

from __future__ import annotations

import hashlib
import io
import struct
import zlib
from dataclasses import dataclass

from PIL import Image
from torch import Tensor

from tintype.data.fit import shrunk
from tintype.data.pictures import Encoded, decode
from tintype.data.store.doors import Item
from tintype.errors import UserError

_ORIENTATION = 0x0112
_OF_BROKEN_FILES = (
    ArithmeticError,
    AttributeError,
    EOFError,
    LookupError,
    OSError,
    RuntimeError,
    SyntaxError,
    TypeError,
    ValueError,
    struct.error,
    zlib.error,
)
"""What Pillow's readers raise besides what `decode` knows, when the bytes are not what they expect."""


@dataclass(frozen=True)
class Sizing:
    """`short_px`: shrink to this short side. `min_px`: refuse what is smaller. `quality`: of the JPEG of a picture that
    is changed; all others keep their bytes."""

    short_px: int | None = None
    min_px: int | None = None
    quality: int = 95


@dataclass(frozen=True)
class Picture:
    content: bytes
    width: int
    height: int
    sha256: str
    pixels: str
    """SHA-256 of the decoded pixels: two files of one picture have the same."""


@dataclass(frozen=True)
class Refused:
    reason: str


def prepare(item: Item, sizing: Sizing) -> Picture | Refused:
    if item.content is None:
        return Refused(item.problem)
    try:
        image_CHW = decode(Encoded(item.source, item.content))
        turned, moving = _about(item.content)
    except UserError as error:
        return Refused(str(error).removesuffix(". Mend or remove it; none is skipped"))
    except _OF_BROKEN_FILES as error:
        return Refused(f"{item.source} cannot be read as an image: {type(error).__name__}: {error}")
    if moving:
        return Refused("it is animated, or has several pages; take one picture out of it first")
    image_CHW, changed = _upright(image_CHW, turned), turned != 1
    short = min(image_CHW.shape[1:])
    if sizing.min_px is not None and short < sizing.min_px:
        return Refused(f"its short side has {short} px, fewer than {sizing.min_px}")
    if sizing.short_px is not None and short > sizing.short_px:
        image_CHW, changed = shrunk(image_CHW, sizing.short_px), True
    content = _jpeg(image_CHW, sizing.quality) if changed else item.content
    height, width = image_CHW.shape[1:]
    pixels = hashlib.sha256(f"{width}x{height}".encode())
    pixels.update(image_CHW.contiguous().numpy().data)
    return Picture(content, width, height, hashlib.sha256(content).hexdigest(), pixels.hexdigest())


def _upright(image_CHW: Tensor, orientation: int) -> Tensor:
    """A camera may store a picture as its sensor lay, and say in EXIF how it is to be turned."""
    if orientation >= 5:
        image_CHW = image_CHW.transpose(1, 2)
    axes = {2: [2], 3: [1, 2], 4: [1], 6: [2], 7: [1, 2], 8: [1]}.get(orientation, [])
    return image_CHW.flip(axes).contiguous() if axes or orientation >= 5 else image_CHW


def _about(content: bytes) -> tuple[int, bool]:
    """How EXIF says it is to be turned, and whether it moves or has several pages.

    A photograph with a preview or a map of depths behind it (MPO) is still one picture.
    """
    image = Image.open(io.BytesIO(content))
    turned = image.getexif().get(_ORIENTATION, 1)
    moving = image.format != "MPO" and bool(getattr(image, "is_animated", False))
    return (turned if isinstance(turned, int) and 1 <= turned <= 8 else 1), moving


def _jpeg(image_CHW: Tensor, quality: int) -> bytes:
    """With colours at full resolution: halved, as is usual, they cost a small picture more than all else does."""
    buffer = io.BytesIO()
    pixels = image_CHW.permute(1, 2, 0).contiguous().numpy()
    Image.fromarray(pixels).save(buffer, "JPEG", quality=quality, subsampling=0, optimize=True)
    return buffer.getvalue()
