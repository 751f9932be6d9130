"""Generated images, stored in shards in the run's folder: a metric that is added later needs no new sampling.

The folder is named by what decides the images (prompts, noise, sampler, step) and not by how many there are or how they
are scored. A larger count adds shards; an interrupted sampling resumes after the last whole one.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from tintype.data.sample_shards import digests, prompt_digests, read_shard, read_unchecked, write_shard
from tintype.errors import UserError
from tintype.evaluation.protocol import Protocol, Sampling
from tintype.evaluation.reference import held_out
from tintype.runtime.dist import current
from tintype.runtime.fence import OPEN, Fence
from tintype.runtime.files import write_json
from tintype.sampling.generate import generate, spans
from tintype.settings import DataPart, plain
from tintype.train.parts import Model

SHARD_IMAGES = 256


@dataclass(frozen=True)
class Samples:
    """The images of one condition, whether made or not yet, and their prompts."""

    folder: Path
    sampling: Sampling
    prompts: tuple[str, ...]
    seed: int
    size_px: int

    def __len__(self) -> int:
        return len(self.prompts)

    def missing(self) -> list[tuple[int, int]]:
        """Return the spans (first image, one past the last) of which no shard has images of these prompts."""
        return [
            (first, last)
            for first, last in spans(0, len(self), SHARD_IMAGES)
            if prompt_digests(_shard(self.folder, first))[: last - first] != digests(self.prompts[first:last])
        ]

    def make(self, parts: Model, on_step: Callable[[int], None] = lambda images: None, fence: Fence = OPEN) -> None:
        """Generate what is missing. `on_step` gets the number of images at each step of the sampler.

        Conditions that differ in their number of images only share a folder: the larger has all of the smaller.
        Ranks make batches in turn, the same ones as a process alone; the first rank writes the shards.
        """
        world, sampler = current(), self.sampling.sampler
        if world.leads:
            self.folder.mkdir(parents=True, exist_ok=True)
            about = {"seed": self.seed, "size_px": self.size_px, "sampler": plain(sampler)}
            write_json(self.folder / "samples.json", about, fence)
        missing = [(first, last) for first, last in world.broadcast(self.missing() if world.leads else None)]
        batches = [batch for span in missing for batch in spans(*span, sampler.batch)]
        starts = {last: first for first, last in missing}
        made: list[Tensor] = []
        for some in (batches[at : at + world.size] for at in range(0, len(batches), world.size)):
            images = world.share(some, lambda batch: self._generate(parts, *batch, on_step))
            if images is None:
                continue
            sizes = [last - first for first, last in some]
            for (_, last), image_BCHW in zip(some, images.split(sizes), strict=True):
                made.append(image_BCHW)
                if last in starts:
                    first = starts[last]
                    write_shard(_shard(self.folder, first), torch.cat(made), self.prompts[first:last], fence)
                    made.clear()
        world.barrier()

    def _generate(self, parts: Model, first: int, last: int, on_step: Callable[[int], None]) -> Tensor:
        noise = {"seed": self.seed, "size_px": self.size_px, "first_index": first}
        return generate(parts, self.prompts[first:last], self.sampling.sampler, **noise, on_step=on_step)

    def shards(self) -> Iterator[Tensor]:
        """Yield the images in order: uint8 [n, 3, H, W]. Checksums are checked."""
        self._refuse_gaps()
        for first, last in spans(0, len(self), SHARD_IMAGES):
            yield read_shard(_shard(self.folder, first))[: last - first]

    def blocks(self, size: int) -> list[tuple[int, int]]:
        """Return spans of at most `size` images, each in one shard, that together are all images."""
        self._refuse_gaps()
        return [block for span in spans(0, len(self), SHARD_IMAGES) for block in spans(*span, size)]

    def read(self, first: int, last: int) -> Tensor:
        """Return the images of a block, whose shard an earlier pass has checked."""
        start = first - first % SHARD_IMAGES
        return read_unchecked(_shard(self.folder, start), first - start, last - start)

    def _refuse_gaps(self) -> None:
        if self.missing():
            raise UserError(f"{self.folder} lacks images that were there before; run the same command again")


def samples_of(
    folder: Path, step: int, sampling: Sampling, prompts: Sequence[str], seed: int, size_px: int, weights: str = ""
) -> Samples:
    """Return the samples of a run's step under a condition; `folder` holds those of all conditions.

    `weights` names those that are not the run's usual ones.
    """
    name = f"{samples_hash(sampling, seed, size_px)}-{step_name(step, weights)}"
    return Samples(folder / name, sampling, tuple(prompts), seed, size_px)


def sampling_prompts(data: DataPart, protocol: Protocol, sampling: Sampling) -> Sequence[str]:
    """Return one prompt for each image of a condition."""
    if (file := sampling.prompt_file) is not None:
        return repeat(file.prompts, sampling.per_prompt)
    assert sampling.count is not None
    records = held_out(data, protocol).records(range(sampling.count))
    return [record.captions[sampling.prompts] for record in records]


def repeat(values: Sequence[str], times: int) -> list[str]:
    return [value for value in values for _ in range(times)]


def step_name(step: int, weights: str = "") -> str:
    """Name a run's weights, for the names of files that are made with them."""
    return f"step-{step:09d}-{weights}" if weights else f"step-{step:09d}"


def samples_hash(sampling: Sampling, seed: int, size_px: int) -> str:
    """Return a hash of how images are made. The prompts of each are in its shard."""
    sampler = plain(sampling.sampler)
    sampler.pop("batch")
    content = [sampling.prompts_sha256, sampling.per_prompt, seed, size_px, sampler]
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:12]


def _shard(folder: Path, first: int) -> Path:
    return folder / f"images-{first:07d}.safetensors"
