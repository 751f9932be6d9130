"""Looks of a store's images, in 208 bytes each: a perceptual hash, a few colours, pixel mode and file format.

Looks are cached by the store's identity. So a stopped inspection resumes, and a second inspection decodes no image.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from tintype.data.image_file import BadImageError, Encoded, open_image
from tintype.data.image_sets import map_prefetched
from tintype.data.store.layout import Store
from tintype.errors import StoppedError
from tintype.runtime.cache import cache_folder
from tintype.runtime.rows import Content, DiskRows
from tintype.wording import again, option

HASH_BITS = 64
_SIDE_PX, _COLOUR_PX = 32, 8
_FLAT = 4.0
"""Smaller amplitudes count as zero, since JPEG compression causes such amplitudes. Grey values are 0 to 255."""
_COLOURS = 3 * _COLOUR_PX**2
_MODE, _FORMAT, _ROW_BYTES = 8 + _COLOURS, 9 + _COLOURS, 16 + _COLOURS
_WRITTEN_TOGETHER = 256
MODES = ("other", "RGB", "L", "P", "CMYK", "RGBA", "LA", "1", "PA", "YCbCr")
FORMATS = ("other", "JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "AVIF", "MPO", "PPM")
_VERSION = b"looks-02"


@dataclass(frozen=True)
class Looks:
    """The looks of each row of a store; only requested rows are filled."""

    hash: NDArray[np.uint64]
    """Perceptual hashes [N]."""
    colours: NDArray[np.uint8]
    """The image at 8 × 8 pixels in RGB: [N, 192]."""
    mode: NDArray[np.uint8]
    """Pixel mode of each image [N], an index into `MODES`."""
    format: NDArray[np.uint8]
    """File format of each image [N], an index into `FORMATS`."""


def look_at(
    store: Store,
    rows: NDArray[np.int64],
    stopped: Callable[[], bool] = lambda: False,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> Looks:
    """Return the looks of rows. Finished looks are cached, even if the call is stopped."""
    stamp = _VERSION + bytes.fromhex(store.identity)
    otherwise = f"inspect a part: {option('where')}"
    content = Content("looks of images", (len(store), _ROW_BYTES), torch.uint8, otherwise, stamp)
    kept = DiskRows(cache_folder() / "looks" / f"{store.identity}.rows", content)
    id_N = torch.from_numpy(rows)
    missing = id_N[~kept.has(id_N)].tolist()
    done = len(rows) - len(missing)
    on_progress(done, len(rows))
    new: list[NDArray[np.uint8]] = []
    for at, one in enumerate(map_prefetched(lambda row: look(store.encoded(row)), missing, store.pixels), 1):
        new.append(one)
        on_progress(done + at, len(rows))
        stop = stopped() and at < len(missing)
        if len(new) == _WRITTEN_TOGETHER or at == len(missing) or stop:
            kept.write(torch.tensor(missing[at - len(new) : at]), torch.from_numpy(np.stack(new)))
            new = []
        if stop:
            raise StoppedError("the images read so far are kept", f"{again()} to resume")
    row_NK = kept.read(torch.arange(len(store))).numpy()
    hashes = np.ascontiguousarray(row_NK[:, :8]).view("<u8")[:, 0].astype(np.uint64)
    return Looks(hashes, row_NK[:, 8:_MODE], row_NK[:, _MODE], row_NK[:, _FORMAT])


def look(one: Encoded) -> NDArray[np.uint8]:
    """Return the look of an image. A JPEG is decoded at a reduced size, which is fast."""
    try:
        with open_image(one.content, one.name) as image:
            mode, form = image.mode, image.format or ""
            image.draft("RGB", (2 * _SIDE_PX, 2 * _SIDE_PX))
            small = image.convert("RGB").resize((_SIDE_PX, _SIDE_PX), Image.Resampling.BOX)
    except BadImageError as error:
        raise BadImageError(error.problem, "import the store again") from None
    row = np.zeros(_ROW_BYTES, dtype=np.uint8)
    row[:8] = np.frombuffer(perceptual_hash(np.asarray(small.convert("L"))).to_bytes(8, "little"), dtype=np.uint8)
    row[8:_MODE] = np.asarray(small.reduce(_SIDE_PX // _COLOUR_PX)).reshape(-1)
    row[_MODE] = MODES.index(mode) if mode in MODES else 0
    row[_FORMAT] = FORMATS.index(form) if form in FORMATS else 0
    return row


def perceptual_hash(grey_HW: NDArray[np.uint8]) -> int:
    """Return 64 bits: whether each of the 64 lowest DCT frequencies without the mean is above their median."""
    basis, lowest = _cosines(), _lowest_frequencies()
    amplitude = (basis @ grey_HW.astype(np.float64) @ basis.T)[lowest]
    amplitude[np.abs(amplitude) < _FLAT] = 0
    middle = np.sort(amplitude)[HASH_BITS // 2 - 1 : HASH_BITS // 2 + 1]
    above = amplitude > middle.sum() / 2  # np.median takes ten times as long for 64 values
    return int.from_bytes(np.packbits(above, bitorder="little").tobytes(), "little")


@cache
def _cosines() -> NDArray[np.float64]:
    """Return the orthonormal matrix of the DCT-II."""
    frequency, place = np.mgrid[:_SIDE_PX, :_SIDE_PX]
    basis = np.cos(np.pi * frequency * (2 * place + 1) / (2 * _SIDE_PX)) * np.sqrt(2 / _SIDE_PX)
    basis[0] /= np.sqrt(2)
    return np.asarray(basis, dtype=np.float64)


@cache
def _lowest_frequencies() -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the indices of the lowest frequencies without the mean, sorted by the sum of both directions."""
    down, right = np.mgrid[:_SIDE_PX, :_SIDE_PX].reshape(2, -1)
    order = np.lexsort((down, down + right))[1 : HASH_BITS + 1]
    return down[order], right[order]
