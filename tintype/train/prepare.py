"""Prepare a run before its training time is measured, by loading its teachers and filling its caches.

The caches hold images, latents, teachers' tokens and caption embeddings. Without this preparation, the first arm of a
study would spend training time on filling caches that all arms use. A step with one uncached image takes nearly as long
as a step without any cached image.

This module also measures the latents of the first images. The mean and standard deviation of latents determine the
effective noise level. With wrongly scaled latents, a run trains worse but raises no error.

Tensor dimensions are B (images), C (channels), H (latent rows) and W (latent columns).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain
from math import gcd

import torch

from tintype.errors import UserError
from tintype.runtime.interrupt import Interrupt
from tintype.runtime.transfer import send
from tintype.seams import Draws, ImageSource
from tintype.text.cache import CachedText
from tintype.tokenizers.part import channel_statistics
from tintype.train.batch import captions_at
from tintype.train.folder import RunFolder
from tintype.train.record import LATENTS
from tintype.train.session import Session, Term, one_shape

MOST_IMAGES = 256
"""Number of images, from the first on, whose latents are measured."""
_MEASURED_BATCH = 32
_CHUNK_IMAGES = 256
_CHUNK_LATENTS = 16
"""Images per rank and chunk on a CPU, where encoding takes seconds per image. Signals are checked between chunks."""


def get_ready(parts: Session, step: int) -> dict[str, str | None]:
    """Load teachers, and return their identities. One rank per machine loads first, to download weights only once."""
    found: dict[str, str | None] = {}
    for first in (True, False):
        with parts.world.fail_together():
            if (parts.world.local_rank == 0) == first:
                found = parts.ready(step)
    return found


def prepare_images(
    parts: Session, images_seen: int, interrupt: Interrupt, on_chunk: Callable[[], None] = lambda: None
) -> None:
    """Prepare the images and captions that training will still read, for at most one epoch of each image size."""
    for prepare in _chunks(parts, images_seen):
        if interrupt.on_any_rank(parts.world):
            return
        on_chunk()
        prepare()


def _chunks(parts: Session, images_seen: int) -> Iterator[Callable[[], None]]:
    """Yield the work in chunks, first the images of each size that training will still read, then the captions.

    Teachers' tokens are computed only for images that training reads while the loss weight is not zero.
    """
    train, first = parts.plan.train, images_seen
    for until in (*(stage.until for stage in train.stages), train.steps):
        if first < (end := train.images_before(until)):
            source = parts.source_at(train.step_at(first))
            for ids in parts.order.once(first, end, _chunk(parts, parts.kept is not None)):
                yield partial(prepare_ids, parts, ids, source)
            for term in parts.terms:
                begin, stop = _active_span(parts, term, first, end)
                if term.part.caches and begin < stop:
                    read = list(chain.from_iterable(parts.order.once(begin, stop, _chunk(parts, True))))
                    for ids in _of_whole_blocks(parts, term, read):
                        yield partial(prepare_term, parts, term, ids, train.step_at(begin))
            first = end
    if isinstance(parts.text, CachedText):
        chunk, end = _chunk(parts, True), min(train.images_before(train.steps), images_seen + len(parts.source))
        for first in range(images_seen, end, chunk):
            yield partial(prepare_text, parts, first, min(chunk, end - first))


def _chunk(parts: Session, networks: bool) -> int:
    """Return the size of a chunk, a multiple of the batch size, since a GPU encodes latents only in whole batches."""
    micro = parts.plan.train.batch // parts.plan.train.accumulate
    slow = networks and parts.device.type == "cpu"
    most = _CHUNK_LATENTS * parts.world.size if slow else _CHUNK_IMAGES
    return micro * max(1, most // micro)


def _of_whole_blocks(parts: Session, term: Term, ids: Sequence[int]) -> Iterator[list[int]]:
    """Yield the images of all blocks that contain these images, a few blocks per rank at a time."""
    most = parts.world.size * (_CHUNK_LATENTS if parts.device.type == "cpu" else _CHUNK_IMAGES)
    chunk: list[int] = []
    for block in term.part.filled_together(ids):
        if chunk and len(chunk) + len(block) > most:
            yield chunk
            chunk = []
        chunk += block
    if chunk:
        yield chunk


def prepare_ids(parts: Session, ids: Sequence[int], source: ImageSource) -> None:
    """Encode this rank's share of the latents.

    If ranks cannot see each other's files, each rank encodes its missing latents later, during training.
    """
    if parts.kept is not None:
        parts.kept.fill(parts.world.shard(ids))
    if parts.wants_images(parts.terms):
        source.prepare(ids)


def _active_span(parts: Session, term: Term, first: int, end: int) -> tuple[int, int]:
    """Return the first position in [first, end) at which a term has a weight, and the position after the last one."""
    train, weight_at = parts.plan.train, term.settings.weight_at
    steps = range(train.step_at(first), train.step_at(end - 1) + 1)
    active = next((step for step in steps if weight_at(step)), None)
    if active is None:
        return first, first
    last = next(step for step in reversed(steps) if weight_at(step))
    return max(first, train.images_before(active)), min(end, train.images_before(last + 1))


def prepare_term(parts: Session, term: Term, ids: Sequence[int], step: int) -> None:
    """Compute a term's cached outputs for the images at this step's size, always for complete blocks.

    All processes, and a machine's ranks, divide the blocks. A process returns when its cache has all outputs.
    """

    def images(some: Sequence[int]) -> torch.Tensor:
        return send(parts.source_at(step).images(some), parts.device)

    for shape, some in parts.by_shape(ids, step):
        term.part.prepare(some, shape, images)


def prepare_text(parts: Session, first: int, count: int) -> None:
    """Encode this rank's share of the captions of the samples at these positions, and the null caption.

    A caption policy may choose other captions in later epochs. A training step then encodes the missing captions.
    """
    if isinstance(parts.text, CachedText):
        train = parts.plan.train
        steps = range(train.step_at(first), train.step_at(first + count - 1) + 1)
        texts = [text for step in steps for text in _texts_of_step(parts, step, first, first + count)]
        parts.text.fill(parts.world.shard(texts))


def _texts_of_step(parts: Session, step: int, first: int, end: int) -> list[str]:
    train = parts.plan.train
    first, end = max(first, train.images_before(step)), min(end, train.images_before(step + 1))
    return captions_at(parts, first, end - first, step).texts


def check_latents(folder: RunFolder, parts: Session, step: int) -> None:
    """Record mean and standard deviation of the latents; raise if noise schedules do not work with these values."""
    if step and folder.record.latents:
        return
    mean_C, std_C, images = measure_latents(parts)
    folder.write_record(LATENTS, {"images": images, "mean": mean_C.tolist(), "std": std_C.tolist()})
    if fault := parts.tokenizer.check_latents(mean_C, std_C):
        kind, numbers = parts.plan.tokenizer.kind, folder.path / LATENTS
        raise UserError(f"tokenizer '{kind}' failed a check on the first {images} images: {fault} (values: {numbers})")


def measure_latents(parts: Session) -> tuple[torch.Tensor, torch.Tensor, int]:
    """Return mean and standard deviation of each latent channel, and the number of measured images, on every rank."""
    plan = parts.plan
    count = min(MOST_IMAGES, len(parts.source), plan.train.images_before(plan.train.steps))
    alike = one_shape(plan)
    most = _MEASURED_BATCH if alike is None else gcd(_MEASURED_BATCH, alike)

    def latents(first: int) -> torch.Tensor:
        position_B = torch.arange(first, min(first + most, count))
        draws = Draws(plan.seed, position_B.to(parts.device))
        return parts.latents(parts.order.ids(first, len(position_B)), None, draws)

    return *channel_statistics(map(latents, range(0, count, most))), count
