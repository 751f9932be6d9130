"""Open image files. No other module in the package calls Pillow's opener.

Pillow reads about forty formats. For EPS files, Pillow starts Ghostscript, whatever the suffix of the file. So only
formats with a plain decoder are accepted. The size in a file's header is checked before any pixel is decoded.
"""

from __future__ import annotations

import io
import os
import struct
import warnings
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from PIL import Image, UnidentifiedImageError

from tintype.errors import UserError

FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "AVIF")
"""Accepted formats. JPEG includes MPO, a JPEG photograph followed by a preview."""
NAMES = "JPEG, PNG, WebP, GIF, BMP, TIFF or AVIF"
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
    Image.DecompressionBombError,
    Image.DecompressionBombWarning,
)

# `open_image` has a stricter limit, and says which image exceeds it.
warnings.filterwarnings("ignore", category=Image.DecompressionBombWarning)


@dataclass(frozen=True)
class Limits:
    """Maximum bytes and pixels of one image. Every image in a store is within the default limits."""

    bytes: int = 64 << 20
    pixels: int = 1 << 26


LIMITS = Limits()


@dataclass(frozen=True)
class Encoded:
    """An image as the bytes of its file. Messages show `name`. `stem` is the file name without suffix, if known."""

    name: str
    content: bytes
    stem: str | None = None


class BadImageError(UserError):
    """The image is damaged, too large or of an unsupported format. The message names the image."""


@contextmanager
def open_image(content: bytes, name: str, limits: Limits = LIMITS) -> Iterator[Image.Image]:
    """Yield the opened image, whose header has been read.

    Raise `BadImageError`, also if decoding fails within the `with` block.
    """
    if len(content) > limits.bytes:
        raise BadImageError(too_large(name, len(content), limits.bytes))
    try:
        with Image.open(io.BytesIO(content), formats=_formats()) as image:
            if image.width * image.height > limits.pixels:
                raise BadImageError(
                    f"{name} has {image.width} × {image.height} pixels; the limit is {limits.pixels}",
                    "shrink the image first",
                )
            yield image
    except UnidentifiedImageError:
        raise BadImageError(f"{name} cannot be read as an image: it is not {NAMES}") from None
    except _OF_BROKEN_FILES as error:
        raise BadImageError(f"{name} cannot be read as an image: {_reason(error)}") from None


def pixels_stated(content: bytes) -> int:
    """Return the header's number of pixels; 0 if the header is unreadable or the number exceeds Pillow's own limit."""
    try:
        with Image.open(io.BytesIO(content), formats=_formats()) as image:
            return image.width * image.height
    except _OF_BROKEN_FILES:
        return 0


def read_file(path: Path, most: int = LIMITS.bytes) -> bytes:
    """Return the content of a file. Raise `BadImageError` before reading if the file has more than `most` bytes."""
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        content = file.read(most + 1) if size <= most else b""
    if max(size, len(content)) > most:
        raise BadImageError(too_large(path.name, max(size, len(content)), most))
    return content


def too_large(name: str, size: int, most: int) -> str:
    return f"{name} has {size:,} bytes; the limit is {most:,}"


@cache
def _formats() -> tuple[str, ...]:
    """Return the accepted formats that this build of Pillow supports. Some builds of Pillow lack AVIF."""
    Image.init()
    return tuple(one for one in FORMATS if one in Image.OPEN)


def _reason(error: Exception) -> str:
    known = isinstance(error, OSError | SyntaxError | ValueError | Image.DecompressionBombError)
    return str(error) if known and str(error) else f"{type(error).__name__}: {error}"
