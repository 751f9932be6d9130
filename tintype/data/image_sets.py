"""Ordered sets of images on disk. A set is a folder, a tar, a Parquet file, a store, or samples.

An image that cannot be read raises an error that names the image. Skipping it would change the set and its scores.
"""

from __future__ import annotations

import hashlib
import io
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from tintype.data import tar_file
from tintype.data.decoding.threads import MOST_PIXELS_AT_ONCE, decoding_pool, usual_threads
from tintype.data.folders import files_in
from tintype.data.image_file import LIMITS, BadImageError, Encoded, open_image, pixels_stated, read_file, too_large
from tintype.data.parquet_file import TooLarge, open_bounded, parquet_rows
from tintype.data.sample_shards import read_shard
from tintype.data.store.layout import is_store, open_store
from tintype.errors import UserError

SUFFIXES = (".png", ".jpg", ".jpeg", ".jfif", ".webp", ".avif", ".bmp", ".ppm", ".tif", ".tiff", ".gif")
SHEET = "tintype-contact-sheet"
"""Metadata key that marks a PNG as a contact sheet, which repeats the images in its folder."""
_MODES = ("1", "L", "P", "RGB", "RGBA", "LA", "PA", "CMYK", "YCbCr")
"""Pillow modes that convert exactly to eight bits per channel."""
_PREFETCHED = 16
_STRIP_PIXELS = 1 << 22

A = TypeVar("A")
B = TypeVar("B")


@dataclass
class Images:
    """A set of images that can be iterated several times."""

    path: Path
    encoded: Callable[[], Iterator[Encoded]]
    left_out: tuple[str, ...] = ()
    """Names of contact sheets that are skipped, since they repeat other images of the set."""
    _fingerprint: tuple[str, int] | None = None

    def fingerprint(self, on_images: Callable[[int], None] = lambda images: None) -> tuple[str, int]:
        """Return the cached SHA-256 of the images' content in order, and the number of images."""
        if self._fingerprint is None:
            self._fingerprint = fingerprint(self.encoded(), on_images)
        return self._fingerprint

    def __iter__(self) -> Iterator[Tensor]:
        """Yield images as uint8 [3, H, W]. Several threads prefetch them."""
        return (image_CHW for _, image_CHW in self.named())

    def named(self) -> Iterator[tuple[Encoded, Tensor]]:
        return map_prefetched(lambda one: (one, decode(one)), self.encoded(), lambda one: pixels_stated(one.content))


def fingerprint(encoded: Iterable[Encoded], on_images: Callable[[int], None] = lambda images: None) -> tuple[str, int]:
    """Return the SHA-256 of the images' content in order, and the number of images."""
    total, count = hashlib.sha256(), 0
    for one in encoded:
        total.update(hashlib.sha256(one.content).digest())
        count += 1
        on_images(1)
    return total.hexdigest(), count


def open_images(path: Path, limit: int | None = None, follow_links: bool = False) -> Images:
    """Open a folder of images, a `.tar`, a `.parquet` file, a folder of such files, or a store (both splits).

    A folder's files are read at any depth, sorted by name. A link that leads out of the folder is refused, unless
    `follow_links` is set. With `limit`, only the first images are read.
    """
    sheets: tuple[str, ...] = ()
    if is_store(path):
        read: Callable[[], Iterator[Encoded]] = open_store(path).all_encoded
    elif path.is_dir():
        read, sheets = _folder_reader(path, follow_links)
    elif not path.exists():
        raise UserError(f"{path} does not exist", "give a folder of images, a .tar or a .parquet file")
    elif path.suffix.lower() not in _SETS:
        raise UserError(
            f"{path}: the path is not a set of images", "give a folder of images, a .tar or a .parquet file"
        )
    else:
        read = partial(_SETS[path.suffix.lower()], path)
    return Images(path, lambda: islice(read(), limit), sheets)


def _folder_reader(path: Path, follow_links: bool) -> tuple[Callable[[], Iterator[Encoded]], tuple[str, ...]]:
    by_kind: dict[str, list[Path]] = {}
    sheets = []
    for file in files_in(path, follow_links=follow_links):
        suffix = file.suffix.lower()
        if file.name.startswith("contact-sheet") and _is_sheet(file):
            sheets.append(str(file.relative_to(path)))
        elif suffix in SUFFIXES or suffix in _SETS:
            by_kind.setdefault("images" if suffix in SUFFIXES else suffix, []).append(file)
    if not by_kind:
        raise UserError(f"{path} contains no image files ({', '.join(SUFFIXES)}), .tar files or .parquet files")
    if len(by_kind) > 1:
        raise UserError(
            f"{path} contains {' and '.join(by_kind)} files, but only one kind can be read",
            "give a folder with one kind of files, or one of the files",
        )
    kind, files = next(iter(by_kind.items()))
    if kind == "images":
        return lambda: (Encoded(str(file), read_file(file), file.stem) for file in files), tuple(sheets)
    return lambda: (one for file in files for one in _SETS[kind](file)), tuple(sheets)


def _is_sheet(file: Path) -> bool:
    try:
        with open_image(read_file(file), file.name) as image:
            return SHEET in image.info
    except BadImageError:
        return False  # reading the image later raises an error with its name


def _read_tar(path: Path) -> Iterator[Encoded]:
    for member in tar_file.members(path):
        name, file = f"{path}:{member.name}", Path(member.name)
        if file.suffix.lower() not in SUFFIXES:
            continue
        if not tar_file.is_plain(member):
            raise UserError(f"{name} is a link, or is not a regular file", "put the image file itself into the folder")
        if member.size > LIMITS.bytes:
            raise BadImageError(too_large(name, member.size, LIMITS.bytes))
        yield Encoded(name, tar_file.content(path, member.offset_data, member.size), file.stem)


def _read_parquet(path: Path) -> Iterator[Encoded]:
    """Yield the column `image`, whose values are bytes, or structs with `bytes` as in Hugging Face data sets."""
    names = open_bounded(path).schema_arrow.names
    if "image" not in names:
        raise UserError(f"{path} has no column 'image'; its columns are {', '.join(names)}")
    for row, values in parquet_rows(path, ["image"], LIMITS.bytes):
        found, name = values["image"], f"{path}, row {row}"
        if isinstance(found, TooLarge):
            raise BadImageError(too_large(name, found.bytes, found.most))
        content = found.get("bytes") if isinstance(found, dict) else found
        if not isinstance(content, bytes):
            raise UserError(f"{name}: the column 'image' does not contain the bytes of an image file")
        yield Encoded(name, content)


def _read_shard(path: Path) -> Iterator[Encoded]:
    """Yield the images of an evaluation's shard as BMP files, which store the exact pixels."""
    for index, image_CHW in enumerate(read_shard(path)):
        yield Encoded(f"{path}, image {index}", encode(image_CHW, "BMP"))


_SETS: dict[str, Callable[[Path], Iterator[Encoded]]] = {
    ".tar": _read_tar,
    ".parquet": _read_parquet,
    ".safetensors": _read_shard,
}


def decode(one: Encoded) -> Tensor:
    """Decode an image to uint8 [3, H, W] in RGB. Size and format are checked before any pixel is decoded."""
    try:
        with open_image(one.content, one.name) as image:
            return pixels_of(image, one.name)
    except BadImageError as error:
        problem, fix = error.parts
        raise BadImageError(problem, f"{fix or 'fix it'}, or remove the image; tintype never skips an image") from None


def encode(image_CHW: Tensor, form: str, **options: object) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(image_CHW.permute(1, 2, 0).contiguous().numpy()).save(buffer, form, **options)
    return buffer.getvalue()


def pixels_of(image: Image.Image, name: str) -> Tensor:
    """Return uint8 [3, H, W] in RGB. Raise if eight opaque bits per channel cannot represent the image."""
    if image.mode not in _MODES:
        raise BadImageError(
            f"{name} has pixels in the mode {image.mode}", "convert the image to 8 bits per channel first"
        )
    if image.has_transparency_data and min(image.convert("RGBA").getchannel("A").tobytes()) < 255:
        raise BadImageError(f"{name} has transparent pixels", "put the image on an opaque background first")
    return _channels_first(image if image.mode == "RGB" else image.convert("RGB"))


def _channels_first(image: Image.Image) -> Tensor:
    """Copy the pixels to channels first. A large image is copied in strips, since Pillow makes two copies of pixels."""
    width, height = image.size
    strip = max(1, _STRIP_PIXELS // width)
    if height <= strip:
        return torch.from_numpy(np.asarray(image).transpose(2, 0, 1).copy())  # numpy takes half of torch's time
    pixels_CHW = np.empty((3, height, width), np.uint8)
    for top in range(0, height, strip):
        bottom = min(top + strip, height)
        pixels_CHW[:, top:bottom] = np.asarray(image.crop((0, top, width, bottom))).transpose(2, 0, 1)
    return torch.from_numpy(pixels_CHW)


def map_prefetched(
    function: Callable[[A], B],
    items: Iterable[A],
    pixels: Callable[[A], int] = lambda item: 0,
    most_pixels: int = MOST_PIXELS_AT_ONCE,
) -> Iterator[B]:
    """Map a function over items in order, and prefetch a few results in threads.

    `pixels` returns the number of pixels that an item decodes. An item's pixels count until its result is taken. An
    item that would raise the total above `most_pixels` starts only after all other items are taken.
    """
    with decoding_pool(usual_threads()) as pool:
        begun: deque[tuple[Future[B], int]] = deque()
        for item in items:
            size = pixels(item)
            while begun and (len(begun) == _PREFETCHED or size + sum(other for _, other in begun) > most_pixels):
                yield begun.popleft()[0].result()
            begun.append((pool.submit(function, item), size))
        while begun:
            yield begun.popleft()[0].result()
