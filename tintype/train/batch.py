"""A micro-batch as a step sees it before anything is learnt from it.

B: samples.
"""

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
"""Micro-batches that are prefetched, so that one slow image stalls no step."""

EncodeText = Callable[[Sequence[str]], TextTokens]
"""Encodes the captions of a micro-batch."""


@dataclass(frozen=True)
class Batch:
    ids: Sequence[int]
    image_BCHW: Tensor | None
    """None where nothing in the step asks for the images."""
    captions: Sequence[str]
    text: TextTokens
    draws: Draws
    terms: Sequence[Term]
    """Loss terms that have a weight at this step."""
    seen: Mapping[str, Tensor | None]
    """Result of each term's `look`, by the name of the term."""
    step: int
    without_caption: int
    """Samples whose image has no caption to pick; they read the null caption."""


def _prefetch(parts: Session, first: int, count: int) -> None:
    """Prefetch this rank's images of the next micro-batches, in the sizes and numbers of their stages."""
    train, world = parts.plan.train, parts.world
    begin = first - world.rank * count
    for _ in range(PREFETCHED_BATCHES):
        begin += count * world.size
        step = train.step_at(begin)
        count = train.batch_at(step) // train.accumulate // world.size
        parts.source_at(step).expect(parts.order.ids(begin + world.rank * count, count))


def captions_at(parts: Session, first: int, count: int, step: int) -> Captions:
    """Return the captions of the samples at positions first … first + count - 1, the same whenever it is called."""
    plan = parts.plan
    records = parts.source.records(parts.order.ids(first, count))
    return captions_of(records, plan.captions, Draws(plan.seed, torch.arange(first, first + count)), step, parts.text)


def step_encoder(parts: Session, firsts: Sequence[int], count: int, step: int, clock: Clock) -> EncodeText:
    """Return what encodes the captions of a step's micro-batches, which begin at positions `firsts` on this rank.

    A frozen encoder encodes the captions of all of them here: few passes with many tokens each. One that is trained
    encodes within each micro-batch, where its gradients belong; one with a cache has encoded before the first step.
    """
    text = parts.text
    if len(firsts) == 1 or not isinstance(text, FrozenTextEncoder):
        return text.encode
    with clock.part("data"):
        captions = [caption for first in firsts for caption in captions_at(parts, first, count, step).texts]
    with parts.compute(), clock.part("text"):
        return text.encode_all(captions).batch


def read_batch(
    parts: Session, first: int, count: int, step: int, clock: Clock, encode_text: EncodeText | None = None
) -> Batch:
    """Read the samples at positions first … first + count - 1."""
    plan, device = parts.plan, parts.device
    terms = parts.terms_at(step)
    with clock.part("data"):
        ids = parts.order.ids(first, count)
        image_BCHW = None
        if parts.wants_images(terms):
            image_BCHW = send(parts.source_at(step).images(ids), device)
            _prefetch(parts, first, count)
        captions = captions_at(parts, first, count, step)
        draws = Draws(plan.seed, send(torch.arange(first, first + count), device))
        fault.point("step.data")
    with parts.compute():
        with clock.part("text"):
            text = (encode_text or parts.text.encode)(captions.texts)
        with clock.part("teacher"), torch.no_grad():
            looking = [term for term in terms if term.part.needs_images]
            seen = {} if image_BCHW is None else {term.name: term.part.look(image_BCHW, ids) for term in looking}
    return Batch(ids, image_BCHW, captions.texts, text, draws, terms, seen, step, captions.lacking)
