from __future__ import annotations

import errno
import io
import json
import random
import shutil
import signal
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image, ImageOps

from tests.shared import shared
from tests.tiny_store import captioned, image_file, imported, parquet_of, rewrite_about, tiny_store, tried
from tintype.data.image_file import Encoded
from tintype.data.image_sets import decode, open_images
from tintype.data.importers.importer import Item
from tintype.data.store import writer
from tintype.data.store.attributes import read_attributes
from tintype.data.store.encode import Prepared, Sizing, prepare
from tintype.data.store.importing import ImportOptions, Progress, read_pairs, read_splits
from tintype.data.store.layout import Store, open_shard, open_store
from tintype.errors import StoppedError, UserError
from tintype.runtime.interrupt import Interrupt


def quarantine(store: Path) -> dict[str, str]:
    lines = [json.loads(line) for line in (store / "quarantine.jsonl").read_text().splitlines()]
    return {line["source"]: line["reason"] for line in lines}


def test_a_parquet_file_becomes_a_store_with_its_bytes_and_captions(tmp_path: Path) -> None:
    about = imported(captioned(tmp_path / "a.parquet", 11), tmp_path / "store")
    store = open_store(tmp_path / "store")
    assert len(store) == sum(about.counts.values()) == 11 and store.captions == ["long", "short"]
    rows = list(range(11))
    random.Random(0).shuffle(rows)
    for row in rows:
        one = store.encoded(row)
        assert one.content == image_file(row) and one.name.endswith(f"(a.parquet, row {row})")
        assert store.captions_of(row) == {"long": f"a long caption of number {row}", "short": f"number {row}"}
    assert [side.tolist() for side in store.sizes()] == [[24] * 11, [20] * 11]
    assert sorted([*store.rows("train"), *store.rows("eval")]) == list(range(11))
    store.check()
    assert not list(tmp_path.glob(".*"))


def test_a_folder_takes_its_captions_from_the_files_beside(tmp_path: Path) -> None:
    for index in range(6):
        place = tmp_path / "set" / ("train" if index < 4 else "val")
        place.mkdir(parents=True, exist_ok=True)
        (place / f"{index}.png").write_bytes(image_file(index))
        if index != 2:
            (place / f"{index}.txt").write_text(f"caption {index}\n")
        (place / f"{index}.short.txt").write_text(f"{index}")
    (tmp_path / "set" / "readme.txt").write_text("about the set")
    about = imported(tmp_path / "set", tmp_path / "store", ImportOptions(split_column="folder"))
    assert about.captions == ["long", "short"] and about.counts == {"train": 3, "eval": 2}
    assert open_store(tmp_path / "store").captions_of(1) == {"long": "caption 1", "short": "1"}
    assert quarantine(tmp_path / "store") == {"train/2.png": "the record has no caption long (column txt)"}
    imported(tmp_path / "set", tmp_path / "other", ImportOptions(captions={"words": "short"}))
    assert open_store(tmp_path / "other").captions == ["words"] and len(open_store(tmp_path / "other")) == 6


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        (["caption"], {"long": "caption"}),
        (["text", "url"], {"long": "text"}),
        (["caption_long", "caption_short", "text"], {"long": "caption_long", "short": "caption_short"}),
        (["short"], {"short": "short"}),
    ],
)
def test_captions_that_are_not_said_are_found_by_their_names(
    tmp_path: Path, columns: list[str], expected: dict[str, str]
) -> None:
    source = parquet_of(tmp_path / "a.parquet", [image_file(0)], **{name: [f"the {name}"] for name in columns})
    imported(source, tmp_path / "store")
    assert open_store(tmp_path / "store").captions_of(0) == {kind: f"the {name}" for kind, name in expected.items()}


def test_images_are_shrunk_by_their_short_side_and_never_enlarged(tmp_path: Path) -> None:
    images = [image_file(0, (40, 20)), image_file(1, (20, 60)), image_file(2, (10, 12)), image_file(3, (16, 10))]
    source = parquet_of(tmp_path / "a.parquet", images, caption=["x"] * 4)
    imported(source, tmp_path / "store", ImportOptions(sizing=Sizing(short_px=10)))
    store = open_store(tmp_path / "store")
    assert [side.tolist() for side in store.sizes()] == [[20, 10, 10, 16], [10, 30, 12, 10]]
    assert [store.encoded(row).content == images[row] for row in range(4)] == [False, False, True, True]
    for row in (0, 1):
        small, whole = decode(store.encoded(row)), Image.open(io.BytesIO(images[row]))
        expected = whole.resize((small.shape[2], small.shape[1]), Image.Resampling.BICUBIC)
        near = decode(Encoded("", _png(expected)))
        assert (small.double() - near.double()).abs().mean() < 4  # of 255: JPEG, and another rounding


def _png(image: Image.Image) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, "png")
    return buffer.getvalue()


@pytest.mark.parametrize("orientation", range(1, 9))
def test_an_image_is_stored_as_it_is_to_be_seen(orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    content = image_file(1, form="png", exif=exif)
    found = prepare(Item("a", content), Sizing(quality=100))
    assert isinstance(found, Prepared)
    upright = ImageOps.exif_transpose(Image.open(io.BytesIO(content)))
    assert (found.width, found.height) == upright.size
    assert (decode(Encoded("", found.image)).int() - decode(Encoded("", _png(upright))).int()).abs().max() < 24
    assert (found.image == content) == (orientation == 1)


def test_what_cannot_be_stored_is_set_aside_with_its_reason(tmp_path: Path) -> None:
    broken = image_file(0, form="jpeg")[:90]
    images = [image_file(0), broken, None, image_file(3), image_file(4, (8, 30)), b"", image_file(6)]
    texts = ["a", "b", "c", "  ", "e", "f", None]
    source = parquet_of(tmp_path / "a.parquet", images, caption=texts)
    about = imported(source, tmp_path / "store", ImportOptions(sizing=Sizing(min_px=9)))
    assert sum(about.counts.values()) == 1 and about.quarantined == 6
    reasons = quarantine(tmp_path / "store")
    expected = {
        1: "cannot be read",
        2: "does not contain the bytes",
        3: "no caption long",
        4: "has 8 px, fewer than 9",
        6: "no caption",
    }
    for row, reason in expected.items():
        assert reason in reasons[f"a.parquet, row {row}"]
    with pytest.raises(UserError, match="no image could be stored"):
        imported(parquet_of(tmp_path / "b.parquet", [broken], caption=["x"]), tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_a_column_says_the_split_and_an_unknown_word_is_asked_for(tmp_path: Path) -> None:
    words = ["train", "Test", "validation", "val", "dev", "extra", "train", None]
    source = captioned(tmp_path / "a.parquet", 8, split=words)
    with pytest.raises(UserError, match=r"row 5: the column split has the value 'extra'.* --split extra=train"):
        imported(source, tmp_path / "store", ImportOptions(split_column="split"))
    assert not list(tmp_path.glob(".*importing"))
    about = imported(
        source, tmp_path / "store", ImportOptions(split_column="split", splits=read_splits(["extra=eval"]))
    )
    assert about.counts == {"train": 2, "eval": 5} and about.quarantined == 1
    with pytest.raises(UserError, match="there is no split 'test'; valid: train, eval"):
        read_splits(["extra=test"])


def test_a_hash_says_the_split_of_about_the_share(tmp_path: Path) -> None:
    images = [image_file(index, (4, 4)) for index in range(300)]
    source = parquet_of(tmp_path / "a.parquet", images, caption=["x"] * 300)
    about = imported(source, tmp_path / "store", ImportOptions(eval_share=0.3))
    assert 60 < about.counts["eval"] < 120
    assert imported(source, tmp_path / "none", ImportOptions(eval_share=0)).counts["eval"] == 0


def test_copies_of_an_image_are_never_in_both_splits(tmp_path: Path) -> None:
    """Also where another file holds the same pixels."""
    images = [image_file(0), image_file(0, form="bmp"), image_file(0, form="tiff"), image_file(1)]
    source = parquet_of(tmp_path / "a.parquet", images, caption=["x"] * 4, split=["train", "test", "train", "test"])
    about = imported(source, tmp_path / "column", ImportOptions(split_column="split"))
    assert about.counts == {"train": 2, "eval": 1}
    reason = quarantine(tmp_path / "column")["a.parquet, row 1"]
    assert reason == "it is the same image as a.parquet, row 0, which is in the split train, not eval"
    many = [image_file(index, (4, 4), form) for index in range(40) for form in ("png", "bmp")]
    imported(
        parquet_of(tmp_path / "b.parquet", many, caption=["x"] * 80), tmp_path / "hash", ImportOptions(eval_share=0.5)
    )
    store = open_store(tmp_path / "hash")
    seen = {
        split: {decode(store.encoded(row)).numpy().tobytes() for row in store.rows(split)}
        for split in ("train", "eval")
    }
    assert not seen["train"] & seen["eval"] and min(map(len, seen.values())) > 5


def test_the_identity_is_that_of_the_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = imported(captioned(tmp_path / "a.parquet", 9), tmp_path / "one")
    monkeypatch.setattr(writer, "SHARD_ROWS", 2)
    cut = imported(captioned(tmp_path / "b.parquet", 9), tmp_path / "two")
    assert len(cut.shards) == 5 and cut.identity == first.identity
    assert open_store(tmp_path / "two").encoded(7).content == image_file(7)
    options = ImportOptions(captions={"long": "caption_short", "short": "caption_long"})
    assert imported(tmp_path / "a.parquet", tmp_path / "three", options).identity != first.identity
    assert imported(tmp_path / "a.parquet", tmp_path / "four", ImportOptions(eval_share=1)).identity != first.identity


class _DiedError(Exception):
    pass


@pytest.mark.parametrize("way", ["signal", "death"])
def test_an_import_that_was_stopped_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    monkeypatch.setattr(writer, "SHARD_ROWS", 3)
    images = [image_file(index) if index % 5 else b"broken" for index in range(24)]
    texts = [f"number {index}" for index in range(24)]
    splits = ["train", "test"] * 12
    images[20], images[21] = (
        image_file(1),
        image_file(1),
    )  # of which one is in the wrong split, as the first shard knows
    source = parquet_of(tmp_path / "a.parquet", images, caption=texts, split=splits)
    options, out = ImportOptions(split_column="split"), tmp_path / "store"
    whole = imported(source, tmp_path / "whole", options)
    interrupt = Interrupt()

    def stop(progress: Progress) -> None:
        if progress.done == 14:
            if way == "death":
                raise _DiedError
            interrupt.signal = signal.SIGINT

    if way == "death":
        with pytest.raises(_DiedError):
            tried(source, out, options, stop)
    else:
        with pytest.raises(StoppedError, match="14 records are kept"):
            tried(source, out, options, stop, interrupt)
    assert not out.exists()
    with pytest.raises(UserError, match="from another source or with other options"):
        imported(source, out, ImportOptions(split_column="split", limit=20))
    seen: list[int] = []
    about = imported(source, out, options, lambda progress: seen.append(progress.done))
    assert seen[0] >= 9, "what was kept is not done again"
    assert about.identity == whole.identity and about.counts == whole.counts
    assert (out / "quarantine.jsonl").read_text() == (tmp_path / "whole" / "quarantine.jsonl").read_text()
    assert about.quarantined == whole.quarantined == len(quarantine(out))
    open_store(out).check()
    assert sorted(file.name for file in out.iterdir())[0] == "quarantine.jsonl"
    assert tried(source, out, options).already_done


@pytest.mark.parametrize(("file", "kept"), [("shard-00002.arrow", 8), ("progress.json", 4)])
def test_a_full_disk_leaves_no_half_store_and_can_be_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str, kept: int
) -> None:
    monkeypatch.setattr(writer, "SHARD_ROWS", 3)
    images = [b"broken" if index in (1, 5) else image_file(index) for index in range(12)]
    source = parquet_of(tmp_path / "a.parquet", images, caption=["x"] * 12)
    whole, replace, tries = imported(source, tmp_path / "whole"), Path.replace, dict.fromkeys([file], 0)

    def full(self: Path, target: Path) -> Path:
        if Path(target).name == file:
            tries[file] += 1
            if file != "progress.json" or tries[file] == 2:
                raise OSError(errno.ENOSPC, "No space left on device")
        return replace(self, target)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "replace", full)
        with pytest.raises(
            UserError, match=rf"No space left on device; no store was made; {kept} items are kept there"
        ):
            imported(source, tmp_path / "store")
    assert not (tmp_path / "store").exists()
    assert imported(source, tmp_path / "store").identity == whole.identity
    assert sorted(file.name for file in (tmp_path / "store").iterdir()) == sorted(
        file.name for file in (tmp_path / "whole").iterdir()
    )
    assert len((tmp_path / "store" / "quarantine.jsonl").read_text().splitlines()) == whole.quarantined == 2


def test_what_is_there_is_not_written_over(tmp_path: Path) -> None:
    source = captioned(tmp_path / "a.parquet", 4)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.md").write_text("mine")
    with pytest.raises(UserError, match="contains other files and is not a store"):
        imported(source, tmp_path / "mine")
    imported(source, tmp_path / "store")
    with pytest.raises(UserError, match="imported from another source or with other options"):
        imported(source, tmp_path / "store", ImportOptions(eval_share=0.5))


def test_mistakes_are_named(tmp_path: Path) -> None:
    source = captioned(tmp_path / "a.parquet", 2)
    (tmp_path / "empty").mkdir()
    both = tmp_path / "both"
    both.mkdir()
    shutil.copy(source, both)
    (both / "a.png").write_bytes(image_file(0))
    (tmp_path / "twins").mkdir()
    for form in ("png", "bmp"):
        (tmp_path / "twins" / f"a.{form}").write_bytes(image_file(0, form=form))
    cases: list[tuple[Path, dict[str, Any], str]] = [
        (tmp_path / "nowhere", {}, "does not exist"),
        (tmp_path / "empty", {}, "no images that can be imported"),
        (both, {}, "files of several formats"),
        (tmp_path / "twins", {}, "images that differ only in the file ending, a.bmp and a.png"),
        (
            source,
            {"captions": {"width": "caption_long"}},
            "--caption width=caption_long: every store has .* 'width'.* --caption width_text=caption_long",
        ),
        (source, {"captions": {"long": "capt"}}, "no text column 'capt'; it has caption_long, caption_short"),
        (source, {"split_column": "splt"}, "--split-column splt: .* it has caption_long"),
        (parquet_of(tmp_path / "b.parquet", [image_file(0)], url=["x"]), {}, "--caption long=COLUMN. It has url"),
    ]
    for path, options, message in cases:
        with pytest.raises(UserError, match=message):
            imported(path, tmp_path / "out", ImportOptions(**options))
    for values in (["long"], ["=a"], ["a="]):
        with pytest.raises(UserError, match="write it as --caption long=text"):
            read_pairs("caption", values, "long=text")
    with pytest.raises(UserError, match="long is given twice"):
        read_pairs("caption", ["long=a", "long=b"], "long=text")


def test_a_damaged_store_is_refused_and_never_followed(tmp_path: Path) -> None:
    store = tiny_store(tmp_path, 12)
    shard = store / "shard-00000.arrow"
    whole, about = shard.read_bytes(), (store / "store.json").read_text()
    content = bytearray(whole)
    content[whole.index(image_file(5)) + 60] ^= 1
    shard.write_bytes(bytes(content))
    with pytest.raises(UserError, match=r"row 5 .* is damaged: its bytes do not match the recorded checksum"):
        Store(store).encoded(5)
    content = bytearray(whole)
    content[whole.index(b"caption of number 3")] ^= 1
    shard.write_bytes(bytes(content))
    with pytest.raises(UserError, match=r"shard-00000\.arrow is damaged: its captions or other columns"):
        Store(store)
    shard.write_bytes(whole[:-8])
    with pytest.raises(UserError, match=r"shard-00000.arrow has [\d,]+ bytes, not [\d,]+; copy"):
        Store(store)
    shard.unlink()
    with pytest.raises(UserError, match=r"shard-00000.arrow is missing"):
        Store(store)
    shard.write_bytes(whole)
    for change, reason in (
        ({"name": "../shard-00000.arrow"}, "is not in the folder"),
        ({"rows": 3}, "does not contain the 3 rows"),
        ({"rows": "12"}, "is not a file that `tintype data import` of this version writes"),
        ({"images_at": -5}, "its captions or other columns"),
    ):
        rewrite_about(store, partial(_change_shard, change))
        with pytest.raises(UserError, match=reason):
            Store(store)
        (store / "store.json").write_text(about)
    rewrite_about(store, lambda content: content.update(format="tintype-store-9"))
    with pytest.raises(UserError, match="is not a file that `tintype data import` of this version writes"):
        Store(store)


def _change_shard(change: dict[str, Any], content: dict[str, Any]) -> None:
    content["shards"][0].update(change)


@pytest.mark.parametrize("column", ["width", "height", "split", "source", "pixels", "sha256", "caption", "attribute"])
def test_every_column_of_a_store_is_checked_before_it_is_used(tmp_path: Path, column: str) -> None:
    """Find each column's first value in the shard, and change one bit of it."""
    source = captioned(tmp_path / "a.parquet", 6, style=["dotted"] * 6)
    imported(source, tmp_path / "store", ImportOptions(attributes=read_attributes({"style": "style"})))
    shard = tmp_path / "store" / "shard-00000.arrow"
    batch, whole = open_shard(shard), bytearray(shard.read_bytes())
    name = {"caption": "caption:long", "attribute": "attribute:style"}.get(column, column)
    buffers = batch.column(name).buffers()
    values = bytes(buffers[1] if batch.column(name).type == "int32" else buffers[2])
    assert whole.count(values) == 1
    whole[whole.index(values) + 1] ^= 1
    shard.write_bytes(whole)
    with pytest.raises(UserError, match=r"shard-00000\.arrow is damaged: .*; copy the store again, or import it again"):
        open_store(tmp_path / "store")


def test_a_store_that_is_changed_after_it_was_opened_is_opened_anew(tmp_path: Path) -> None:
    store = tiny_store(tmp_path, 6)
    assert open_store(store) is open_store(store)
    shard = store / "shard-00000.arrow"
    content = bytearray(shard.read_bytes())
    content[content.index(b"caption of number 3")] ^= 1
    shard.write_bytes(content)
    with pytest.raises(UserError, match="is damaged"):
        open_store(store)


def test_flipped_bits_give_an_error_or_the_store(tmp_path: Path) -> None:
    store = tiny_store(tmp_path, 6)
    shard, draw = store / "shard-00000.arrow", random.Random(0)
    whole = shard.read_bytes()
    refused = 0
    for _ in range(150):
        content = bytearray(whole)
        content[draw.choice([draw.randrange(len(whole)), draw.randrange(2000), -draw.randrange(1, 2000)])] ^= (
            1 << draw.randrange(8)
        )
        shard.write_bytes(bytes(content))
        try:
            Store(store).check()
        except UserError:
            refused += 1
    assert refused > 20


def test_a_store_is_a_set_of_images_like_others(tmp_path: Path) -> None:
    store = tiny_store(tmp_path, 7)
    found = list(open_images(store))
    assert len(found) == 7 and torch.equal(found[3], decode(Encoded("", image_file(3))))
    assert open_images(store).fingerprint() == open_images(tmp_path / "store.parquet").fingerprint()


def test_real_photographs_are_imported(tmp_path: Path) -> None:
    photos = shared("data/photos.parquet")
    options = ImportOptions(split_column="split", limit=64, sizing=Sizing(short_px=64))
    about = imported(photos, tmp_path / "store", options)
    store = open_store(tmp_path / "store")
    assert sum(about.counts.values()) == 64 and about.quarantined == 0 and about.captions == ["long", "short"]
    assert all(min(sides) == 64 for sides in zip(*store.sizes(), strict=True))
    store.check()
