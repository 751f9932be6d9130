"""Makes ready what a run needs before its clock starts: what losses compare with, the images that a source keeps, and
the latents and embeddings of captions that are kept on the disk.

Otherwise the first arm of a study would pay for all of them, and a step that lacks one image nearly as much as one that
lacks them all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch

from tintype.data.captions import captions_of
from tintype.runtime.interrupt import Interrupt
from tintype.seams import Draws, ImageSource
from tintype.text.cache import CachedText
from tintype.train.session import Session

_CHUNK_IMAGES = 256
_CHUNK_LATENTS = 16
"""Images of each rank on a CPU, where a large tokenizer takes seconds for one. Signals are polled between chunks."""


def get_ready(parts: Session, step: int) -> dict[str, str | None]:
    """Load teachers; one rank of each machine first, which downloads weights and makes caches."""
    found: dict[str, str | None] = {}
    for first in (True, False):
        with parts.world.fail_together():
            if (parts.world.local_rank == 0) == first:
                found = parts.ready(step)
    return found


def prepare_images(
    parts: Session, images_seen: int, interrupt: Interrupt, on_chunk: Callable[[], None] = lambda: None
) -> None:
    """Prepare the images that training will read from here on, and their captions, one epoch of each size at most.

    A signal ends it."""
    for source, first, end in _stages(parts, images_seen):
        for ids in parts.order.once(first, end, _chunk(parts, parts.kept is not None)):
            if interrupt.on_any_rank(parts.world):
                return
            on_chunk()
            prepare_ids(parts, ids, source)
    if not isinstance(parts.text, CachedText):
        return
    last = parts.plan.train.steps * parts.plan.train.batch
    chunk, end = _chunk(parts, True), min(last, images_seen + len(parts.source))
    for first in range(images_seen, end, chunk):
        if interrupt.on_any_rank(parts.world):
            return
        on_chunk()
        prepare_text(parts, first, min(chunk, end - first))


def _stages(parts: Session, images_seen: int) -> Iterator[tuple[ImageSource, int, int]]:
    """Yield the sources that training will read from here on, each with its positions."""
    train, first = parts.plan.train, images_seen
    for until in (*(stage.until for stage in train.stages), train.steps):
        if first < until * train.batch:
            yield parts.source_at(first // train.batch), first, until * train.batch
            first = until * train.batch


def _chunk(parts: Session, networks: bool) -> int:
    """In whole batches: a GPU encodes latents in no others."""
    micro = parts.plan.train.batch // parts.plan.train.accumulate
    slow = networks and parts.device.type == "cpu"
    most = _CHUNK_LATENTS * parts.world.size if slow else _CHUNK_IMAGES
    return micro * max(1, most // micro)


def prepare_ids(parts: Session, ids: Sequence[int], source: ImageSource) -> None:
    """Encode this rank's share of the latents; where ranks do not see each other's files, a step encodes the rest."""
    if parts.kept is not None:
        parts.kept.fill(parts.world.shard(ids))
    if parts.wants_images(parts.terms):
        source.prepare(ids)


def prepare_text(parts: Session, first: int, count: int) -> None:
    """Encode this rank's share of the captions that samples at these positions will read, the null caption too.

    A policy may choose others for later epochs: a step encodes what it finds missing.
    """
    if isinstance(parts.text, CachedText):
        batch = parts.plan.train.batch
        steps = range(first // batch, (first + count - 1) // batch + 1)
        texts = [text for step in steps for text in _texts_of_step(parts, step, first, first + count)]
        parts.text.fill(parts.world.shard(texts))


def _texts_of_step(parts: Session, step: int, first: int, end: int) -> list[str]:
    """Return the captions of those samples of a step whose positions are in first … end - 1."""
    plan, batch = parts.plan, parts.plan.train.batch
    first, end = max(first, step * batch), min(end, (step + 1) * batch)
    records = parts.source.records(parts.order.ids(first, end - first))
    draws = Draws(plan.seed, torch.arange(first, end))
    return captions_of(records, plan.captions, draws, step, parts.text).texts
