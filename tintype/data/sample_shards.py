"""Shards of generated images. A shard has raw pixels with their checksum, and digests of the prompts."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from tintype.errors import DamagedFileError
from tintype.runtime.fence import OPEN, Fence
from tintype.runtime.files import SEAL, check_seal, damaged, seal_of, write_bytes
from tintype.runtime.notes import note_once
from tintype.wording import again

_REMAKE = f"remove it and {again()} again to sample its images again"


def write_shard(path: Path, image_NCHW: Tensor, prompts: Sequence[str], fence: Fence = OPEN) -> None:
    image_NCHW = image_NCHW.contiguous()
    about = {"sha256": digest(image_NCHW), "prompts": json.dumps(list(prompts)), "asked": " ".join(digests(prompts))}
    if (seal := seal_of(path)) is not None:
        about[SEAL] = json.dumps(seal.content)
    write_bytes(path, save({"images": image_NCHW}, metadata=about), fence=fence)


def read_shard(path: Path) -> Tensor:
    """Return the images of a shard as uint8 [n, 3, H, W]. Refuse a damaged shard."""
    images, expected = _read(path)
    if digest(images) != expected:
        raise damaged(path, "the file does not match its checksum", _REMAKE)
    return images


def read_unchecked(path: Path, first: int, last: int) -> Tensor:
    """Return some images of a shard. The caller has already checked the shard with `read_shard`."""
    return _read(path, first, last)[0]


def _read(path: Path, first: int = 0, last: int | None = None) -> tuple[Tensor, str]:
    """Return some images of a shard, and the checksum of all its images."""
    try:
        with safe_open(path, "pt") as file:
            about = file.metadata()
            _check_seal(path, about)
            return file.get_slice("images")[first:last], about["sha256"]
    except (OSError, SafetensorError, KeyError, TypeError) as error:
        raise DamagedFileError(
            f"{path} is damaged, or is not a shard of sampled images ({error})",
            f"if an evaluation wrote it, {_REMAKE}",
        ) from None


def prompt_digests(path: Path) -> list[str]:
    """Return the digests of a shard's prompts; empty if their file is missing, unreadable or of another run."""
    if not path.exists():
        return []
    try:
        with safe_open(path, "pt") as file:
            about = file.metadata() or {}
    except SafetensorError:
        return []
    try:
        _check_seal(path, about)
    except DamagedFileError as error:
        note_once(str(path), f"{path} is not used ({error.reason}): its images are sampled again")
        return []
    return str(about.get("asked", "")).split()


def _check_seal(path: Path, about: Mapping[str, str]) -> None:
    """Refuse a shard that belongs to another run or another step."""
    try:
        found = json.loads(about[SEAL]) if SEAL in about else None
    except ValueError:
        found = about[SEAL]
    check_seal(path, found, _REMAKE)


def digest(tensor: Tensor) -> str:
    return hashlib.sha256(tensor.contiguous().numpy().data).hexdigest()


def digests(prompts: Sequence[str]) -> list[str]:
    return [hashlib.sha256(prompt.encode()).hexdigest()[:16] for prompt in prompts]
