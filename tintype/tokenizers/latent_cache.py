"""Latents of the training images, cached on disk by image id.

A row contains the frozen tokenizer's moments of one image in fp32, and a hash of the image. So training gives the same
result with and without the cache. A cache is a folder with two files, which are `latents.rows`, and `latents.json` for
the origin of the rows.

Tensor dimensions are B (requested images), M (images with missing latents), C (channels of the moments), H (latent
rows), W (latent columns) and L (numbers in a row).
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from tintype.errors import UserError, as_user_error
from tintype.pretrained.frozen import encode_evenly
from tintype.runtime.cache import cache_folder, stamp_of, write_header, writing_cache
from tintype.runtime.identity import check_same
from tintype.runtime.memory import checked_memory
from tintype.runtime.rows import PORTION, Content, DiskRows, fingerprint
from tintype.runtime.transfer import send
from tintype.seams import Draws, ImageSource, Tokenizer
from tintype.settings import DataPart, Part
from tintype.tokenizers.part import TokenizerPart

ROWS_NAME, HEADER_NAME = "latents.rows", "latents.json"
FORMAT = 2
_HASH_BYTES = 16
_HASH_WORDS = _HASH_BYTES // 4


def why_uncacheable(tokenizer: TokenizerPart, tuning: Part | None) -> str | None:
    """Return why latents cannot be cached, or None. A run then works without a cache, so arms can share the setting."""
    if tuning is not None:
        return f"'{tuning.kind}' trains the tokenizer: its latents change at every step, so none are cached"
    return tokenizer.why_uncacheable()


@dataclass(frozen=True)
class LatentCache:
    """Latents of all images of a source. Missing latents are encoded on demand."""

    folder: Path
    tokenizer: Tokenizer
    source: ImageSource
    rows: DiskRows
    shape: tuple[int, int, int]
    """Channels, rows and columns of the moments of an image."""
    device: torch.device
    batch: int
    """Fixed number of images that a GPU encodes at once, which equals the number of images in a step."""

    def fill(self, ids: Sequence[int]) -> int:
        """Encode the missing images, and return how many this process encoded."""
        portion = self.batch * max(1, PORTION // self.batch)
        return self.rows.fill(
            ids, lambda missing: self._encoded(send(self.source.images(missing), self.device)), portion
        )

    def write(self, ids: Sequence[int], image_MCHW: Tensor) -> None:
        """Encode the images and write their rows, and overwrite existing rows."""
        self.rows.write(torch.tensor(ids, dtype=torch.int64), self._encoded(image_MCHW))

    def _encoded(self, image_MCHW: Tensor) -> Tensor:
        """Return the rows of these images. A GPU gets batches of a fixed size; on a CPU, the tokenizer ensures this."""
        if self.device.type == "cpu":
            moment_MCHW = self.tokenizer.moments(image_MCHW)
        else:
            with checked_memory():
                moment_MCHW = encode_evenly(self.tokenizer.moments, image_MCHW, self.batch)
        return torch.cat([hashes(image_MCHW), moment_MCHW.cpu().flatten(1).contiguous().view(torch.int32)], dim=1)

    def changed(self, ids: Sequence[int]) -> list[int]:
        """Return the ids of images whose cached row was computed from different pixels."""
        id_B = torch.tensor(ids, dtype=torch.int64)
        known = id_B[self.rows.has(id_B)]
        if not len(known):
            return []
        hash_B4 = hashes(self.source.images(known.tolist()))
        same_B = (self.rows.read(known)[:, :_HASH_WORDS] == hash_B4).all(dim=1)
        return [int(id_) for id_ in known[~same_B]]

    def __call__(self, ids: Sequence[int], draws: Draws) -> Tensor:
        """Return the latents that the tokenizer would compute from the images, on the device."""
        self.fill(ids)
        row_BL = self.rows.read(torch.tensor(ids, dtype=torch.int64))
        moment_BL = row_BL[:, _HASH_WORDS:].contiguous().view(torch.float32)
        return self.tokenizer.drawn(send(moment_BL, self.device).unflatten(1, self.shape), draws)


def hashes(image_BCHW: Tensor) -> Tensor:
    """Return the BLAKE2b hash of each image's pixels, truncated to 128 bits, as int32 [B, 4]."""
    pixels = image_BCHW.cpu().contiguous().numpy()
    content = b"".join(hashlib.blake2b(one.data, digest_size=_HASH_BYTES).digest() for one in pixels)
    return torch.frombuffer(bytearray(content), dtype=torch.int32).view(-1, _HASH_WORDS)


def open_latent_cache(
    kind: str,
    tokenizer: Tokenizer,
    data: DataPart,
    source: ImageSource,
    device: torch.device,
    *,
    batch: int,
    folder: str | None = None,
) -> LatentCache:
    """Open or create a tokenizer's latent cache, by default in a folder named by a hash of the latents' origin."""
    side = data.size_px // tokenizer.stride_px
    shape = (tokenizer.moment_channels, side, side)
    made_of = {
        "tokenizer": {
            "kind": kind,
            "weights and normalisation": tokenizer.identity,
            "arithmetic": tokenizer.arithmetic,
        },
        "data": data.content(),
        **({} if source.identity is None else {"content": source.identity}),
        "pictures": fingerprint(source),  # an identity covers the files; a few decoded images cover the decoder
        "images": len(source),
        "latents": list(shape),
        "device": device.type,
    }
    stamp = stamp_of(made_of)
    place = cache_folder() / "latents" / stamp.hex()[:32] if folder is None else Path(folder).expanduser()
    _check_header(place, made_of)
    rows = (len(source), _HASH_WORDS + math.prod(shape))
    content = Content("latents", rows, torch.int32, "set run.latents to none", stamp)
    return LatentCache(place, tokenizer, source, DiskRows(place / ROWS_NAME, content), shape, device, batch)


def _check_header(folder: Path, made_of: Mapping[str, object]) -> None:
    """Write the header of a new folder; refuse a folder whose header states another origin."""
    file = folder / HEADER_NAME
    with writing_cache(file, "set run.latents_folder to one, or set run.latents to none"):
        names = [one.name for one in folder.iterdir() if not one.name.startswith(".")] if folder.is_dir() else []
        if file.exists():  # checked after listing: another process may be creating the folder, header first
            check_same(file, "origin of its latents", _read_header(file), made_of, _remedy(folder))
        elif ROWS_NAME in names:
            raise UserError(
                f"{folder} has files but no {HEADER_NAME}, so the source of its latents is unknown",
                _remedy(folder),
            )
        elif names:
            raise UserError(
                f"{folder} is not a cache of latents: the folder contains files, but not {HEADER_NAME}",
                "set run.latents_folder to a new folder, or leave it out",
            )
        else:
            write_header(file, FORMAT, made_of)


def _read_header(file: Path) -> dict[str, object]:
    with as_user_error((ValueError, KeyError, TypeError), f"{file} is damaged", _remedy(file.parent)):
        header = json.loads(file.read_text(encoding="utf-8"))
        if header["format"] != FORMAT:
            raise UserError(
                f"{file} has the format {header['format']}, but this version of tintype reads {FORMAT}",
                _remedy(file.parent),
            )
        return dict(header["made_of"])


def _remedy(folder: Path) -> str:
    return (
        f"to make it anew, delete {folder} and run `tintype tokenizer cache` (or just train); to keep it, set "
        "run.latents_folder to another folder, or leave it out"
    )
