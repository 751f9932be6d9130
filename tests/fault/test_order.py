"""The order of the data: the same for any number of threads and ranks, and after a resume at any batch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.fault.promises import Promise
from tests.tiny_store import image_file, imported, parquet_of
from tintype.data.order import Shuffled
from tintype.data.sources import open_order
from tintype.data.store.importing import ImportOptions
from tintype.data.store.settings import StoreSettings
from tintype.data.store.source import StoreSource
from tintype.seams import Order
from tintype.settings import TrainSettings
from tintype.train.batch import PREFETCHED_BATCHES

CPU = torch.device("cpu")
COUNT, BATCH, BATCHES = 24, 8, 6
"""Two epochs of three batches."""
SEED = 3
BUCKETS = {"square": (), "buckets": ((16, 16), (12, 20))}
Open = Callable[[StoreSource, int], Order]
"""From a rank's source and number to its order."""


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("order")
    images = [image_file(n, (20, 20) if n % 3 else (30, 18)) for n in range(COUNT)]
    source = parquet_of(folder / "a.parquet", images, caption=[f"number {n}" for n in range(COUNT)])
    imported(source, folder / "store", ImportOptions(eval_share=0.0))
    return folder / "store"


def opened(store: Path, buckets: str, threads: int) -> StoreSource:
    settings = StoreSettings.model_validate({"path": str(store), "size_px": 16, "buckets": BUCKETS[buckets]})
    return StoreSource(settings, "train", CPU, keep=False, threads=threads)


def plan_order(source: StoreSource, rank: int) -> Order:
    data = StoreSettings(path="of the source", size_px=16)
    return open_order(SEED, data, TrainSettings(steps=BATCHES, batch=BATCH), source)


def read(sources: Sequence[StoreSource], open_: Open, first_batch: int) -> list[tuple[int, bytes]]:
    """The ids and pixels that all ranks read from a batch on, in the order of their positions."""
    world = len(sources)
    count = BATCH // world
    orders = [open_(source, rank) for rank, source in enumerate(sources)]
    seen: list[tuple[int, bytes]] = []
    for batch in range(first_batch, BATCHES):
        for rank, (source, order) in enumerate(zip(sources, orders, strict=True)):
            place = batch * BATCH + rank * count
            for later in range(1, PREFETCHED_BATCHES + 1):
                source.expect(order.ids(place + later * BATCH, count))
            ids = order.ids(place, count)
            seen += zip(ids, (image.numpy().tobytes() for image in source.images(ids)), strict=True)
    return seen


@pytest.fixture(scope="module")
def whole(store: Path) -> dict[str, list[tuple[int, bytes]]]:
    """Read in one process with one thread, without reading ahead."""
    found = {}
    for name in BUCKETS:
        source = opened(store, name, 1)
        ids = [plan_order(source, 0).ids(batch * BATCH, BATCH) for batch in range(BATCHES)]
        images = {id_: source.images([id_])[0].numpy().tobytes() for id_ in range(COUNT)}
        found[name] = [(id_, images[id_]) for some in ids for id_ in some]
    return found


CASES = list(product(BUCKETS, (1, 2, 4), (1, 2, 4), range(BATCHES)))


@pytest.mark.promise(8)
def test_the_order_is_the_same_for_all_threads_ranks_and_resumes(
    promise: Promise, store: Path, whole: dict[str, Any]
) -> None:
    """Read two epochs with 1, 2 and 4 threads and as 1, 2 and 4 ranks, from each batch on, with and without shapes."""
    for buckets, threads, world, first in promise.choose(CASES, 18):
        sources = [opened(store, buckets, threads) for _ in range(world)]
        seen = read(sources, plan_order, first)
        promise.count(seen == whole[buckets][first * BATCH :], (buckets, threads, world, first))


@pytest.mark.promise(8)
def test_each_epoch_has_every_image_once_and_shuffled(promise: Promise, whole: dict[str, Any]) -> None:
    """Count duplicates and missing images in each epoch, and compare the epochs with each other and with no order."""
    for name, seen in whole.items():
        ids = [id_ for id_, _ in seen]
        first, second = ids[:COUNT], ids[COUNT:]
        if name == "square":
            promise.count(sorted(first) == sorted(second) == list(range(COUNT)), "an epoch has each image once")
        promise.count(
            set(Counter(ids).values()) <= {1, 2, 3} and set(ids) == set(range(COUNT)), f"{name}: none missing"
        )
        for one, other in ((first, second), (first, list(range(COUNT))), (second, list(range(COUNT)))):
            same = sum(a == b for a, b in zip(one, other, strict=True))
            promise.count(same < COUNT // 2, f"{name}: {same} of {COUNT} in the same place")


@pytest.mark.promise(8, control="each rank shuffles for itself")
def test_control_an_order_that_depends_on_the_rank_is_noticed(
    promise: Promise, store: Path, whole: dict[str, Any]
) -> None:
    for world in (2, 4):
        sources = [opened(store, "square", 1) for _ in range(world)]
        seen = read(sources, lambda source, rank: Shuffled(SEED + rank, source), 0)
        promise.count(seen == whole["square"], world)
    assert len(promise.broken) == 2


@pytest.mark.promise(8, control="no shuffling")
def test_control_an_order_without_shuffling_is_noticed(promise: Promise) -> None:
    ids = list(range(COUNT)) * 2
    same = sum(a == b for a, b in zip(ids[:COUNT], ids[COUNT:], strict=True))
    promise.count(same < COUNT // 2, "epochs")
