"""Generated images, kept in shards of the run's folder: a metric that is added later needs no new sampling.

The folder is named by what decides the images (prompts, noise, sampler, step) and not by how many there are or how they
are scored. A larger count adds shards; an interrupted sampling goes on after the last whole one.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from tintype.errors import UserError
from tintype.evaluation.protocol import Sampling
from tintype.generate import generate
from tintype.settings import plain
from tintype.train.folder import write_bytes, write_json
from tintype.train.parts import Parts

SHARD_IMAGES = 256


@dataclass(frozen=True)
class Samples:
    """The images of one condition, whether made or not yet, and what they are asked to show."""

    folder: Path
    sampling: Sampling
    prompts: tuple[str, ...]
    seed: int
    size_px: int

    def __len__(self) -> int:
        return len(self.prompts)

    def missing(self) -> list[tuple[int, int]]:
        """The spans (first image, behind the last) of which no shard has images of these prompts."""
        return [
            (first, last)
            for first, last in _spans(len(self.prompts))
            if _asked(_shard(self.folder, first))[: last - first] != digests(self.prompts[first:last])
        ]

    def make(self, parts: Parts, on_step: Callable[[int], None] = lambda images: None) -> None:
        """Makes what is missing. `on_step` is told the number of images at each step of the sampler.

        Conditions that differ in their number of images only share a folder: the larger has all of the smaller.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        sampler = self.sampling.sampler
        about = {"seed": self.seed, "size_px": self.size_px, "sampler": plain(sampler)}
        write_json(self.folder / "samples.json", about)
        for first, last in self.missing():
            prompts = self.prompts[first:last]
            images = generate(
                parts, prompts, sampler, seed=self.seed, size_px=self.size_px, first_index=first, on_step=on_step
            )
            write_shard(_shard(self.folder, first), images, prompts)

    def shards(self, verified: bool = False) -> Iterator[Tensor]:
        """The images in order: uint8 [n, 3, H, W]. Checksums are taken unless an earlier pass did."""
        if self.missing():
            raise UserError(f"{self.folder} lacks images that were there before; run the same command again")
        for first, last in _spans(len(self.prompts)):
            yield read_shard(_shard(self.folder, first), verified)[: last - first]

    def images(self) -> Tensor:
        return torch.cat(list(self.shards()))


def samples_of(
    folder: Path, step: int, sampling: Sampling, prompts: Sequence[str], seed: int, size_px: int, weights: str = ""
) -> Samples:
    """The samples of a run's step under a condition; `folder` holds those of all conditions.

    `weights` names those that are not the run's usual ones.
    """
    name = f"{samples_hash(sampling, seed, size_px)}-{step_name(step, weights)}"
    return Samples(folder / name, sampling, tuple(prompts), seed, size_px)


def step_name(step: int, weights: str = "") -> str:
    """Stands in the names of all that is made with a run's weights."""
    return f"step-{step:09d}-{weights}" if weights else f"step-{step:09d}"


def samples_hash(sampling: Sampling, seed: int, size_px: int) -> str:
    """Names the images by how they are made. What each was asked for stands in its shard."""
    sampler = plain(sampling.sampler)
    sampler.pop("batch")
    content = [sampling.prompts_sha256, sampling.per_prompt, seed, size_px, sampler]
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:12]


def write_shard(path: Path, image_NCHW: Tensor, prompts: Sequence[str]) -> None:
    image_NCHW = image_NCHW.contiguous()
    about = {"sha256": digest(image_NCHW), "prompts": json.dumps(list(prompts)), "asked": " ".join(digests(prompts))}
    write_bytes(path, save({"images": image_NCHW}, metadata=about))


def read_shard(path: Path, verified: bool = False) -> Tensor:
    """The images of a shard; a damaged one is named."""
    try:
        with safe_open(path, "pt") as file:
            images: Tensor = file.get_tensor("images")
            expected = file.metadata()["sha256"]
    except (OSError, SafetensorError, KeyError, TypeError) as error:
        raise UserError(f"{path} is no shard of sampled images, or a damaged one ({error})") from None
    if not verified and digest(images) != expected:
        raise UserError(f"{path} is damaged (its checksum differs); remove it to have the images sampled again")
    return images


def _asked(path: Path) -> list[str]:
    """The prompts that a shard's images answer, as their digests; none where there is no whole shard."""
    if not path.exists():
        return []
    try:
        with safe_open(path, "pt") as file:
            return str((file.metadata() or {}).get("asked", "")).split()
    except SafetensorError:
        return []


def _spans(count: int) -> list[tuple[int, int]]:
    return [(first, min(first + SHARD_IMAGES, count)) for first in range(0, count, SHARD_IMAGES)]


def _shard(folder: Path, first: int) -> Path:
    return folder / f"images-{first:07d}.safetensors"


def digest(tensor: Tensor) -> str:
    """SHA-256 of a tensor's numbers."""
    return hashlib.sha256(tensor.contiguous().numpy().data).hexdigest()


def digests(prompts: Sequence[str]) -> list[str]:
    return [hashlib.sha256(prompt.encode()).hexdigest()[:16] for prompt in prompts]
