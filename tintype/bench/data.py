"""Implement `tintype bench --data` (decoding, and how long training waits for images) and `tintype bench --import`.

No images are cached on the device, so a step with a small store costs as much as one with a large store.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from tintype.bench.clock import StepClock
from tintype.bench.run import OnPart, refuse_stages, update
from tintype.data.decoding.threads import usual_threads
from tintype.data.sources import open_order
from tintype.data.store.importing import ImportOptions, Progress, import_images
from tintype.data.store.settings import StoreSettings
from tintype.data.store.source import StoreSource
from tintype.errors import UserError
from tintype.plan import Plan
from tintype.runtime.dist import current
from tintype.runtime.files import Json
from tintype.runtime.interrupt import Interrupt
from tintype.runtime.machine import choose_device, environment, exact_fp32
from tintype.train.batch import PREFETCHED_BATCHES
from tintype.train.exact import deterministic_steps
from tintype.train.session import build_session
from tintype.train.state import new_state
from tintype.wording import option, setting

_WARM_UP_STEPS = 3


@dataclass(frozen=True)
class Loading:
    """Speed of decoding, fitting and batching with this many threads or processes, without any other work."""

    threads: int
    processes: bool
    images_per_s: float
    cpu_ms_per_image: float
    """CPU time over all threads. Other programs on the machine do not change this time."""
    images_per_s_per_core: float


@dataclass(frozen=True)
class DataSpeeds:
    """The speed of reading a store, alone and during training."""

    environment: dict[str, Json]
    plan: str
    size_px: int
    batch: int
    loader: list[Loading]
    training: dict[str, float]
    loader_times_training: float


@dataclass(frozen=True)
class ImportSpeed:
    images: int
    set_aside: int
    images_per_s: float
    cpu_ms_per_image: float
    images_per_s_per_core: float


@exact_fp32()
def measure_data(plan: Plan, steps: int, on_part: OnPart = lambda part, done, total: None) -> DataSpeeds:
    """Measure the loader alone, with one thread and with all threads, and then training with its images."""
    if not isinstance(plan.data, StoreSettings):
        raise UserError(
            f"{option('data')} measures the speed of decoding a store's images, but the plan's data is of the "
            f"kind '{plan.data.kind}'",
            f"use a store: {setting('data.kind', 'store')} {setting('data.path', 'DIR')}",
        )
    refuse_stages(plan)
    device = choose_device(plan.run.device)
    counts = sorted({1, usual_threads()})
    on_part("reading the store", 0, len(counts) + 2)
    _loading(plan, plan.data, steps, usual_threads(), device)  # from the disk, which is not what is measured
    loadings = []
    for number, threads in enumerate(counts, 1):
        on_part(f"decoding with {threads} threads", number, len(counts) + 2)
        loadings.append(_loading(plan, plan.data, steps, threads, device))
    on_part(f"training, {steps} steps", len(counts) + 1, len(counts) + 2)
    with deterministic_steps(plan, current()):
        training = _training(plan, plan.data, steps, device)
    on_part("", len(counts) + 2, len(counts) + 2)
    return DataSpeeds(
        environment(device),
        plan.hash,
        plan.data.size_px,
        plan.train.batch,
        loadings,
        training,
        loader_times_training=loadings[-1].images_per_s / training["images_per_s"],
    )


def _loading(plan: Plan, data: StoreSettings, steps: int, threads: int, device: torch.device) -> Loading:
    source = StoreSource(data, "train", device, keep=False, threads=threads)
    count = plan.train.batch // plan.train.accumulate
    order = open_order(plan.seed, data, plan.train, source)
    source.images(order.ids(0, count))  # starts the threads
    began_s, began_cpu_s = time.perf_counter(), _cpu_s(source)
    for step in range(1, steps + 1):
        for later in range(min(PREFETCHED_BATCHES, steps - step) + 1):
            source.expect(order.ids((step + later) * count, count))
        source.images(order.ids(step * count, count))
    wall_s, cpu_s = time.perf_counter() - began_s, _cpu_s(source) - began_cpu_s
    images = steps * count
    return Loading(threads, source.decoders is not None, images / wall_s, 1000 * cpu_s / images, images / cpu_s)


def _cpu_s(source: StoreSource) -> float:
    """Return the CPU time of this process and of its decoding processes."""
    return time.process_time() + (source.decoders.cpu_s if source.decoders else 0.0)


def _training(plan: Plan, data: StoreSettings, steps: int, device: torch.device) -> dict[str, float]:
    parts = replace(build_session(plan), opened=StoreSource(data, "train", device, keep=False))
    parts.ready()
    state, clock = new_state(parts), StepClock(parts.device)
    for _ in range(_WARM_UP_STEPS):
        update(parts, state, clock)
    clock.start()
    for _ in range(steps):
        update(parts, state, clock)
        clock.end_step()
    timed = clock.steps()
    whole_s, waited_s = sum(step.whole_s for step in timed), sum(step.parts_s["data"] for step in timed)
    return {"images_per_s": steps * plan.train.batch / (whole_s - waited_s), "data_share": waited_s / whole_s}


def measure_import(source: Path, on_progress: Callable[[Progress], None] = lambda progress: None) -> ImportSpeed:
    """Import the source with the usual options into a temporary folder."""
    with TemporaryDirectory() as folder:
        began_s, began_cpu_s = time.perf_counter(), time.process_time()
        options = ImportOptions(most_bad=1.0)
        outcome = import_images(source, Path(folder) / "store", options, Interrupt(), on_progress)
        wall_s, cpu_s = time.perf_counter() - began_s, time.process_time() - began_cpu_s
    done = outcome.done
    return ImportSpeed(done, outcome.about.quarantined, done / wall_s, 1000 * cpu_s / done, done / cpu_s)
