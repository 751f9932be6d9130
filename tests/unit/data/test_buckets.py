from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from tests.tiny import tiny_plan
from tests.tiny_store import image_file, imported, parquet_of
from tintype.cli import app
from tintype.data.buckets import Bucketed, nearest_shape, shapes
from tintype.data.fit import covering, stretched
from tintype.data.image_file import Encoded
from tintype.data.image_sets import decode
from tintype.data.sources import forget_sources, open_held_out
from tintype.data.store.importing import ImportOptions
from tintype.data.store.source import StoreSource
from tintype.errors import UserError
from tintype.evaluation.fit import FEWEST_SAMPLES, fit_protocol
from tintype.evaluation.protocol import Protocol
from tintype.plan import Plan
from tintype.runtime.clock import Clock
from tintype.runtime.interrupt import Interrupt
from tintype.settings import LARGEST_PX
from tintype.train.loop import train
from tintype.train.session import build_session
from tintype.train.state import new_state
from tintype.train.update import update

CPU = torch.device("cpu")
SIZES = [(20, 20), (30, 20), (20, 30), (40, 20), (21, 20)]
BUCKETS = "[[16,16],[12,20],[20,12]]"


def in_buckets(*sizes: int) -> torch.Tensor:
    """Images of buckets of these sizes, mixed."""
    mixed = torch.cat([torch.full((size,), bucket) for bucket, size in enumerate(sizes)])
    return mixed[torch.randperm(len(mixed), generator=torch.Generator().manual_seed(0))]


@pytest.mark.parametrize(
    ("sizes", "unit"), [((37, 5, 0, 11), 4), ((3, 2), 8), ((1,), 3), ((64, 32), 16), ((100, 1), 7)]
)
def test_nothing_is_lost_and_what_fills_no_unit_comes_in_the_next_epoch(sizes: tuple[int, ...], unit: int) -> None:
    bucket_N = in_buckets(*sizes)
    order = Bucketed(3, bucket_N, unit)
    rounds = unit  # then each bucket has given whole units, so that all must be there equally often
    stream = order.ids(0, rounds * len(bucket_N))
    assert set(Counter(stream).values()) == {rounds} and len(set(stream)) == len(bucket_N)
    ids_UB = torch.tensor(stream).view(-1, unit)
    assert bool((bucket_N[ids_UB] == bucket_N[ids_UB[:, :1]]).all())
    for epoch in range(1, rounds):
        units = sum(epoch * size // unit for size in sizes)
        seen = Counter(stream[: units * unit])
        for bucket, size in enumerate(sizes):
            times = [seen[id_] for id_ in (bucket_N == bucket).nonzero().flatten().tolist()]
            assert sum(times) == epoch * size // unit * unit
            assert not times or (epoch - 1 - unit // size <= min(times) and max(times) <= epoch)


def test_the_order_is_a_pure_function_of_seed_and_position() -> None:
    bucket_N = in_buckets(37, 5, 11)
    whole = Bucketed(9, bucket_N, 6).ids(0, 300)
    for some in (1, 2, 3, 6, 50):
        order = Bucketed(9, bucket_N, 6)
        assert [id_ for first in range(0, 300, some) for id_ in order.ids(first, some)] == whole
    assert Bucketed(10, bucket_N, 6).ids(0, 300) != whole
    of_units = bucket_N[torch.tensor(whole)[::6]].tolist()
    assert of_units != sorted(of_units) and whole[:48] != whole[48:96]


def test_shapes_have_no_more_pixels_than_the_square_and_no_image_is_too_small() -> None:
    found = shapes(256, 16, 2.0)
    assert (256, 256) in found and (192, 336) in found and (336, 192) in found
    for height, width in found:
        assert height % 16 == width % 16 == 0 and 0.85 * 256**2 < height * width <= 256**2
        assert max(height, width) <= 2 * min(height, width)
    for long in range(256, 900, 7):
        for height, width in ((256, long), (long, 256)):
            shape = found[int(nearest_shape(torch.tensor([height]), torch.tensor([width]), found))]
            assert shape[0] <= height and shape[1] <= width


@pytest.fixture
def store(tmp_path: Path) -> Path:
    images = [image_file(index, SIZES[index % len(SIZES)]) for index in range(23)]
    table = parquet_of(tmp_path / "a.parquet", images, caption=[f"number {index}" for index in range(23)])
    imported(table, tmp_path / "store", ImportOptions(eval_share=0))
    return tmp_path / "store"


def bucketed(store: Path, *more: str, **options: Any) -> Plan:
    forget_sources()
    data = f'data={{"kind":"store","path":"{store}","size_px":16,"buckets":{BUCKETS}}}'
    return tiny_plan(data, *more, **options)


def test_an_image_is_cut_to_the_nearest_shape(store: Path) -> None:
    plan = bucketed(store)
    source = StoreSource(plan.data, "train", CPU)  # type: ignore[arg-type]
    expected = {0: (16, 16), 1: (12, 20), 2: (20, 12), 3: (12, 20), 4: (16, 16)}
    for id_ in range(10):
        image_BCHW = source.images([id_])
        whole_CHW = decode(Encoded("", image_file(id_, SIZES[id_ % 5])))
        assert torch.equal(image_BCHW[0], covering(whole_CHW, *expected[id_ % 5]))


def test_an_image_is_stretched_to_the_nearest_shape_where_it_is_to_be_resized(store: Path) -> None:
    plan = bucketed(store, "data.fit=resize")
    assert plan.hash != bucketed(store).hash == bucketed(store, "data.fit=crop").hash
    wide_CHW = decode(Encoded("", image_file(1, SIZES[1])))
    for processes in (False, True):
        source = StoreSource(plan.data, "train", CPU, processes=processes)  # type: ignore[arg-type]
        assert torch.equal(source.images([1])[0], stretched(wide_CHW, 12, 20))
    assert not torch.equal(stretched(wide_CHW, 12, 20), covering(wide_CHW, 12, 20))
    assert plan.data.squared.model_dump()["fit"] == "crop", "squares are cut, as proportions far off would be squashed"
    assert plan.data.held_out(2, shaped=True).model_dump()["fit"] == "resize"
    with pytest.raises(UserError, match=r"data: fit: resize is for several buckets"):
        bucketed(store, "data.buckets=[[16,16]]", "data.fit=resize")


def test_an_image_need_only_cover_its_own_shape(tmp_path: Path) -> None:
    """Images that were cut to their shapes before have a short side below size_px. As squares they are refused."""
    images = [image_file(index, ((16, 16), (20, 12), (12, 20))[index % 3]) for index in range(9)]
    table = parquet_of(tmp_path / "a.parquet", images, caption=[f"number {index}" for index in range(9)])
    imported(table, tmp_path / "store", ImportOptions(eval_share=0.5))
    data = bucketed(tmp_path / "store").data
    source = StoreSource(data, "train", CPU)  # type: ignore[arg-type]
    assert all(source.shape(id_) == source.images([id_]).shape[2:] for id_ in range(len(source)))
    held_out = len(open_held_out(data, 2, CPU, shaped=True))
    fitted = fit_protocol(Protocol(shapes="buckets", encoders=()), data).protocol
    assert fitted.validation_count == fitted.reference_count == max(held_out, FEWEST_SAMPLES)
    with pytest.raises(UserError, match=r"data\.size_px=16 on a side.*; or score images in .* \(shapes=buckets\)"):
        open_held_out(data, 2, CPU)
    larger = bucketed(tmp_path / "store", "data.size_px=20", "data.buckets=[[20,20],[16,24],[24,16]]").data
    with pytest.raises(UserError, match=r"do not cover the nearest shape of data\.buckets; images are never enlarged"):
        StoreSource(larger, "train", CPU)  # type: ignore[arg-type]


def test_a_run_trains_on_every_shape_and_resumes_where_it_stopped(store: Path, tmp_path: Path) -> None:
    plan = bucketed(store, "model.resolution_embeds=true", techniques=["tread"])
    parts = build_session(plan)
    state, shapes_seen = new_state(parts), set()
    for _ in range(plan.train.steps):
        shapes_seen.add(tuple(parts.source.images(parts.order.ids(state.images_seen, 4)).shape[2:]))
        update(parts, state, Clock(CPU))
    assert len(shapes_seen) == 3
    interrupt = Interrupt()

    def stop(progress: Any) -> None:
        if progress.step == 3:
            interrupt.signal = 2

    assert train(plan, tmp_path / "run", interrupt, stop).step == 3
    assert train(plan, tmp_path / "run", Interrupt()).finished
    assert train(plan, tmp_path / "whole", Interrupt()).finished
    ends = [sorted((tmp_path / run / "checkpoints").glob("*6*/*.safetensors")) for run in ("run", "whole")]
    assert ends[0] and [file.read_bytes() for file in ends[0]] == [file.read_bytes() for file in ends[1]]


def test_what_needs_one_shape_is_refused_by_name(store: Path) -> None:
    for more, words in (
        ("run.latents=disk", "run.latents needs images of the same shape"),
        ("model.patch=8", "12 × 20 is not a multiple of 8"),
        ("data.buckets=[[12,20]]", "the square 16 × 16 must be one of them"),
        ("data.buckets=[[16,16],[16,20]]", "16 × 20 is empty or has more than size_px² pixels"),
    ):
        with pytest.raises(Exception, match=words):
            bucketed(store, more)


def test_shapes_are_part_of_the_hash_and_evaluation_is_square(store: Path) -> None:
    plan = bucketed(store)
    assert plan.hash != bucketed(store, "data.buckets=[]").hash
    assert plan.data.held_out(3).shapes == ((16, 16),)


def test_the_command_prints_shapes_that_a_plan_takes(store: Path) -> None:
    large = CliRunner().invoke(app, ["data", "shapes", "--size", str(LARGEST_PX), "--unit", "64"]).output
    assert f"[{LARGEST_PX},{LARGEST_PX}]" in large, "the command takes all sizes that a plan does"
    printed = CliRunner().invoke(app, ["data", "shapes", "--size", "16", "--unit", "4", "--ratio", "2"]).output.strip()
    assert printed == "data.buckets=[[12,20],[16,16],[20,12]]"
    assert bucketed(store, printed).data.shapes == ((12, 20), (16, 16), (20, 12))


@pytest.mark.slow
def test_images_above_1024_px_are_cut_and_trained_on(tmp_path: Path) -> None:
    table = parquet_of(
        tmp_path / "a.parquet", [image_file(index, (1400, 1200)) for index in range(4)], caption=["a"] * 4
    )
    imported(table, tmp_path / "store", ImportOptions(eval_share=0))
    forget_sources()
    buckets = "[[1152,1152],[1056,1248]]"
    data = f'data={{"kind":"store","path":"{tmp_path / "store"}","size_px":1152,"buckets":{buckets}}}'
    parts = build_session(
        tiny_plan(data, "model.patch=96", "train.batch=2", techniques=["repa:teacher=scenes,hidden=8"])
    )
    parts.ready()
    assert parts.source.images([0]).shape == (1, 3, 1056, 1248)
    assert update(parts, new_state(parts), Clock(CPU)).finite
    with pytest.raises(UserError, match="size_px: must be at most 4096"):
        tiny_plan(f'data={{"kind":"store","path":"{tmp_path / "store"}","size_px":4128}}')
