"""Encode a plan's images before a run needs them: `tintype tokenizer cache`. Ranks take turns, and keep good rows."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tintype.data.sources import open_source
from tintype.errors import UserError
from tintype.plan import Plan
from tintype.runtime.dist import current
from tintype.runtime.interrupt import Interrupt
from tintype.runtime.machine import choose_device, cpu_threads
from tintype.runtime.transfer import send
from tintype.tokenizers.latent_cache import open_latent_cache, why_uncacheable

_CPU_CHUNK_IMAGES, _GPU_CHUNK_IMAGES = 16, 64
"""Number of images between two checks for a signal; for a GPU, whole batches, since padding wastes work."""


@dataclass(frozen=True)
class CachedLatents:
    """State of a cache after it was filled. Counts are sums over all ranks."""

    folder: Path
    size_bytes: int
    images: int
    """Number of images in the data."""
    there: int
    """Number of images in the cache."""
    encoded: int
    changed: int
    """Number of images that were encoded again because the image of a cached row has changed."""
    seconds: float

    @property
    def images_per_s(self) -> float:
        return self.encoded / self.seconds if self.encoded else 0.0


def fill_cache(
    plan: Plan,
    interrupt: Interrupt,
    verify: bool = False,
    on_images: Callable[[int, int], None] = lambda done, total: None,
) -> CachedLatents:
    """Fill the cache until all rows are present or a signal is received. `verify` also re-encodes changed images."""
    if reason := why_uncacheable(plan.tokenizer, plan.tuning):
        raise UserError(reason)
    world, device = current(), choose_device(plan.run.device)
    batch = max(1, plan.train.batch // plan.train.accumulate // world.size)
    with world.fail_together():
        tokenizer = plan.tokenizer.build(device)
        source = open_source(plan.data, "train", device)
        kept = open_latent_cache(
            plan.tokenizer.kind, tokenizer, plan.data, source, device, batch=batch, folder=plan.run.latents_folder
        )
    began, count, encoded, changed = time.perf_counter(), len(source), 0, 0
    chunk = _CPU_CHUNK_IMAGES if device.type == "cpu" else batch * max(1, _GPU_CHUNK_IMAGES // batch)
    with cpu_threads(plan.run.device, plan.run.threads):
        for first in range(0, count, chunk * world.size):  # every rank joins every round
            if interrupt.on_any_rank(world):
                break
            start = first + world.rank * chunk
            ids = range(start, min(start + chunk, count))
            with world.fail_together():
                if other := kept.changed(ids) if verify and ids else []:
                    kept.write(other, send(source.images(other), device))
                changed += len(other)
                encoded += len(other) + (kept.fill(ids) if ids else 0)
            on_images(min(first + chunk * world.size, count), count)
    seconds = time.perf_counter() - began
    kept.rows.flush()
    encoded, changed = (sum(numbers) for numbers in zip(*world.all_gather([encoded, changed]), strict=True))
    return CachedLatents(kept.folder, kept.rows.file.stat().st_size, count, kept.rows.count, encoded, changed, seconds)
