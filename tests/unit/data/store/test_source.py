from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.tiny import tiny_plan
from tests.tiny_store import captioned, image_file, imported, parquet_of, rewrite_about, tiny_store
from tintype.data.fit import square
from tintype.data.image_file import Encoded
from tintype.data.image_sets import decode, open_images
from tintype.data.sources import forget_sources, open_source
from tintype.data.store import source as module
from tintype.data.store.importing import ImportOptions
from tintype.data.store.layout import open_store
from tintype.data.store.settings import StoreSettings
from tintype.data.store.source import StoreSource
from tintype.errors import UserError
from tintype.tokenizer_lab.images import ImageSettings, TrainingImages, measured_images
from tintype.train.session import _data_key

CPU = torch.device("cpu")


def expected(store: Path, split: str, ids: list[int], size_px: int = 16) -> Tensor:
    rows = open_store(store).rows("train" if split == "train" else "eval")
    return torch.stack([square(decode(Encoded("", image_file(int(rows[id_])))), size_px) for id_ in ids])


@pytest.mark.parametrize("kept", [True, False])
def test_images_are_the_squares_of_the_originals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: bool) -> None:
    monkeypatch.setattr(module, "_MOST_CACHED_BYTES", {"cpu": 1 << 30} if kept else {})
    monkeypatch.setattr(module, "_MOST_CACHED_RECORDS", 1 << 18 if kept else 0)
    store = tiny_store(tmp_path)
    source = StoreSource(StoreSettings(path=str(store), size_px=16), "train", CPU)
    assert len(source) == len(open_store(store).rows("train"))
    for ids in ([3, 1, 3], [0, 5], [5, 6]):
        images_BCHW = source.images(ids)
        source.expect([6, 5])
        assert images_BCHW.dtype == torch.uint8 and torch.equal(images_BCHW, expected(store, "train", ids))
        row = int(open_store(store).rows("train")[ids[0]])
        assert source.records(ids)[0].captions["short"] == f"number {row}"


def test_what_is_kept_is_decoded_once_and_what_is_not_is_prefetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []
    write = StoreSource._write

    def noted(self: StoreSource, id_: int, out_CHW: Tensor) -> None:
        seen.append(id_)
        write(self, id_, out_CHW)

    monkeypatch.setattr(StoreSource, "_write", noted)
    settings = StoreSettings(path=str(tiny_store(tmp_path)), size_px=16)
    source = StoreSource(settings, "train", CPU)
    source.prepare([1, 2])
    source.images([2, 1, 0])
    source.expect([7])
    assert sorted(seen) == [0, 1, 2]
    monkeypatch.setattr(module, "_MOST_CACHED_BYTES", {})
    seen.clear()
    source = StoreSource(settings, "train", CPU)
    source.prepare([1, 2])
    source.expect([4, 5])
    source.images([4, 5])
    assert sorted(seen) == [4, 5]


def test_the_evaluation_split_is_in_a_fixed_random_order(tmp_path: Path) -> None:
    settings = StoreSettings(path=str(tiny_store(tmp_path)), size_px=16, limit=5)
    assert len(StoreSource(settings, "train", CPU)) == 5
    held_out = StoreSource(settings.held_out(3), "eval", CPU)
    order = [int(held_out.records([id_])[0].captions["short"].split()[1]) for id_ in range(len(held_out))]
    rows = open_store(tmp_path / "store").rows("eval").tolist()
    assert sorted(order) == rows and order != rows


def test_images_that_are_too_small_are_refused_by_name_and_not_decoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = [image_file(0), image_file(1, (40, 18)), image_file(2)]
    imported(parquet_of(tmp_path / "a.parquet", images, caption=["x"] * 3), tmp_path / "s", ImportOptions(eval_share=0))
    monkeypatch.setattr(module, "decode", None)
    StoreSource(StoreSettings(path=str(tmp_path / "s"), size_px=18), "train", CPU)
    message = r"a\.parquet, row 1\) has 40 × 18 pixels, and 1 of 3 images .* data\.where='(.*)'"
    with pytest.raises(UserError, match=message) as raised:
        StoreSource(StoreSettings(path=str(tmp_path / "s"), size_px=20), "train", CPU)
    advice = str(raised.value).partition("data.where='")[2].rstrip("'")
    assert len(StoreSource(StoreSettings(path=str(tmp_path / "s"), size_px=20, where=advice), "train", CPU)) == 2


def test_another_store_than_the_pinned_one_is_refused(tmp_path: Path) -> None:
    store = tiny_store(tmp_path)
    identity = open_store(store).identity
    StoreSource(StoreSettings(path=str(store), size_px=16, sha256=identity[:8]), "train", CPU)
    with pytest.raises(UserError, match=r"data\.sha256 records .* the store in .*0123456789abcdef there"):
        StoreSource(StoreSettings(path=str(store), size_px=16, sha256="0123456789abcdef"), "train", CPU)
    with pytest.raises(UserError, match="is not a store"):
        StoreSource(StoreSettings(path=str(tmp_path), size_px=16), "train", CPU)
    imported(captioned(tmp_path / "a.parquet", 3), tmp_path / "all", ImportOptions(eval_share=1))
    with pytest.raises(UserError, match="has no training images"):
        StoreSource(StoreSettings(path=str(tmp_path / "all"), size_px=16), "train", CPU)


def test_splits_of_other_sizes_than_the_store_says_are_refused(tmp_path: Path) -> None:
    rewrite_about(tiny_store(tmp_path, 20), lambda about: about["counts"].update(train=21))
    with pytest.raises(UserError, match="is damaged: its splits do not have"):
        open_store(tmp_path / "store")


def test_one_seam_opens_every_kind_once(tmp_path: Path) -> None:
    forget_sources()
    store = StoreSettings(path=str(tiny_store(tmp_path)), size_px=16)
    assert open_source(store, "train", CPU) is open_source(store, "train", CPU)
    scenes = open_source(tiny_plan().data, "train", CPU)
    assert scenes.identity is None and scenes.columns == {"long", "short"} == open_source(store, "eval", CPU).columns
    assert open_source(store, "train", CPU).identity == open_store(tmp_path / "store").identity
    assert torch.equal(open_source(store, "train", CPU).images([1]), expected(tmp_path / "store", "train", [1]))
    forget_sources()


def test_a_teachers_tokens_are_cached_by_the_content_of_a_store_wherever_it_lies(tmp_path: Path) -> None:
    first, other = tiny_store(tmp_path, 20), tiny_store(tmp_path, 20, "other", eval_share=0.5)
    shutil.copytree(first, tmp_path / "moved")

    def key(path: Path, **more: Any) -> str:
        data = StoreSettings(path=str(path), size_px=16, **more)
        return _data_key(data, open_source(data, "train", CPU))

    assert key(first) == key(tmp_path / "moved") == key(first, sha256=open_store(first).identity)
    assert len({key(first), key(other), key(first, limit=3)}) == 3
    forget_sources()


def test_a_tokenizer_trains_on_the_training_split_and_is_measured_on_the_other(tmp_path: Path) -> None:
    store = tiny_store(tmp_path)
    rows = {split: open_store(store).rows(split).tolist() for split in ("train", "eval")}
    training = TrainingImages(ImageSettings(data=str(store), size_px=16, held_out=8), 0, CPU)
    assert training.identity.startswith(f"{len(rows['train'])} ")
    measured_NCHW, total = measured_images(str(store), 16, 1000, CPU)
    assert total == len(measured_NCHW) == len(rows["eval"])
    of_eval = {image.numpy().tobytes() for image in expected(store, "eval", list(range(total)))}
    assert {image.numpy().tobytes() for image in measured_NCHW} == of_eval
    assert len(list(open_images(store))) == 60
