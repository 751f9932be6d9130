"""Any set of pictures as it lies on a disk, in a fixed order: a folder, a tar, a Parquet file, a store, or samples.

Every picture counts. One that cannot be read is an error that names it, since a set without it is another set.
"""

from __future__ import annotations

import hashlib
import io
import tarfile
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from PIL import Image, UnidentifiedImageError
from torch import Tensor

from tintype.data.decoding.threads import decoding_pool, usual_threads
from tintype.data.store.layout import is_store, open_store
from tintype.errors import UserError

SUFFIXES = (".png", ".jpg", ".jpeg", ".jfif", ".webp", ".avif", ".bmp", ".ppm", ".tif", ".tiff", ".gif")
_MODES = ("1", "L", "P", "RGB", "RGBA", "LA", "PA", "CMYK", "YCbCr")
"""Kinds of pixels that have an exact meaning in eight bits."""
_MOST_PIXELS = 1 << 26
_AHEAD = 16
_TAR_BLOCK = 512


A = TypeVar("A")
B = TypeVar("B")


@dataclass(frozen=True)
class Encoded:
    """A picture as bytes. `name` is for messages; `stem` is its file's name without the ending, where it has one."""

    name: str
    content: bytes
    stem: str | None = None


@dataclass
class Pictures:
    """A set that can be gone through many times; `limit` keeps to the first so many."""

    path: Path
    encoded: Callable[[], Iterator[Encoded]]
    limit: int | None = None
    _fingerprint: tuple[str, int] | None = None

    def fingerprint(self, on_images: Callable[[int], None] = lambda images: None) -> tuple[str, int]:
        """Return the SHA-256 over the content of the images, in order, and how many there are. Read once."""
        if self._fingerprint is None:
            total, count = hashlib.sha256(), 0
            for one in islice(self.encoded(), self.limit):
                total.update(hashlib.sha256(one.content).digest())
                count += 1
                on_images(1)
            self._fingerprint = total.hexdigest(), count
        return self._fingerprint

    def __iter__(self) -> Iterator[Tensor]:
        """uint8 [3, H, W], decoded a little ahead by several threads."""
        return (image_CHW for _, image_CHW in self.named())

    def named(self) -> Iterator[tuple[Encoded, Tensor]]:
        return map_ahead(lambda one: (one, decode(one)), islice(self.encoded(), self.limit))


def open_pictures(path: Path, limit: int | None = None) -> Pictures:
    """A folder (looked through to its leaves, by name), a `.tar`, a `.parquet` file, a folder of such files, or a store
    (both its splits)."""
    if is_store(path):
        return Pictures(path, lambda: open_store(path).all_encoded(), limit)
    if path.is_dir():
        return Pictures(path, _folder_reader(path), limit)
    if not path.exists():
        raise UserError(f"{path} does not exist; give a folder of images, a .tar or a .parquet file")
    if path.suffix.lower() not in _SETS:
        raise UserError(f"{path}: unknown kind of picture set; give a folder of images, a .tar or a .parquet file")
    reader = _SETS[path.suffix.lower()]
    return Pictures(path, lambda: reader(path), limit)


def _folder_reader(path: Path) -> Callable[[], Iterator[Encoded]]:
    shown = [file for file in path.rglob("*") if not any(p.startswith(".") for p in file.relative_to(path).parts)]
    by_kind: dict[str, list[Path]] = {}
    for file in sorted(file for file in shown if file.is_file()):
        suffix = file.suffix.lower()
        if suffix in SUFFIXES or suffix in _SETS:
            by_kind.setdefault("pictures" if suffix in SUFFIXES else suffix, []).append(file)
    if not by_kind:
        raise UserError(f"{path} holds no pictures ({', '.join(SUFFIXES)}), no .tar and no .parquet file")
    if len(by_kind) > 1:
        raise UserError(f"{path} holds {' and '.join(by_kind)} files; give a folder with one kind, or one of the files")
    kind, files = next(iter(by_kind.items()))
    if kind == "pictures":
        return lambda: (Encoded(str(file), file.read_bytes(), file.stem) for file in files)
    return lambda: (one for file in files for one in _SETS[kind](file))


def _read_tar(path: Path) -> Iterator[Encoded]:
    """Members in the order of the file; nothing is unpacked to the disk."""
    refuse_cut(path)
    try:
        with tarfile.open(path, "r:") as tar:
            for member in tar:
                if member.isfile() and Path(member.name).suffix.lower() in SUFFIXES:
                    content = tar.extractfile(member)
                    assert content is not None
                    yield Encoded(f"{path}:{member.name}", content.read(), Path(member.name).stem)
            refuse_rest(path, tar)
    except tarfile.TarError as error:
        raise UserError(f"{path} cannot be read as a tar file: {error}") from None


def refuse_cut(path: Path) -> None:
    """A tar ends with a block of zeros; Python's reader takes one that was cut between members for a whole one."""
    with path.open("rb") as file:
        file.seek(0, io.SEEK_END)
        size = file.tell()
        file.seek(max(0, size - _TAR_BLOCK))
        if size % _TAR_BLOCK or any(file.read()):
            raise UserError(f"{path} cannot be read as a tar file: it is cut short, compressed, or no tar")


def refuse_rest(path: Path, tar: tarfile.TarFile) -> None:
    """Python's reader takes a damaged header for the end of the tar, and a tar that follows another for nothing."""
    with path.open("rb") as file:
        file.seek(tar.offset)
        while block := file.read(1 << 20):
            if any(block):
                raise UserError(
                    f"{path} cannot be read as a tar file: at byte {tar.offset:,}, where it ends or a header is damaged"
                    ", something follows. Make it anew; of tars that are written into one file, give a folder"
                )


def _read_parquet(path: Path) -> Iterator[Encoded]:
    """The column `image`: bytes, or a struct with `bytes`, as data sets on the hub have it."""
    from pyarrow import ArrowException, parquet

    try:
        file = parquet.ParquetFile(path)
        if "image" not in file.schema_arrow.names:
            names = ", ".join(file.schema_arrow.names)
            raise UserError(f"{path} has no column 'image'; its columns are {names}")
        row = 0
        for batch in file.iter_batches(batch_size=_AHEAD, columns=["image"]):
            for value in batch.column(0).to_pylist():
                yield Encoded(f"{path}, row {row}", _image_bytes(value, path, row))
                row += 1
    except ArrowException as error:
        raise UserError(f"{path} cannot be read as a Parquet file: {error}") from None


def _image_bytes(value: Any, path: Path, row: int) -> bytes:
    content = value.get("bytes") if isinstance(value, dict) else value
    if not isinstance(content, bytes):
        raise UserError(f"{path}, row {row}: the column 'image' holds no bytes of an image file")
    return content


def _read_shard(path: Path) -> Iterator[Encoded]:
    """A shard of an evaluation's samples: raw pixels, put back into a file format that keeps them exactly."""
    from tintype.evaluation.samples import read_shard

    for index, image_CHW in enumerate(read_shard(path)):
        buffer = io.BytesIO()
        Image.fromarray(image_CHW.permute(1, 2, 0).numpy()).save(buffer, "bmp")
        yield Encoded(f"{path}, image {index}", buffer.getvalue())


_SETS: dict[str, Callable[[Path], Iterator[Encoded]]] = {
    ".tar": _read_tar,
    ".parquet": _read_parquet,
    ".safetensors": _read_shard,
}


def decode(one: Encoded) -> Tensor:
    """uint8 [3, H, W] in RGB. Bounded before any pixel is decoded; refused where eight opaque bits cannot hold it."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            image = Image.open(io.BytesIO(one.content))
            if image.width * image.height > _MOST_PIXELS:
                raise UserError(f"{one.name} has {image.width} × {image.height} pixels; the most is {_MOST_PIXELS}")
            if image.mode not in _MODES:
                raise UserError(f"{one.name} has pixels of the kind {image.mode}; convert it to 8 bits a channel first")
            if image.has_transparency_data and min(image.convert("RGBA").getchannel("A").tobytes()) < 255:
                raise UserError(f"{one.name} is transparent in places; put it on a background first")
            pixels_HWC = np.asarray(image if image.mode == "RGB" else image.convert("RGB"))
    except (UnidentifiedImageError, OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        reason = "its format is not known" if isinstance(error, UnidentifiedImageError) else error
        raise UserError(
            f"{one.name} cannot be read as an image: {reason}. Mend or remove it; none is skipped"
        ) from None
    return torch.from_numpy(pixels_HWC.transpose(2, 0, 1).copy())  # numpy turns it in half of torch's time


def map_ahead(function: Callable[[A], B], items: Iterable[A]) -> Iterator[B]:
    """`map` in order, with a bounded number of items under way."""
    source = iter(items)
    with decoding_pool(usual_threads()) as pool:
        under_way = [pool.submit(function, item) for item in islice(source, _AHEAD)]
        while under_way:
            done = under_way.pop(0)
            for item in islice(source, 1):
                under_way.append(pool.submit(function, item))
            yield done.result()
