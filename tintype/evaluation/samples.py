"""Generated images, stored as shards in the run's folder. A metric that is added later needs no new sampling.

The folder's name depends on the settings that determine the images, which are prompts, noise, sampler and step. The
name does not depend on the number of images or on the metrics, so a larger count only adds shards. Interrupted sampling
resumes after the last complete shard.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from pathlib import Path

import torch
from torch import Tensor

from tintype.data.buckets import Shape
from tintype.data.sample_shards import digests, prompt_digests, read_shard, read_unchecked, write_shard
from tintype.errors import UserError
from tintype.evaluation.protocol import Protocol, Sampling
from tintype.evaluation.reference import ScoredData, held_out, in_blocks, rows_by_shape
from tintype.runtime.dist import current
from tintype.runtime.fence import OPEN, Fence
from tintype.runtime.files import write_checked
from tintype.sampling.generate import generate, spans
from tintype.settings import plain
from tintype.train.parts import Model
from tintype.wording import again

SHARD_IMAGES = 256


@dataclass(frozen=True)
class Samples:
    """The images of one sampling and their prompts. The images may not be generated yet."""

    folder: Path
    sampling: Sampling
    prompts: tuple[str, ...]
    seed: int
    size_px: int
    shapes: tuple[Shape, ...] = ()
    """Height and width of each image, grouped by shape; empty if all images are squares of `size_px`."""

    def __len__(self) -> int:
        return len(self.prompts)

    def missing(self) -> list[tuple[int, int]]:
        """Return spans of images (first index, index after the last) for which there is no shard with these prompts."""
        return [
            (first, last)
            for first, last in self._shard_spans
            if prompt_digests(_shard(self.folder, first))[: last - first] != digests(self.prompts[first:last])
        ]

    def make(self, parts: Model, on_step: Callable[[int], None] = lambda images: None, fence: Fence = OPEN) -> None:
        """Generate missing images. `on_step` gets the number of images at each sampler step.

        Samplings that differ only in their number of images share a folder, since the larger set contains the smaller.
        The ranks take batches, the same as in one process, in turn. The first rank writes the shards.
        """
        world, sampler = current(), self.sampling.sampler
        if world.leads:
            self.folder.mkdir(parents=True, exist_ok=True)
            about = {"seed": self.seed, "size_px": self.size_px, "sampler": plain(sampler)}
            write_checked(self.folder / "samples.json", about, fence=fence)
        missing = [(first, last) for first, last in world.broadcast(self.missing() if world.leads else None)]
        batches = [batch for span in missing for batch in spans(*span, sampler.batch)]
        starts = {last: first for first, last in missing}
        made: list[Tensor] = []
        for some in self._turns(batches, world.size):
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
        size_px = self.shapes[first] if self.shapes else self.size_px
        prompts, sampler = self.prompts[first:last], self.sampling.sampler
        return generate(parts, prompts, sampler, seed=self.seed, size_px=size_px, first_index=first, on_step=on_step)

    @cached_property
    def _shard_spans(self) -> list[tuple[int, int]]:
        """Return the span of images of each shard. All images of a shard have one shape."""
        if not self.shapes:
            return spans(0, len(self), SHARD_IMAGES)
        found, first = [], 0
        for _, alike in groupby(self.shapes):
            last = first + len(list(alike))
            found += spans(first, last, SHARD_IMAGES)
            first = last
        return found

    def _turns(self, batches: Sequence[tuple[int, int]], ranks: int) -> Iterator[list[tuple[int, int]]]:
        """Yield groups of batches of one shape, one batch per rank, that are generated at the same time."""
        for _, alike in groupby(batches, lambda batch: self.shapes[batch[0]] if self.shapes else None):
            some = list(alike)
            yield from (some[at : at + ranks] for at in range(0, len(some), ranks))

    def shards(self) -> Iterator[Tensor]:
        """Yield the images in order, as uint8 [n, 3, H, W]. The images' checksums are verified."""
        self._refuse_gaps()
        for first, last in self._shard_spans:
            yield read_shard(_shard(self.folder, first))[: last - first]

    def blocks(self, size: int) -> list[tuple[int, int]]:
        """Return spans of at most `size` images that together cover all images. Each span is within one shard."""
        self._refuse_gaps()
        return [block for span in self._shard_spans for block in spans(*span, size)]

    def read(self, first: int, last: int) -> Tensor:
        """Return the images of a block. The block's shard was already verified."""
        start = max(start for start, _ in self._shard_spans if start <= first)
        return read_unchecked(_shard(self.folder, start), first - start, last - start)

    def _refuse_gaps(self) -> None:
        if self.missing():
            raise UserError(f"{self.folder} lacks images that existed before", f"{again()} again")


def samples_of(
    folder: Path,
    step: int,
    sampling: Sampling,
    prompts: Sequence[str],
    seed: int,
    size_px: int,
    weights: str = "",
    shapes: Sequence[Shape] = (),
) -> Samples:
    """Return the samples of a run's step. `folder` holds all samplings; `weights` names other weights than usual."""
    name = f"{samples_hash(sampling, seed, size_px, shapes)}-{step_name(step, weights)}"
    return Samples(folder / name, sampling, tuple(prompts), seed, size_px, tuple(shapes))


def sampling_prompts(scored: ScoredData, protocol: Protocol, sampling: Sampling) -> Sequence[str]:
    if (file := sampling.prompt_file) is not None:
        return repeat(file.prompts, sampling.per_prompt)
    assert sampling.count is not None
    source = held_out(scored, protocol)
    ids, _ = in_blocks(source, sampling.count)
    return [record.captions[sampling.prompts] for record in source.records(ids)]


def sampling_shapes(scored: ScoredData, protocol: Protocol, sampling: Sampling) -> list[Shape]:
    """Return each image's shape, in the order of the prompts; [] if all are square, as for prompts of a file."""
    if sampling.count is None or not protocol.shaped:
        return []
    rows = rows_by_shape(held_out(scored, protocol), sampling.count)
    return [shape for shape, row_N in rows.items() for _ in row_N]


def repeat(values: Sequence[str], times: int) -> list[str]:
    return [value for value in values for _ in range(times)]


def step_name(step: int, weights: str = "") -> str:
    """Return a name for a run's weights. Files that are made with these weights have this name as part of their own."""
    return f"step-{step:09d}-{weights}" if weights else f"step-{step:09d}"


def samples_hash(sampling: Sampling, seed: int, size_px: int, shapes: Sequence[Shape] = ()) -> str:
    """Return a hash of what determines the images, except the prompts, which the shards record.

    If there are several shapes, the hash includes the shape of every image, since the number of images determines their
    order.
    """
    sampler = plain(sampling.sampler)
    sampler.pop("batch")
    content: list[object] = [sampling.prompts_sha256, sampling.per_prompt, seed, size_px, sampler]
    content += [list(shapes)] if shapes else []
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:12]


def _shard(folder: Path, first: int) -> Path:
    return folder / f"images-{first:07d}.safetensors"
