"""Buckets in stages of smaller images: their shapes, their order, and whole runs."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.read_ahead import note_taken
from tests.stopping import stop_and_go_on
from tests.tiny import tiny_plan
from tests.tiny_store import image_file, imported, parquet_of
from tintype.data.buckets import Bucketed, scaled_shape, shapes
from tintype.data.fit import covering
from tintype.data.image_file import Encoded
from tintype.data.image_sets import decode
from tintype.data.sources import forget_sources, open_order, open_source
from tintype.data.store.importing import ImportOptions
from tintype.data.store.settings import StoreSettings
from tintype.errors import UserError
from tintype.plan import Plan
from tintype.runtime.clock import Clock
from tintype.runtime.interrupt import Interrupt
from tintype.settings import StageSettings, TrainSettings
from tintype.train import checkpoint
from tintype.train.batch import read_batch
from tintype.train.loop import train
from tintype.train.session import build_session
from tintype.train.state import new_state
from tintype.train.update import update
from tintype.vision import teacher_cache

CPU = torch.device("cpu")
SIZES = [(40, 40), (40, 35), (60, 35)]
"""Widths and heights of the images. The second is nearest to 28 × 36, but nearer to 16 × 16 than to 12 × 16."""
LARGE = [(32, 32), (28, 36), (12, 16)]
SMALL = [(16, 16), (12, 16), (8, 8)]
"""The same buckets in a stage of 16 px, in multiples of 4. One has the shape that another has in the last stage."""
REPA = "repa:teacher=scenes,hidden=8"
BATCHES = [8, 8, 8, 4, 4, 4]


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(teacher_cache, "_in_memory", {})
    images = [image_file(index, SIZES[index % 3]) for index in range(21)]
    table = parquet_of(tmp_path / "a.parquet", images, caption=[f"number {index}" for index in range(21)])
    imported(table, tmp_path / "store", ImportOptions(eval_share=0))
    forget_sources()
    return tmp_path / "store"


def staged(store: Path, batch: int = 8, until: int = 3, **options: Any) -> Plan:
    buckets = str([list(shape) for shape in LARGE])
    data = f'data={{"kind":"store","path":"{store}","size_px":32,"buckets":{buckets}}}'
    stages = f"train.stages=[{{size_px: 16, until: {until}, batch: {batch}}}]"
    return tiny_plan(data, stages, **options)


@pytest.mark.parametrize(("buckets", "unit"), [(LARGE[:1], 4), (LARGE[:2], 12)], ids=["one bucket", "two"])
def test_only_images_of_several_shapes_come_in_units_of_all_stages(
    buckets: list[tuple[int, int]], unit: int, store: Path
) -> None:
    """The order of a plan with one bucket is what it was before stages took several."""
    data = StoreSettings(path=str(store), size_px=32, buckets=tuple(buckets))
    settings = TrainSettings(steps=6, batch=4, stages=(StageSettings(size_px=16, until=3, batch=12),))
    order = open_order(0, data, settings, open_source(data, "train", CPU))
    assert isinstance(order, Bucketed) and order.unit == unit


def distortion(shape: tuple[int, int], found: tuple[int, int]) -> float:
    return abs(math.log(shape[0] / shape[1]) - math.log(found[0] / found[1]))


@pytest.mark.parametrize(("size_px", "stage_px", "unit_px"), [(1024, 512, 32), (1024, 256, 32), (64, 48, 8)])
def test_a_shape_is_scaled_to_multiples_of_the_nearest_proportions(size_px: int, stage_px: int, unit_px: int) -> None:
    assert scaled_shape((size_px, size_px), size_px, stage_px, unit_px) == (stage_px, stage_px)
    multiples = range(unit_px, size_px, unit_px)
    for shape in shapes(size_px, unit_px, 2.0):
        assert scaled_shape(shape, size_px, size_px, unit_px) == shape
        high_px, wide_px = (side * stage_px / size_px for side in shape)
        near = [
            (height, width)
            for height in multiples
            for width in multiples
            if abs(height - high_px) < unit_px and abs(width - wide_px) < unit_px and height * width <= stage_px**2
        ]
        found = scaled_shape(shape, size_px, stage_px, unit_px)
        assert found in near
        assert distortion(shape, found) == pytest.approx(min(distortion(shape, one) for one in near))
        assert found[::-1] == scaled_shape(shape[::-1], size_px, stage_px, unit_px)
        assert found[0] <= shape[0] and found[1] <= shape[1], "no image is too small for it"


def test_a_stage_has_the_same_images_in_scaled_shapes_and_batches_of_its_own(store: Path) -> None:
    plan = staged(store, techniques=[f"{REPA},cache=memory"])
    assert plan.image_shapes == (*LARGE, *SMALL) and plan.fewest_tokens == 4
    parts, live = build_session(plan), build_session(staged(store, techniques=[REPA]))
    parts.ready(), live.ready()
    state, seen, expected = new_state(parts), [], []
    parts.denoiser.register_forward_pre_hook(lambda module, args: seen.append((len(args[0]), *args[0].shape[2:])))
    for step, batch in enumerate(BATCHES):
        found, uncached = (read_batch(one, state.images_seen, batch, step, Clock(CPU)) for one in (parts, live))
        (bucket,) = {id_ % 3 for id_ in found.ids}
        shape = (SMALL if step < 3 else LARGE)[bucket]
        for id_, image_CHW in zip(found.ids, found.image_BCHW, strict=True):  # type: ignore[arg-type]
            whole_CHW = decode(Encoded("", image_file(id_, SIZES[bucket])))
            assert torch.equal(image_CHW, covering(whole_CHW, *shape))
        torch.testing.assert_close(found.seen["repa"], uncached.seen["repa"], rtol=2**-10, atol=1e-4)
        expected.append((batch, *shape))
        assert update(parts, state, Clock(CPU)).finite
    assert seen == expected and {(8, 12, 16), (4, 28, 36)} < set(seen), "images of one bucket in both stages"


def test_a_run_with_a_cached_teacher_resumes_across_the_stages_as_if_it_had_not_stopped(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one that stops reads its teacher's tokens ahead, in shapes and batches that change."""
    plan = staged(store, techniques=[f"{REPA},cache=memory", "resolution-aware"])
    with monkeypatch.context() as patch:
        patch.setattr(teacher_cache, "_AHEAD_ON", frozenset({"cpu"}))
        taken = note_taken(patch)
        stop_and_go_on(plan, tmp_path / "stopped", 2)
    assert taken == [False, True, False, True, True, True], "all but the first after each start"
    forget_sources()
    assert train(plan, tmp_path / "whole", Interrupt()).finished
    stopped, whole = (
        checkpoint.read(checkpoint.folder_of(tmp_path / run / "checkpoints", 6))[0] for run in ("stopped", "whole")
    )
    assert stopped.keys() == whole.keys() and all(torch.equal(stopped[key], whole[key]) for key in whole)


def test_a_stage_that_ends_within_images_of_one_shape_is_refused(store: Path) -> None:
    assert staged(store, batch=6, until=2).train.alike == 12
    with pytest.raises(
        UserError,
        match=r"12 images in a row have the same shape .* until step 3 ends after 18 images.*; change its end",
    ):
        staged(store, batch=6)
