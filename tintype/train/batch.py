"""A micro-batch as a step sees it before anything is learnt from it.

B: samples.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tintype.data.captions import captions_of
from tintype.runtime import fault
from tintype.runtime.clock import Clock
from tintype.runtime.transfer import send
from tintype.seams import Draws, TextTokens
from tintype.train.session import Session, Term

PREFETCHED_BATCHES = 3
"""Micro-batches that are prefetched, so that one slow image stalls no step."""


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


def read_batch(parts: Session, first: int, count: int, step: int, clock: Clock) -> Batch:
    """Read the samples at positions first … first + count - 1."""
    plan, device = parts.plan, parts.device
    terms = parts.terms_at(step)
    with clock.part("data"):
        ids = parts.order.ids(first, count)
        image_BCHW = None
        if parts.wants_images(terms):
            image_BCHW = send(parts.source_at(step).images(ids), device)
            _prefetch(parts, first, count)
        records = parts.source.records(ids)
        position_B = torch.arange(first, first + count)
        drawn = Draws(plan.seed, position_B)
        captions = captions_of(records, plan.captions, drawn, step, parts.text)
        draws = Draws(plan.seed, send(position_B, device))
        fault.point("step.data")
    with parts.compute():
        with clock.part("text"):
            text = parts.text.encode(captions.texts)
        with clock.part("teacher"), torch.no_grad():
            looking = [term for term in terms if term.part.needs_images]
            seen = {} if image_BCHW is None else {term.name: term.part.look(image_BCHW, ids) for term in looking}
    return Batch(ids, image_BCHW, captions.texts, text, draws, terms, seen, step, captions.lacking)
