"""The cache of latents: what it keeps, whom it serves, and what it refuses."""

from __future__ import annotations

import json
import shutil
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.ranks import run_ranks
from tests.slow import slow_unless
from tests.tiny import tiny_plan
from tests.tiny_autoencoders import chosen, option, write_autoencoder
from tests.tiny_store import tiny_store
from tests.tiny_tuning import tuned_plan
from tests.tiny_vae import write_tiny_vae
from tintype.data.scenes import source as scenes
from tintype.data.scenes.render import render
from tintype.data.scenes.source import SceneSource, ScenesSettings
from tintype.data.sources import forget_sources, open_source
from tintype.data.store import source as stores
from tintype.data.store.layout import open_store
from tintype.errors import UserError
from tintype.plan import Plan
from tintype.runtime.interrupt import Interrupt
from tintype.runtime.rows import DiskRows
from tintype.seams import Draws, Tokenizer
from tintype.tokenizer_lab.fill_cache import CachedLatents, fill_cache
from tintype.tokenizers import latent
from tintype.tokenizers.flux1 import Flux1Settings
from tintype.tokenizers.latent import LatentTokenizer
from tintype.tokenizers.latent_cache import HEADER_NAME, ROWS_NAME, LatentCache, open_latent_cache
from tintype.tokenizers.small_vae import SmallVae, SmallVaeShape, Vae
from tintype.train.loop import train
from tintype.train.parts import build_model
from tintype.train.prepare import prepare_ids, prepare_images
from tintype.train.record import RunRecord
from tintype.train.session import build_session

CPU = torch.device("cpu")
KINDS = ("small-vae", "flux1", "flux1-sampled")


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TINTYPE_CACHE", str(tmp_path / "cache"))
    forget_sources()
    yield
    forget_sources()


@pytest.fixture(scope="module")
def vae(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_vae(tmp_path_factory.mktemp("vae"))


def plan_of(kind: str, vae: Path, *assignments: str, techniques: tuple[str, ...] = (), disk: bool = True) -> Plan:
    if kind == "small-vae":
        tokenizer = f"tokenizer:to.kind=small-vae,to.folder={vae}"
    else:
        write_autoencoder("flux1")
        tokenizer = option("flux1") + (",to.posterior=sample" if kind == "flux1-sampled" else "")
    kept = ["run.latents=disk"] if disk else []
    return tiny_plan(*kept, *assignments, techniques=[tokenizer, *techniques])


def losses(plan: Plan, folder: Path) -> list[dict[str, Any]]:
    assert train(plan, folder, Interrupt()).finished
    return [{key: line[key] for key in ("step", "loss", "flow")} for line in RunRecord(folder).lines]


def opened(plan: Plan, device: torch.device = CPU) -> LatentCache:
    tokenizer, source = plan.tokenizer.build(CPU), open_source(plan.data, "train", CPU)
    folder = plan.run.latents_folder
    return open_latent_cache(plan.tokenizer.kind, tokenizer, plan.data, source, device, batch=4, folder=folder)


def filled(plan: Plan, verify: bool = False) -> CachedLatents:
    return fill_cache(plan, Interrupt(), verify)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How many images were encoded, and how many fetched."""
    counted: Counter[str] = Counter()
    real = LatentTokenizer.moments

    def moments(self: Any, image_BCHW: Tensor) -> Any:
        counted["encoded"] += len(image_BCHW)
        return real(self, image_BCHW)

    monkeypatch.setattr(LatentTokenizer, "moments", moments)
    images = SceneSource.images

    def fetched(self: Any, ids: Any) -> Tensor:
        counted["fetched"] += len(ids)
        return images(self, ids)

    monkeypatch.setattr(SceneSource, "images", fetched)
    return counted


@pytest.mark.usefixtures("other_rounding")
@pytest.mark.parametrize("kind", slow_unless(lambda kind: kind == "small-vae", KINDS))
def test_a_run_learns_the_same_without_a_cache_with_a_cold_one_and_with_a_full_one(
    kind: str, vae: Path, tmp_path: Path
) -> None:
    """To the last bit, over more than an epoch: 12 samples of 10 images, in micro-batches of 2."""
    several = ("data.count=10", "train.steps=3", "train.accumulate=2")
    plain = losses(plan_of(kind, vae, *several, disk=False), tmp_path / "plain")
    assert losses(plan_of(kind, vae, *several), tmp_path / "cold") == plain
    shutil.rmtree(tmp_path / "cache" / "latents")
    plan = plan_of(kind, vae, *several)
    assert filled(plan).encoded == 10
    assert losses(plan, tmp_path / "full") == plain
    assert len({line["loss"] for line in plain}) == 3


def tokenizers() -> list[Tokenizer]:
    torch.manual_seed(0)
    write_autoencoder("flux1")
    return [SmallVae(Vae(SmallVaeShape())), Flux1Settings(**chosen("flux1"), posterior="sample").build(CPU)]


@pytest.mark.usefixtures("other_rounding")
@pytest.mark.parametrize("which", [0, 1], ids=["small-vae", "flux1"])
def test_on_a_cpu_moments_are_of_the_image_alone(which: int) -> None:
    """Without batches of one size the last bits of small-vae depend on the batch."""
    tokenizer = tokenizers()[which]
    images = SceneSource(ScenesSettings(size_px=16, count=19), "train", CPU).images(range(19))
    whole = tokenizer.moments(images)
    assert whole.shape[1] == tokenizer.moment_channels and whole.dtype == torch.float32
    for size in (1, 2, 5, 16):
        assert torch.equal(torch.cat([tokenizer.moments(some) for some in images.split(size)]), whole)
    assert torch.equal(tokenizer.moments(images.flip(0)).flip(0), whole)


@pytest.mark.parametrize("kind", KINDS)
def test_encode_is_the_draw_from_the_moments(kind: str, vae: Path) -> None:
    parts = build_session(plan_of(kind, vae, disk=False))
    images, draws = parts.source.images(range(5)), Draws(3, torch.arange(5))
    moments = parts.tokenizer.moments(images)
    encoded = parts.tokenizer.encode(images, draws)
    assert torch.equal(parts.tokenizer.drawn(moments, draws), encoded)
    assert moments.is_contiguous() and encoded.is_contiguous(), "sums of the same numbers depend on their layout"
    other = parts.tokenizer.drawn(moments, Draws(4, torch.arange(5)))
    assert torch.equal(other, parts.tokenizer.encode(images, draws)) == (kind != "flux1-sampled")


def test_arms_and_seeds_share_one_encoding_and_need_no_images(vae: Path, tmp_path: Path, calls: Counter[str]) -> None:
    several = "train.steps=8"
    losses(plan_of("small-vae", vae, several), tmp_path / "first")
    assert calls["encoded"] == 24
    calls.clear()
    losses(plan_of("small-vae", vae, several, "seed=1"), tmp_path / "seed")
    losses(plan_of("small-vae", vae, several, techniques=("contrastive", "tread")), tmp_path / "arm")
    assert calls["encoded"] == 0
    assert calls["fetched"] == 2 * 3  # those that the key is made of


def test_without_a_cache_every_step_encodes(vae: Path, tmp_path: Path, calls: Counter[str]) -> None:
    losses(plan_of("small-vae", vae, disk=False), tmp_path / "run")
    assert calls["encoded"] == calls["fetched"] == 6 * 4 + 24  # and the look at the first latents


def test_latents_are_there_before_the_first_step(vae: Path) -> None:
    """Else the first arm of a study would pay for all of them in its steps."""
    parts = build_session(plan_of("small-vae", vae, "train.steps=5"))
    assert parts.kept is not None and len(parts.kept.rows.missing(range(24))) == 24
    prepare_images(parts, 0, Interrupt())
    assert len(parts.kept.rows.missing(range(24))) == 24 - 5 * 4
    prepare_images(parts, 8, Interrupt())
    assert len(parts.kept.rows.missing(range(24))) == 24 - 5 * 4


def test_a_signal_is_heard_while_latents_are_made_ready(vae: Path, calls: Counter[str]) -> None:
    plan = plan_of("small-vae", vae, "data.count=60", "train.steps=15")
    parts, interrupt, chunks = build_session(plan), Interrupt(), Counter[str]()
    calls.clear()

    def stop() -> None:
        chunks["begun"] += 1
        interrupt.signal = signal.SIGINT

    prepare_images(parts, 0, interrupt, stop)
    assert chunks["begun"] == 1 and calls["encoded"] == 16


def test_a_term_that_looks_at_images_gets_them(vae: Path, tmp_path: Path, calls: Counter[str]) -> None:
    repa = ("repa:teacher=scenes,hidden=8",)
    plain = losses(plan_of("small-vae", vae, techniques=repa, disk=False), tmp_path / "plain")
    filled(plan_of("small-vae", vae))
    calls.clear()
    assert losses(plan_of("small-vae", vae, techniques=repa), tmp_path / "run") == plain
    assert calls["encoded"] == 0 and calls["fetched"] == 6 * 4 + 3


def test_the_setting_is_housekeeping(vae: Path, tmp_path: Path) -> None:
    plan = plan_of("small-vae", vae)
    assert plan.hash == plan_of("small-vae", vae, disk=False).hash
    assert train(plan_of("small-vae", vae, disk=False), tmp_path / "run", Interrupt()).finished
    assert train(plan, tmp_path / "run", Interrupt()).already_done
    with pytest.raises(UserError, match=r"latents_folder .* set it to disk"):
        tiny_plan("run.latents_folder=/somewhere")


def test_filling_goes_on_where_it_stopped(vae: Path, tmp_path: Path, calls: Counter[str]) -> None:
    plan = plan_of("small-vae", vae, "data.count=300")
    interrupt = Interrupt()
    seen = []

    def stop(done: int, total: int) -> None:
        seen.append((done, total))
        interrupt.signal = signal.SIGINT

    part = fill_cache(plan, interrupt, on_images=stop)
    assert (part.there, part.encoded, part.images) == (16, 16, 300) and seen == [(16, 300)]
    whole = filled(plan)
    assert (whole.there, whole.encoded) == (300, 284) and whole.images_per_s > 0
    assert whole.folder.parent == tmp_path / "cache" / "latents" and whole.size_bytes == 48 + 300 * (8 + 16 + 4 * 64)
    assert calls["encoded"] == 300
    again = filled(plan)
    assert (again.there, again.encoded, again.images_per_s) == (300, 0, 0.0)


def test_a_damaged_row_is_encoded_again(vae: Path, calls: Counter[str]) -> None:
    plan = plan_of("small-vae", vae)
    file = filled(plan).folder / ROWS_NAME
    good = file.read_bytes()
    row = 48 + 8 * 24 + 7 * (16 + 4 * 64)
    bad = bytearray(good)
    bad[row + 40] ^= 1
    file.write_bytes(bad)
    calls.clear()
    assert opened(plan).rows.missing(range(24)) == [7]
    assert filled(plan).encoded == 1 and calls["encoded"] == 1
    assert file.read_bytes() == good


def test_images_that_changed_are_found_by_their_hashes(
    vae: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Those that the key looks at are the first, the middle and the last: another than these is not noticed."""
    plan = plan_of("small-vae", vae)
    filled(plan)
    images = SceneSource.images
    monkeypatch.setattr(SceneSource, "images", lambda self, ids: _with_dot(images(self, ids), ids))
    forget_sources()
    assert filled(plan).encoded == 0
    found = filled(plan, verify=True)
    assert (found.changed, found.encoded) == (1, 1)
    assert filled(plan, verify=True).changed == 0
    source = open_source(plan.data, "train", CPU)
    draws = Draws(0, torch.arange(2))
    wanted = plan.tokenizer.build(CPU).encode(source.images([5, 6]), draws)
    assert torch.equal(opened(plan)([5, 6], draws), wanted)


def _with_dot(image_BCHW: Tensor, ids: Any) -> Tensor:
    image_BCHW = image_BCHW.clone()
    for place, id_ in enumerate(ids):
        if id_ == 5:
            image_BCHW[place, 0, 3, 3] ^= 1
    return image_BCHW


def test_every_part_of_the_key_makes_another_cache(vae: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flux = plan_of("flux1", vae)
    plans = [
        plan_of("small-vae", vae),
        plan_of("small-vae", write_tiny_vae(tmp_path / "other", seed=1)),
        plan_of("small-vae", vae, "data.size_px=32"),
        plan_of("small-vae", vae, "data.count=25"),
        plan_of("small-vae", vae, "data.style=photo"),
        plan_of("small-vae", vae, "data.seed=1"),
        flux,
        plan_of("flux1-sampled", vae),
        *(
            Plan(**{**dict(flux), "tokenizer": flux.tokenizer.model_copy(update=change)})
            for change in ({"compute": "bf16"}, {"scale": 1.01}, {"shift": 0.01})
        ),
    ]
    folders = [opened(plan).folder for plan in plans]
    assert len(set(folders)) == len(plans)
    assert [opened(plan).folder for plan in plans] == folders
    assert opened(plan_of("small-vae", vae, "seed=3", "train.batch=2")).folder == folders[0]
    monkeypatch.setattr(scenes, "render", lambda *args: _darker(args))
    forget_sources()
    assert opened(plans[0]).folder not in folders


def test_latents_of_another_device_are_other_latents(vae: Path) -> None:
    """They are rounded otherwise: a run would not learn the same with the cache and without."""
    plan = plan_of("small-vae", vae)
    assert opened(plan, torch.device("cuda")).folder != opened(plan).folder


def _darker(args: Any) -> Tensor:
    return render(*args) // 2


def test_what_a_source_says_of_its_content_is_a_part_of_the_key(vae: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SceneSource, "identity", "first")
    plan = plan_of("small-vae", vae)
    folder = opened(plan).folder
    assert json.loads((folder / HEADER_NAME).read_text())["made_of"]["content"] == "first"
    monkeypatch.setattr(SceneSource, "identity", "second")
    assert opened(plan).folder != folder


def test_a_store_shares_latents_wherever_it_lies_and_not_once_it_is_resized_otherwise(
    vae: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = tiny_store(tmp_path, 20)
    moved, other = tmp_path / "moved", tiny_store(tmp_path, 21, "other")
    shutil.copytree(first, moved)

    def folder_of(path: Path, *more: str) -> Path:
        forget_sources()
        data = f'data={{"kind":"store","path":"{path}","size_px":16}}'
        return opened(plan_of("small-vae", vae, data, *more)).folder

    folder = folder_of(first)
    assert folder_of(moved) == folder == folder_of(first, f"data.sha256={open_store(first).identity}")
    assert len({folder, folder_of(other), folder_of(first, "data.limit=3")}) == 3
    monkeypatch.setattr(stores, "covering", lambda image_CHW, height, width: image_CHW[:, :height, :width])
    assert folder_of(first) != folder  # the same files: another crop


def test_a_folder_of_the_users_is_checked_against_its_header(vae: Path, tmp_path: Path) -> None:
    given = f"run.latents_folder={tmp_path / 'mine'}"
    assert filled(plan_of("small-vae", vae, given)).folder == tmp_path / "mine"
    assert filled(plan_of("small-vae", vae, given)).encoded == 0
    other = write_tiny_vae(tmp_path / "other", seed=1)
    for plan, what in (
        (
            plan_of("small-vae", other, given),
            r"tokenizer\.weights and normalisation: [0-9a-f]{12}… there, [0-9a-f]{12}…",
        ),
        (plan_of("small-vae", vae, given, "data.size_px=32"), r"data\.size_px: 16 there, 32 here"),
        (plan_of("small-vae", vae, given, "data.count=23"), r"images: 24 there, 23 here"),
        (plan_of("flux1", vae, given), r"tokenizer\.kind: small-vae there, flux1 here"),
    ):
        with pytest.raises(UserError, match=rf"mine/latents.json records .*{what}.*delete .*mine and run `tintype tok"):
            build_session(plan)
        with pytest.raises(UserError, match=what):
            filled(plan)


def test_a_cache_that_was_renamed_edited_or_mixed_up_is_refused(vae: Path, tmp_path: Path) -> None:
    first, second = plan_of("small-vae", vae), plan_of("small-vae", vae, "data.seed=1")
    one, two = filled(first).folder, filled(second).folder
    (two / ROWS_NAME).replace(one / ROWS_NAME)
    with pytest.raises(UserError, match=r"latents\.rows contains other latents; delete this file"):
        build_session(first)
    shutil.rmtree(one)
    two.replace(one)
    with pytest.raises(UserError, match=r"data\.seed: 1 there, 0 here"):
        build_session(first)
    (one / HEADER_NAME).write_text("{")
    with pytest.raises(UserError, match=r"latents\.json is damaged: .*delete"):
        build_session(first)
    (one / HEADER_NAME).write_text('{"format": 99, "made_of": {}}')
    with pytest.raises(
        UserError, match=r"has the format 99, but this version of tintype reads 2.*tintype tokenizer cache"
    ):
        build_session(first)
    (one / HEADER_NAME).unlink()
    (one / ROWS_NAME).touch()
    with pytest.raises(UserError, match=r"has files but no latents\.json, so the source of its latents is unknown"):
        build_session(first)


def test_nobody_is_told_to_remove_a_folder_of_something_else(vae: Path, tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "dog.jpg").touch()
    with pytest.raises(UserError, match=r"photos is not a cache of latents.*to a new folder") as caught:
        build_session(plan_of("small-vae", vae, f"run.latents_folder={tmp_path / 'photos'}"))
    assert "delete" not in str(caught.value)


def test_a_full_disk_is_said_before_the_first_step(vae: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=1000))
    for work in (lambda plan: train(plan, tmp_path / "run", Interrupt()), filled):
        with pytest.raises(
            UserError, match=r"the latents need .*\(6768 bytes\) .* free; .*TINTYPE_CACHE.*latents to none"
        ):
            work(plan_of("small-vae", vae))
    assert not list((tmp_path / "cache" / "latents").glob("*/latents.rows"))


def test_a_folder_that_cannot_be_written_is_named(vae: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"cannot write .*/file/mine/latents\.json: Not a directory"):
        filled(plan_of("small-vae", vae, f"run.latents_folder={tmp_path / 'file' / 'mine'}"))


def test_pixels_and_tuned_tokenizers_do_without_a_cache(tmp_path: Path) -> None:
    """One setting serves all arms of a study; asking for the cache itself raises with the reason."""
    for plan, reason in (
        (tiny_plan("run.latents=disk"), "'pixels' has no latents to cache: "),
        (tuned_plan("run.latents=disk"), "'repa-e' trains the tokenizer: "),
    ):
        assert build_session(plan).kept is None
        with pytest.raises(UserError, match=reason):
            filled(plan)
    assert not (tmp_path / "cache" / "latents").exists()


def test_sampling_and_scoring_open_no_cache(vae: Path, tmp_path: Path) -> None:
    build_model(plan_of("small-vae", vae))
    assert not (tmp_path / "cache" / "latents").exists()


def _fill_as_rank(plan: Plan) -> CachedLatents:
    return fill_cache(plan, Interrupt())


def test_ranks_share_the_work_and_make_the_same_file(vae: Path, tmp_path: Path) -> None:
    plan = plan_of("small-vae", vae, "data.count=150")
    alone = filled(plan)
    wanted = (alone.folder / ROWS_NAME).read_bytes()
    shutil.rmtree(alone.folder)
    found = run_ranks(2, _fill_as_rank, plan)
    assert [(one.there, one.encoded, one.folder) for one in found] == [(150, 150, alone.folder)] * 2
    assert (alone.folder / ROWS_NAME).read_bytes() == wanted


def _train_as_rank(plan: Plan, folder: Path) -> None:
    assert train(plan, folder, Interrupt()).finished


@pytest.mark.slow
def test_ranks_that_train_fill_it_together(vae: Path, tmp_path: Path) -> None:
    plain = plan_of("small-vae", vae, disk=False)
    run_ranks(2, _train_as_rank, plain, tmp_path / "plain")
    run_ranks(2, _train_as_rank, plan_of("small-vae", vae), tmp_path / "kept")
    first, second = ([line["loss"] for line in RunRecord(tmp_path / name).lines] for name in ("plain", "kept"))
    assert first == second and len(first) == 6
    assert opened(plan_of("small-vae", vae)).rows.missing(range(24)) == []


def _prepare_as_rank(plan: Plan) -> list[int]:
    parts, written, write = build_session(plan), list[int](), DiskRows.write

    def noted(rows: DiskRows, id_M: torch.Tensor, row_M: torch.Tensor) -> None:
        written.extend(id_M.tolist())
        write(rows, id_M, row_M)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DiskRows, "write", noted)
        prepare_ids(parts, range(24), parts.source)
    return written


def test_each_rank_makes_its_share_of_the_latents_ready(vae: Path) -> None:
    first, second = run_ranks(2, _prepare_as_rank, plan_of("small-vae", vae))
    assert len(first) == len(second) == 12 and sorted(first + second) == list(range(24))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("kind", KINDS)
def test_on_a_gpu_the_losses_are_the_same_up_to_rounding(kind: str, vae: Path, tmp_path: Path) -> None:
    """Rows are encoded in batches of the step's size, as without a cache."""
    gpu = ("run.device=cuda", "train.steps=8")
    plain = losses(plan_of(kind, vae, *gpu, disk=False), tmp_path / "plain")
    kept = losses(plan_of(kind, vae, *gpu), tmp_path / "kept")
    assert [line["loss"] for line in kept] == pytest.approx([line["loss"] for line in plain], rel=1e-4)


def test_the_batch_on_a_cpu_is_one_that_large_images_leave_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(latent, "_MOST_PX", 3 * 16 * 16)
    tokenizer = Flux1Settings(**chosen("flux1")).build(CPU)
    sizes: list[int] = []
    real = tokenizer._posterior

    def noted(x_BCHW: Tensor) -> Any:
        sizes.append(len(x_BCHW))
        return real(x_BCHW)

    monkeypatch.setattr(tokenizer, "_posterior", noted)
    tokenizer.moments(torch.zeros(7, 3, 16, 16, dtype=torch.uint8))
    assert sizes == [3, 3, 3]
