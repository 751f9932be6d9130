from __future__ import annotations

import os
from pathlib import Path
from threading import Thread

import pytest
import torch
from torch import Tensor

from tests.tiny_store import tiny_store
from tintype.data.decoding.threads import decoding_pool, share_cores, usual_threads
from tintype.data.store import source as module
from tintype.data.store.settings import StoreSettings
from tintype.data.store.source import Prefetch, StoreSource
from tintype.errors import UserError


def counting(seen: list[int]) -> Prefetch:
    def write(id_: int, out_CHW: Tensor) -> None:
        seen.append(id_)
        if id_ == 99:
            raise UserError("image 99 is damaged")
        out_CHW.fill_(id_)

    return Prefetch(write, lambda id_: (2, 4), threads=2, pinned=False)


def values(image_BCHW: Tensor) -> list[int]:
    assert image_BCHW.shape[1:] == (3, 2, 4) and bool((image_BCHW == image_BCHW[:, :1, :1, :1]).all())
    return image_BCHW[:, 0, 0, 0].tolist()


def test_several_batches_are_begun_and_each_is_made_once() -> None:
    seen: list[int] = []
    ahead = counting(seen)
    batches = [[1, 2, 1], [3, 4, 5], [6], list(range(20, 40))]
    for ids in (*batches, batches[1]):
        ahead.expect(ids)
    assert [values(ahead.take(ids)) for ids in batches] == batches
    assert sorted(seen) == sorted(id_ for ids in batches for id_ in ids)


def test_what_was_expected_and_passed_over_is_let_go_and_what_was_not_expected_is_made() -> None:
    ahead = counting([])
    for ids in ([1], [2], [3]):
        ahead.expect(ids)
    assert values(ahead.take([2])) == [2] and list(ahead._begun) == [(3,)]
    assert values(ahead.take([7, 8])) == [7, 8] and list(ahead._begun) == [(3,)]


def test_no_more_is_begun_than_memory_is_lent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST_PREFETCHED_BYTES", 40)
    ahead = counting([])
    for ids in ([1, 2], [3], [4]):  # 48 bytes, and 24 each
        ahead.expect(ids)
    assert list(ahead._begun) == [(1, 2)]
    ahead.take([1, 2])
    ahead.expect([3])
    ahead.expect([4])
    assert list(ahead._begun) == [(3,), (4,)]


def test_a_damaged_image_is_reported_when_its_batch_is_asked_for() -> None:
    ahead = counting([])
    ahead.expect([1, 99])
    with pytest.raises(UserError, match="99 is damaged"):
        ahead.take([1, 99])


def test_a_decoding_thread_computes_alone_and_all_others_as_before() -> None:
    own = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        pool = decoding_pool(3)
        assert [pool.submit(torch.get_num_threads).result() for _ in range(6)] == [1] * 6
        found = [torch.get_num_threads()]
        thread = Thread(target=lambda: found.append(torch.get_num_threads()))
        thread.start()
        thread.join()
        assert found == [2, 2]
    finally:
        torch.set_num_threads(own)


def test_the_number_of_threads_does_not_change_the_images(tmp_path: Path) -> None:
    settings = StoreSettings(path=str(tiny_store(tmp_path, 20)), size_px=16)
    one, three = (StoreSource(settings, "train", torch.device("cpu"), keep=False, threads=n) for n in (1, 3))
    assert torch.equal(one.images([3, 1, 0, 5]), three.images([3, 1, 0, 5]))


def test_cores_are_shared_with_the_other_ranks_and_the_other_runs_of_a_study(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(24)))
    assert usual_threads() == 16
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert usual_threads() == 6
    try:
        share_cores(3)
        assert usual_threads() == 2
        monkeypatch.setenv("LOCAL_WORLD_SIZE", "100")
        assert usual_threads() == 1
    finally:
        share_cores(1)
