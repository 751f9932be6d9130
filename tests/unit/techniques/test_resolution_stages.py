from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.bounds import distance
from tests.ranks import run_ranks
from tests.stopping import stop_and_go_on
from tests.tiny import tiny_plan
from tests.tiny_store import image_file, imported, parquet_of
from tintype.bench.data import measure_data
from tintype.bench.run import compare, measure
from tintype.data.sources import forget_sources, open_source
from tintype.data.store import source as store_source
from tintype.data.store.importing import ImportOptions
from tintype.data.store.source import Prefetch
from tintype.errors import UserError
from tintype.plan import Plan, diff
from tintype.runtime.clock import Clock
from tintype.runtime.interrupt import Interrupt
from tintype.sampling.velocity_bias import mean_target
from tintype.settings import StageSettings
from tintype.train import checkpoint
from tintype.train.batch import read_batch
from tintype.train.loop import train
from tintype.train.prepare import measure_latents, prepare_images
from tintype.train.session import Session, build_session
from tintype.train.state import new_state
from tintype.train.update import update

CPU = torch.device("cpu")
LARGE = "data.size_px=32"
THREE = "resolution-stages:sizes=[16,24],until=[2,3]"
SIZES = [16, 16, 24, 32, 32, 32]
"""Sizes of the images of each step of the tiny plan with `THREE`."""


@pytest.fixture(autouse=True)
def _fresh_sources() -> None:
    forget_sources()


@pytest.fixture(params=["scenes", "store", "mixture"])
def data(request: pytest.FixtureRequest, tmp_path: Path) -> list[str]:
    return [] if request.param == "scenes" else data_of(request.param, tmp_path)


def data_of(kind: str, folder: Path) -> list[str]:
    images = [image_file(index, (40 + index % 3, 36)) for index in range(23)]
    table = parquet_of(folder / "a.parquet", images, caption=[f"number {index}" for index in range(23)])
    imported(table, folder / "store", ImportOptions(eval_share=0))
    store = f'{{"kind":"store","path":"{folder / "store"}"}}'
    if kind == "store":
        return [f"data={store}"]
    return [f'data={{"kind":"mixture","sources":{{"a":{{"data":{store}}},"b":{{"data":{{"count":9}}}}}}}}']


def staged(data: Sequence[str] = (), *more: str, techniques: Sequence[str] = (THREE,)) -> Plan:
    return tiny_plan(*data, LARGE, *more, techniques=techniques)


def batch_at(parts: Session, step: int) -> tuple[Tensor, Sequence[int], Sequence[str]]:
    batch = read_batch(parts, step * 4, 4, step, Clock(CPU))
    assert batch.image_BCHW is not None
    return batch.image_BCHW, batch.ids, batch.captions


def test_each_step_sees_the_images_of_its_size_of_the_records_that_it_would_see_without(data: list[str]) -> None:
    parts, whole = build_session(staged(data)), build_session(staged(data, techniques=()))
    for step, size_px in enumerate(SIZES):
        image_BCHW, ids, captions = batch_at(parts, step)
        _, other_ids, other_captions = batch_at(whole, step)
        assert (ids, captions) == (other_ids, other_captions)
        of_that_size = open_source(tiny_plan(*data, f"data.size_px={size_px}").data, "train", CPU)
        assert torch.equal(image_BCHW, of_that_size.images(ids)) and image_BCHW.shape == (4, 3, size_px, size_px)


@pytest.mark.parametrize("techniques", [[], ["tread", "resolution-aware", "contrastive"]], ids=" ".join)
def test_the_denoiser_trains_on_each_size_in_every_micro_batch(data: list[str], techniques: list[str]) -> None:
    parts = build_session(staged(data, "train.accumulate=2", techniques=[THREE, *techniques]))
    state, seen = new_state(parts), []
    parts.denoiser.register_forward_pre_hook(lambda module, args: seen.append(tuple(args[0].shape)))
    for _ in SIZES:
        assert update(parts, state, Clock(CPU)).finite
    assert seen == [(2, 3, size_px, size_px) for size_px in SIZES for _ in range(2)]


def test_images_are_made_ready_in_the_sizes_that_the_steps_ask_for() -> None:
    plan = staged()
    for step, sizes in ((0, [16, 24, 32]), (2, [24, 32]), (4, [32])):
        forget_sources()
        parts = build_session(plan)
        prepare_images(parts, step * 4, Interrupt())
        for size_px in (16, 24, 32):
            source = open_source(plan.data.at_size(size_px), "train", CPU)
            steps = [number for number, size in enumerate(SIZES) if size == size_px and number >= step]
            wanted = {id_ for number in steps for id_ in parts.order.ids(number * 4, 4)}
            assert set(source.resident.have_N.nonzero().flatten().tolist()) == wanted  # type: ignore[attr-defined]
            assert bool(wanted) == (size_px in sizes)


def test_pictures_of_the_next_stage_are_decoded_ahead_in_their_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_source, "_MOST_CACHED_BYTES", {})
    parts = build_session(staged(data_of("store", tmp_path), "train.accumulate=2"))
    begun, take = [], Prefetch.take

    def watched(self: Prefetch, ids: Sequence[int]) -> Tensor:
        begun.append(tuple(ids) in self._begun)
        return take(self, ids)

    monkeypatch.setattr(Prefetch, "take", watched)
    state = new_state(parts)
    for _ in SIZES:
        update(parts, state, Clock(CPU))
    assert begun == [False] + [True] * 11


BATCHES = "resolution-stages:sizes=[16,24],until=[2,3],batches=[12,8]"
SEEN = [0, 12, 24, 32, 36, 40, 44]
"""Images before each step of the tiny plan with `BATCHES`, and after the last."""


def test_positions_and_steps_follow_from_the_batches_of_the_stages() -> None:
    train_settings = staged(techniques=[BATCHES]).train
    assert train_settings.batches == (12, 8, 4)
    assert [train_settings.images_before(step) for step in range(7)] == SEEN
    assert train_settings.images_before(9) == 44 + 3 * 4
    for image in range(60):
        step = train_settings.step_at(image)
        assert train_settings.images_before(step) <= image < train_settings.images_before(step + 1)
        assert train_settings.batch_at(step) == train_settings.images_before(step + 1) - train_settings.images_before(
            step
        )
    whole = staged(techniques=()).train
    assert [whole.images_before(step) for step in (0, 3, 9)] == [0, 12, 36] and whole.step_at(13) == 3


@pytest.mark.parametrize("kind", ["scenes", "store"])
def test_each_stage_reads_batches_of_its_own_size_and_all_are_prefetched(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_source, "_MOST_CACHED_BYTES", {})
    data = [] if kind == "scenes" else data_of(kind, tmp_path)
    parts = build_session(staged(data, "train.accumulate=2", techniques=[BATCHES]))
    begun, take = [], Prefetch.take

    def watched(self: Prefetch, ids: Sequence[int]) -> Tensor:
        begun.append((len(ids), tuple(ids) in self._begun))
        return take(self, ids)

    monkeypatch.setattr(Prefetch, "take", watched)
    state, seen = new_state(parts), []
    parts.denoiser.register_forward_pre_hook(lambda module, args: seen.append(tuple(args[0].shape[::2])))
    for step in range(6):
        assert state.images_seen == SEEN[step]
        assert update(parts, state, Clock(CPU)).finite
    micro = [6, 6, 6, 6, 4, 4, 2, 2, 2, 2, 2, 2]
    assert seen == list(zip(micro, [size for size in SIZES for _ in range(2)], strict=True))
    if kind == "store":
        assert [count for count, _ in begun] == micro and [there for _, there in begun] == [False] + [True] * 11


def test_a_run_with_batches_of_stages_resumes_where_it_stopped(tmp_path: Path) -> None:
    plan = staged(["run.text_embeddings=live"], techniques=[BATCHES, "ema"])
    stop_and_go_on(plan, tmp_path / "stopped", 2)
    assert train(plan, tmp_path / "whole", Interrupt()).finished
    stopped, whole = (
        checkpoint.read(checkpoint.folder_of(tmp_path / run / "checkpoints", 6))[0] for run in ("stopped", "whole")
    )
    assert stopped.keys() == whole.keys() and all(torch.equal(stopped[key], whole[key]) for key in whole)
    lines = [json.loads(line) for line in (tmp_path / "whole" / "metrics.jsonl").read_text().splitlines()]
    assert [line["images"] for line in lines] == SEEN[1:]
    speeds = [line["images_per_s"] * line["seconds"] for line in lines]
    assert speeds == pytest.approx([12, 12, 8, 4, 4, 4])


def test_a_batch_of_a_stage_is_refused_where_it_cannot_be_had(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"stages: batch \(9\) must be a multiple of accumulate \(2\)"):
        staged([], "train.accumulate=2", techniques=["resolution-stages:batches=[9]"])
    mixture = data_of("mixture", tmp_path)
    with pytest.raises(UserError, match="a mixture needs the same batch size"):
        staged(mixture, techniques=["resolution-stages:batches=[8]"])
    staged(mixture, techniques=["resolution-stages:batches=[4]"])


def train_in(folder: str) -> None:
    """With an eps that keeps AdamW from making steps of what rounding left."""
    assert train(staged([], "train.batch=6", "optimizer.eps=1e-3"), Path(folder), Interrupt()).finished


@pytest.mark.slow
def test_two_ranks_train_what_one_does(tmp_path: Path) -> None:
    run_ranks(2, train_in, str(tmp_path / "two"))
    train_in(str(tmp_path / "one"))
    one, two = (checkpoint.read(checkpoint.folder_of(tmp_path / run / "checkpoints", 6))[0] for run in ("one", "two"))
    assert one.keys() == two.keys() and max(distance(one[key], two[key]) for key in one) < 2e-5, "6 steps of 1e-3"
    lines = (tmp_path / "two" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["size_px"] for line in lines] == SIZES


def test_latents_and_mean_velocity_are_those_of_the_last_stage() -> None:
    parts, whole = build_session(staged()), build_session(staged(techniques=()))
    for one, other in zip(measure_latents(parts)[:2], measure_latents(whole)[:2], strict=True):
        assert torch.equal(one, other)
    assert torch.equal(mean_target(parts, 32), mean_target(whole, 32))


def test_stages_are_a_value_of_the_plan() -> None:
    without = tiny_plan(LARGE)
    assert without.hash == tiny_plan(LARGE, "train.stages=[]").hash
    halves = staged(techniques=["resolution-stages"])
    assert halves.train.stages == (StageSettings(size_px=16, until=3),)
    assert halves.hash == tiny_plan(LARGE, "train.stages=[{size_px: 16, until: 3}]").hash != without.hash
    assert halves.hash != tiny_plan(LARGE, "train.stages=[{size_px: 16, until: 3, batch: 8}]").hash
    assert diff(without, halves) == {"train.stages": ("none", [{"size_px": 16, "until": 3, "batch": None}])}
    thirds = staged(techniques=["resolution-stages:sizes=[16,24]"])
    assert [stage.until for stage in thirds.train.stages] == [2, 4]
    shares = staged(techniques=["resolution-stages:sizes=[16,24],until=[0.5,5]"])
    assert [stage.until for stage in shares.train.stages] == [3, 5]


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("sizes=[18]", "18 px is not a multiple of 4"),
        ("sizes=[12]", "size_px: must be at least 16"),
        ("sizes=[32]", r"the sizes \(32\) must increase and be smaller than data.size_px \(32\)"),
        ("sizes=[24,16]", r"the sizes \(24, 16\) must increase"),
        ("until=[6]", r"stages end \(6\) must increase and be smaller than train.steps \(6\)"),
        ("until=[0]", "until: must be at least 1"),
        ("sizes=[16,24],until=[3,3]", r"stages end \(3, 3\) must increase"),
        ("sizes=[16,24],until=[3]", r"sizes has 2 values, but until has 1"),
        ("sizes=[16,24],batches=[8]", r"sizes has 2 values, but batches has 1"),
        ("batches=[0]", "batch: must be at least 1"),
        ("sizes=[]", "sizes"),
        ("until=[1.5]", "a share of the training"),
    ],
)
def test_stages_that_cannot_be_had_are_refused(option: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        staged(techniques=[f"resolution-stages:{option}"])


@pytest.mark.parametrize(
    ("more", "technique", "words"),
    [
        ([], "tread:share=0.05", "tread: a share of 0.05 of 16 tokens is less than one"),
        (["run.latents=disk"], "ema", "run.latents needs images of the same shape; leave it or train.stages out"),
        (
            ["data.kind=store", "data.path=DIR", "data.buckets=[[32,32],[4,32]]"],
            "ema",
            r"at 16 px, 4 × 32 would give images with a side shorter than 4 px .*; leave that shape out of",
        ),
    ],
)
def test_what_needs_one_shape_is_refused_by_name(more: list[str], technique: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        staged([], *more, techniques=["resolution-stages", technique])
    staged([], *more, techniques=[technique])


def test_the_bench_measures_no_plan_of_several_sizes(tmp_path: Path) -> None:
    store = data_of("store", tmp_path)
    with pytest.raises(UserError, match=r"train\.stages: the plan trains on images of several sizes"):
        measure(staged(), 1)
    with pytest.raises(UserError, match=r"train\.stages: the plan trains on images of several sizes"):
        compare(tiny_plan(LARGE), ["resolution-stages"], [], [], 1)
    with pytest.raises(UserError, match=r"train\.stages: the plan trains on images of several sizes"):
        measure_data(staged(store), 1)
