"""Read the micro-batches of a step, with images, captions and cached teacher outputs. B is the number of samples."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tintype.data.captions import Captions, captions_of
from tintype.runtime import fault
from tintype.runtime.clock import Clock
from tintype.runtime.transfer import send
from tintype.seams import Draws, TextTokens
from tintype.text.frozen import FrozenTextEncoder
from tintype.train.session import Session, Term

PREFETCHED_BATCHES = 3
"""Number of micro-batches to prefetch, so that a slow image does not stall a step."""


@dataclass(frozen=True)
class StepText:
    """The captions of a step's micro-batches, and their embeddings."""

    captions: Mapping[int, Captions]
    """Captions of each micro-batch, by the position of its first sample."""
    encode: Callable[[Sequence[str]], TextTokens]


@dataclass(frozen=True)
class Batch:
    ids: Sequence[int]
    image_BCHW: Tensor | None
    """The images; None if the step does not need images."""
    captions: Sequence[str]
    text: TextTokens
    draws: Draws
    terms: Sequence[Term]
    """Loss terms with a non-zero weight at this step."""
    seen: Mapping[str, Tensor | None]
    """Output of each loss term's `look` method, by the term's name."""
    step: int
    without_caption: int
    """Number of samples whose image has no usable caption; these samples get the null caption."""


def _prefetch(parts: Session, first: int, count: int) -> None:
    """Prefetch this rank's images and cached outputs of `look`, with the image and batch sizes of their stages."""
    train, world = parts.plan.train, parts.world
    begin = first - world.rank * count
    for _ in range(PREFETCHED_BATCHES):
        begin += count * world.size
        step = train.step_at(begin)
        count = train.batch_at(step) // train.accumulate // world.size
        ids = parts.order.ids(begin + world.rank * count, count)
        parts.source_at(step).expect(ids)
        for term in parts.terms_at(step) if step < train.steps else ():
            if term.part.caches:
                ((shape, _),) = parts.by_shape(ids, step)
                term.part.expect(ids, shape)


def captions_at(parts: Session, first: int, count: int, step: int) -> Captions:
    """Return the captions of the samples at positions first to first + count - 1, the same in every call."""
    plan = parts.plan
    records = parts.source.records(parts.order.ids(first, count))
    return captions_of(records, plan.captions, Draws(plan.seed, torch.arange(first, first + count)), step, parts.text)


def read_text(parts: Session, firsts: Sequence[int], count: int, step: int, clock: Clock) -> StepText:
    """Draw the captions of a step's micro-batches, which start at positions `firsts` on this rank.

    A frozen encoder encodes several micro-batches here, in few forward passes with many tokens each. A trainable
    encoder encodes each micro-batch separately, so that gradients flow. An encoder with a cache has encoded all
    captions before the first step.
    """
    with clock.part("data"):
        captions = {first: captions_at(parts, first, count, step) for first in firsts}
    if len(firsts) == 1 or not isinstance(parts.text, FrozenTextEncoder):
        return StepText(captions, parts.text.encode)
    with parts.compute(), clock.part("text"):
        encoded = parts.text.encode_all([caption for some in captions.values() for caption in some.texts])
    return StepText(captions, encoded.batch)


def read_batch(
    parts: Session, first: int, count: int, step: int, clock: Clock, step_text: StepText | None = None
) -> Batch:
    """Read the samples at positions first to first + count - 1, with their captions unless `step_text` has them."""
    step_text = step_text or read_text(parts, [first], count, step, clock)
    captions = step_text.captions[first]
    plan, device = parts.plan, parts.device
    terms = parts.terms_at(step)
    with clock.part("data"):
        ids = parts.order.ids(first, count)
        image_BCHW = None
        if parts.wants_images(terms):
            image_BCHW = send(parts.source_at(step).images(ids), device)
            _prefetch(parts, first, count)
        draws = Draws(plan.seed, send(torch.arange(first, first + count), device))
        fault.point("step.data")
    with parts.compute():
        with clock.part("text"):
            text = step_text.encode(captions.texts)
        with clock.part("teacher"), torch.no_grad():
            looking = [term for term in terms if term.part.needs_images]
            seen = {} if image_BCHW is None else {term.name: term.part.look(image_BCHW, ids) for term in looking}
    return Batch(ids, image_BCHW, captions.texts, text, draws, terms, seen, step, captions.lacking)
