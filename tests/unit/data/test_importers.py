from __future__ import annotations

import hashlib
import io
import json
import random
import struct
import tarfile
import zlib
from pathlib import Path
from typing import Any

import pyarrow
import pytest
import torch
from PIL import Image
from pyarrow import parquet

from tests import sets
from tests.tiny_store import image_file, imported, parquet_of, tried
from tests.unit.data.test_store import quarantine
from tintype.data.image_file import Encoded
from tintype.data.image_sets import decode, open_images
from tintype.data.importers import open_importer
from tintype.data.scenes.source import SceneSource, ScenesSettings
from tintype.data.store import writer
from tintype.data.store.importing import ImportOptions
from tintype.data.store.layout import open_store
from tintype.errors import UserError

Records = set[tuple[str, str, str, str]]


def records(store: Path) -> Records:
    opened = open_store(store)
    found = set()
    for split in ("train", "eval"):
        for row in opened.rows("train" if split == "train" else "eval").tolist():
            texts = opened.captions_of(row)
            sha256 = hashlib.sha256(opened.encoded(row).content).hexdigest()
            found.add((sha256, split, texts["long"], texts["short"]))
    return found


def expected(some: list[sets.Entry]) -> Records:
    split = {"train": "train", "test": "eval"}
    return {
        (hashlib.sha256(one.content).hexdigest(), split[one.texts["split"]], one.texts["long"], one.texts["short"])
        for one in some
    }


@pytest.mark.parametrize("form", sets.FORMS)
def test_every_importer_brings_in_the_same_records(tmp_path: Path, form: str) -> None:
    write, options = sets.FORMS[form]
    source = write(tmp_path / "set", sets.entries())
    about = imported(source, tmp_path / "store", options)
    assert about.quarantined == 0 and sorted(about.captions) == ["long", "short"]
    assert records(tmp_path / "store") == expected(sets.entries())


def test_the_embedded_scenes_are_a_set_too(tmp_path: Path) -> None:
    about = imported(
        Path("scenes:count=7,size_px=16,style=photo"), tmp_path / "store", ImportOptions(split_column="split")
    )
    assert about.counts == {"train": 7, "eval": 1} and about.made_from["source"].startswith("scenes:")
    store, scenes = open_store(tmp_path / "store"), ScenesSettings(count=7, size_px=16, style="photo")
    for split in ("train", "eval"):
        source = SceneSource(scenes, split, torch.device("cpu"))
        for id_, row in enumerate(store.rows(split).tolist()):
            assert torch.equal(decode(store.encoded(row)), source.images([id_])[0])
            assert store.captions_of(row) == source.records([id_])[0].captions
    importer = open_importer(Path("scenes:count=7,size_px=16"))
    assert [one.source for one in importer.items([], 6)] == ["scenes/train/6", "scenes/eval/0"]
    with pytest.raises(UserError, match="did you mean 'count'"):
        open_importer(Path("scenes:cout=7"))


@pytest.mark.parametrize("form", sets.FORMS)
def test_every_importer_can_be_entered_at_any_place(tmp_path: Path, form: str) -> None:
    write, _ = sets.FORMS[form]
    importer = open_importer(write(tmp_path / "set", sets.entries(7)))
    whole = list(importer.items(importer.columns, 0))
    assert len(whole) == importer.count == 7 and len({one.source for one in whole}) == 7
    for first in range(8):
        assert list(importer.items(importer.columns, first)) == whole[first:]


@pytest.mark.parametrize("form", ["jsonl", "csv", "metadata.parquet"])
def test_a_row_without_its_file_and_a_file_without_its_row_are_reported(tmp_path: Path, form: str) -> None:
    some = sets.entries()
    lost = [sets.Entry(name, b"", some[0].texts) for name in ("gone.png", "../out.png", "/etc/passwd", "  ")]
    (tmp_path / "out.png").write_bytes(image_file(9))
    write, options = sets.FORMS[form]
    folder = write(tmp_path / "set", some)
    (folder / "extra.png").write_bytes(image_file(8))
    metadata = next(folder.glob("metadata.*"))
    sets.write_metadata(metadata, [*some, *lost])
    about = imported(folder, tmp_path / "store", options)
    assert records(tmp_path / "store") == expected(some) and about.quarantined == 5
    reasons = quarantine(tmp_path / "store")
    assert (
        "the file does not exist" in reasons["gone.png"]
        and reasons["extra.png"] == "no row of the metadata names this image"
    )
    assert sum("path outside the folder" in reason for reason in reasons.values()) == 2
    assert sum("the file_name of this row is empty" in reason for reason in reasons.values()) == 1


def test_metadata_lies_in_the_folders_of_splits_too(tmp_path: Path) -> None:
    some = sets.entries()
    for split in ("train", "test"):
        sets.jsonl_folder(tmp_path / "set" / split, [one for one in some if one.texts["split"] == split])
    imported(tmp_path / "set", tmp_path / "store", sets.BY_FOLDER)
    assert records(tmp_path / "store") == expected(some)
    sets.write_metadata(tmp_path / "set" / "test" / "metadata.csv", some)
    with pytest.raises(UserError, match="has several metadata files"):
        open_importer(tmp_path / "set")


def test_lines_that_are_no_rows_are_reported(tmp_path: Path) -> None:
    folder = sets.jsonl_folder(tmp_path / "set", sets.entries(2))
    whole = (folder / "metadata.jsonl").read_bytes()
    bad = (
        b'{"file_name": "p0.png", "long": "\xff\xfe", "short": "a"}\n{"file_name": "p1\n\n[]\n' + b"[" * 100_000 + b"\n"
    )
    (folder / "metadata.jsonl").write_bytes(whole + bad)
    about = imported(folder, tmp_path / "store")
    reasons = quarantine(tmp_path / "store")
    assert sum(about.counts.values()) == 2 and about.quarantined == 4
    assert reasons["p0.png"] == "the caption long (column long) is not text in UTF-8"
    assert "cannot be read as JSON" in reasons["metadata.jsonl, line 4"]
    assert "not a JSON object" in reasons["metadata.jsonl, line 6"]
    assert "cannot be read as JSON" in reasons["metadata.jsonl, line 7"]
    (folder / "metadata.jsonl").unlink()
    text = f"file_name,long\np0.png,a caption\np1.jpg,too,many\np1.jpg,{'x' * 150_000}\n"
    (folder / "metadata.csv").write_text(text)
    about = imported(folder, tmp_path / "csv")
    reasons = quarantine(tmp_path / "csv")
    assert sum(about.counts.values()) == 1
    assert reasons["metadata.csv, line 3"] == "the row has 3 cells, but the header has 2"
    assert "has 150,000 characters" in reasons["p1.jpg"]


def test_names_that_no_file_can_have_are_reported(tmp_path: Path) -> None:
    folder = sets.jsonl_folder(tmp_path / "set", sets.entries(2))
    odd = [sets.Entry(name, b"", {"long": "a", "short": "b"}) for name in ("x" * 5000, "a\0b", ".", "\udcff.png")]
    sets.write_metadata(folder / "metadata.jsonl", [*sets.entries(2), *odd])
    about = imported(folder, tmp_path / "store")
    assert sum(about.counts.values()) == 2 and about.quarantined == 4
    reasons = list(quarantine(tmp_path / "store").values())
    assert all("the image cannot be read" in reason or "the file does not exist" in reason for reason in reasons)


def test_json_beside_an_image_gives_its_strings_and_bad_json_its_reason(tmp_path: Path) -> None:
    folder = sets.json_folder(tmp_path / "set", sets.entries(5))
    assert open_importer(folder).columns == ["long", "short", "split", "folder"]
    (folder / "p1.json").write_bytes(b"{")
    (folder / "p2.json").write_bytes(b'{"long": "\xff"}')
    (folder / "p3.json").unlink()
    about = imported(folder, tmp_path / "store")
    assert sum(about.counts.values()) == 2 and about.quarantined == 3
    reasons = quarantine(tmp_path / "store")
    assert (
        "JSON" in reasons["p1.jpg"] and "not text in UTF-8" in reasons["p2.webp"] and "no caption" in reasons["p3.png"]
    )
    (folder / "p0.short.txt").write_text("again")
    with pytest.raises(UserError, match=r"short names both \.txt files and keys"):
        open_importer(folder)


def test_unsafe_members_of_a_tar_are_reported_and_nothing_is_unpacked(tmp_path: Path) -> None:
    def special(name: str, kind: bytes, target: str = "") -> tuple[tarfile.TarInfo, bytes]:
        info = tarfile.TarInfo(name)
        info.type, info.linkname = kind, target
        return info, b""

    secret = tmp_path / "secret.png"
    secret.write_bytes(image_file(7))
    members: list[Any] = [
        ("a.png", image_file(0)),
        ("a.txt", b"a caption"),
        ("../up.png", image_file(1)),
        ("b/../../up.png", image_file(1)),
        ("/tmp/abs.png", image_file(2)),
        special("link.png", tarfile.SYMTYPE, str(secret)),
        special("hard.png", tarfile.LNKTYPE, "a.png"),
        special("null.png", tarfile.CHRTYPE),
        special("pipe.png", tarfile.FIFOTYPE),
        special("folder", tarfile.DIRTYPE),
        ("lonely.txt", b"no image"),
        ("two.png", image_file(3)),
        ("two.jpg", image_file(4, form="jpeg")),
        ("twice.png", image_file(5)),
        ("twice.png", image_file(6)),
        ("._a.png", b"of another system"),
    ]
    source = sets.tar_of(tmp_path / "set" / "a.tar", members)
    about = imported(source, tmp_path / "store")
    assert sum(about.counts.values()) == 1 and about.quarantined == 10
    reasons = {name.removeprefix("a.tar:"): reason for name, reason in quarantine(tmp_path / "store").items()}
    assert {name for name, reason in reasons.items() if "leads out" in reason} == {
        "../up.png",
        "b/../../up.png",
        "/tmp/abs.png",
    }
    assert {name for name, reason in reasons.items() if "link" in reason} == {"link.png", "hard.png"}
    assert {name for name, reason in reasons.items() if "not a regular file" in reason} == {"null.png", "pipe.png"}
    assert {name for name, reason in reasons.items() if "exactly one image" in reason} == {"lonely", "two"}
    assert reasons["twice"] == "the sample has two members .png"
    assert [file.name for file in (tmp_path / "set").rglob("*")] == ["a.tar"]
    assert sorted(file.name for file in tmp_path.iterdir()) == ["secret.png", "set", "store"]


def test_a_tar_that_is_cut_or_packed_is_refused(tmp_path: Path) -> None:
    source = sets.tar_of(
        tmp_path / "a.tar", [(f"{n}.{kind}", image_file(n)) for n in range(4) for kind in ("png", "txt")]
    )
    whole = source.read_bytes()
    for content in (whole[: len(whole) // 2], whole[:1024], b"\x1f\x8b" + bytes(510) + b"x"):
        source.write_bytes(content)
        with pytest.raises(UserError, match="cannot be read as a tar file"):
            open_importer(source)
    members: list[Any] = [
        ("a.png", image_file(0)),
        ("a.txt", b"x" * (5 << 20)),
        ("b.png", image_file(1)),
        ("b.txt", b"\xff"),
    ]
    members += [("c.png", image_file(2)), ("c.txt", b"a caption")]
    imported(sets.tar_of(tmp_path / "b.tar", members), tmp_path / "store")
    reasons = quarantine(tmp_path / "store")
    assert "5,242,880 bytes" in reasons["b.tar:a.png"] and "not text in UTF-8" in reasons["b.tar:b.png"]


def test_what_follows_a_damaged_header_or_another_tar_is_not_dropped(tmp_path: Path) -> None:
    source = sets.tar_of(
        tmp_path / "a.tar", [(f"{n}.{kind}", image_file(n)) for n in range(4) for kind in ("png", "txt")]
    )
    whole = source.read_bytes()
    at = whole.index(b"2.png")
    for content in (whole[:at] + b"3" + whole[at + 1 :], whole[:at] + bytes(512) + whole[at + 512 :], whole + whole):
        source.write_bytes(content)
        with pytest.raises(UserError, match="file has data after"):
            open_importer(source)
        with pytest.raises(UserError, match="file has data after"):
            list(open_images(source).encoded())
    source.write_bytes(whole)
    assert open_importer(source).count == len(list(open_images(source).encoded())) == 4


def test_a_saved_data_set_that_is_damaged_is_refused(tmp_path: Path) -> None:
    folder = sets.saved_split(tmp_path / "set", [sets.entries(3), sets.entries(3)])
    assert open_importer(folder).count == 6 and "folder" not in open_importer(folder).columns
    data, state = folder / "data-00001-of-00002.arrow", folder / "state.json"
    whole, said = data.read_bytes(), json.loads(state.read_text())
    for content in (whole[:-8], whole[: len(whole) // 2], b""):
        data.write_bytes(content)
        with pytest.raises(UserError, match="truncated"):
            open_importer(folder)
    batch = whole.rindex(b"\xff\xff\xff\xff", 0, -8)
    data.write_bytes(whole[:batch] + whole[-8:] + whole[batch + 8 :])
    with pytest.raises(UserError, match="the file has data after the end of the stream"):
        open_importer(folder)
    data.unlink()
    with pytest.raises(UserError, match="but this file is missing"):
        open_importer(folder)
    others: list[dict[str, Any]] = [{"_data_files": files} for files in ([{"filename": "../a.arrow"}], [], "x", [3])]
    for other in [*others, {}]:
        state.write_text(json.dumps(other))
        with pytest.raises(UserError, match="lists no data files in its folder"):
            open_importer(folder)
    state.write_text(json.dumps({**said, "_indices_data_files": [{"filename": "indices.arrow"}]}))
    with pytest.raises(UserError, match="flatten_indices"):
        open_importer(folder)
    (folder / "dataset_dict.json").write_text(json.dumps({"splits": ["../train"]}))
    with pytest.raises(UserError, match="lists no splits"):
        open_importer(folder)


def test_mds_shards_are_read_by_their_encodings(tmp_path: Path) -> None:
    pixels = Image.open(io.BytesIO(image_file(1)))
    raw = struct.pack("<3I", 24, 20, 3) + b"RGB" + pixels.tobytes()
    wrong = struct.pack("<3I", 1 << 31, 20, 3) + b"RGB" + pixels.tobytes()
    palette = struct.pack("<3I", 24, 20, 1) + b"P" + bytes(480)
    text = [json.dumps({"long": "a caption", "n": 3}).encode(), struct.pack("<q", -3), b"anything"]
    rows = [[text[0], image, text[1], text[2]] for image in (raw, wrong, palette, b"")]
    source = sets.mds_of(tmp_path / "set", {"about": "json", "picture": "pil", "set": "int", "x": "pkl"}, [rows])
    assert open_importer(source).columns == ["about", "set", "about.long"]
    options = ImportOptions(captions={"long": "about.long"}, split_column="set", splits={"-3": "train"})
    about = imported(source, tmp_path / "store", options)
    store = open_store(tmp_path / "store")
    assert about.counts == {"train": 1, "eval": 0} and store.captions_of(0) == {"long": "a caption"}
    assert decode(store.encoded(0)).equal(decode(Encoded("", image_file(1))))
    reasons = list(quarantine(tmp_path / "store").values())
    assert "cannot be 2147483648 × 20 pixels" in reasons[0] and "the mode 'P'" in reasons[1] and "mode ''" in reasons[2]


class _NoCodec:
    @staticmethod
    def is_available(name: str) -> bool:
        return False


def test_mds_shards_in_folders_and_packed_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    some = sets.entries()
    for split in ("train", "test"):
        sets.mds(tmp_path / "set" / split, [one for one in some if one.texts["split"] == split])
    imported(tmp_path / "set", tmp_path / "store", sets.BY_FOLDER)
    assert records(tmp_path / "store") == expected(some)
    rows = [[[b"a caption", one.content] for one in some]]
    packed = sets.mds_of(tmp_path / "zstd", {"caption": "str", "jpg": "bytes"}, rows, "zstd:7")
    imported(packed, tmp_path / "unpacked")
    opened = open_store(tmp_path / "unpacked")
    assert [opened.encoded(row).content for row in range(6)] == [one.content for one in some]
    with monkeypatch.context() as patched:
        patched.setattr(pyarrow, "Codec", _NoCodec)
        with pytest.raises(
            UserError, match="zstd, which the installed pyarrow does not support; decompress the file first"
        ):
            open_importer(packed)
    index = json.loads((packed / "index.json").read_text())
    index["shards"][0]["raw_data"]["bytes"] -= 1
    (packed / "index.json").write_text(json.dumps(index))
    with pytest.raises(UserError, match="does not decompress to the"):
        imported(packed, tmp_path / "other")
    index["shards"][0]["compression"] = "br"
    (packed / "index.json").write_text(json.dumps(index))
    with pytest.raises(UserError, match="compressed with br, but tintype reads only zstd"):
        open_importer(packed)


def test_damaged_mds_shards_are_refused(tmp_path: Path) -> None:
    source = sets.mds(tmp_path / "set", sets.entries())
    shard, file = source / "shard.00000.mds", source / "index.json"
    whole, index = shard.read_bytes(), file.read_text()
    for at, value, message in ((0, 2, "does not contain the 3 samples"), (8, 1 << 30, "do not increase")):
        shard.write_bytes(whole[:at] + struct.pack("<I", value) + whole[at + 4 :])
        with pytest.raises(UserError, match=message):
            imported(source, tmp_path / "store")
    first = struct.unpack_from("<I", whole, 4)[0]
    shard.write_bytes(whole[:first] + struct.pack("<I", 1 << 31) + whole[first + 4 :])
    imported(source, tmp_path / "store", sets.BY_COLUMN)
    assert "do not match the sizes of its columns" in quarantine(tmp_path / "store")["shard.00000.mds, sample 0"]
    shard.write_bytes(whole[:-1])
    with pytest.raises(UserError, match=r"has [\d,]+ bytes, but index.json records"):
        open_importer(source)
    shard.unlink()
    with pytest.raises(UserError, match="is missing"):
        open_importer(source)
    for before, after, message in (
        ('"shard.00000.mds"', '"../shard.00000.mds"', "is not in the folder"),
        ('"format": "mds"', '"format": "csv"', "tintype reads MDS version 2"),
        ('"samples": 3', '"samples": -1', "not the index of MDS shards"),
        ("jpeg:90", "ndarray", "needs a column 'image'"),
        ("{", "", "not the index of MDS shards"),
    ):
        shard.write_bytes(whole)
        file.write_text(index.replace(before, after))
        with pytest.raises(UserError, match=message):
            open_importer(source)


def test_a_stopped_import_resumes_through_any_importer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "SHARD_ROWS", 2)
    for form, (write, options) in sets.FORMS.items():
        source, out = write(tmp_path / form, sets.entries(7)), tmp_path / f"{form}-store"

        def stop(progress: Any) -> None:
            if progress.done == 5:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            tried(source, out, options, stop)
        imported(source, out, options)
        assert records(out) == expected(sets.entries(7))


def animated(form: str) -> bytes:
    frames = [Image.open(io.BytesIO(image_file(seed))) for seed in range(3)]
    buffer = io.BytesIO()
    frames[0].save(buffer, form, save_all=True, append_images=frames[1:])
    return buffer.getvalue()


def bomb(side: int = 60_000) -> bytes:
    """A PNG of some hundred bytes that says it has gigabytes of pixels."""
    content = bytearray(image_file(0))
    content[16:24] = struct.pack(">II", side, side)
    content[29:33] = struct.pack(">I", zlib.crc32(content[12:29]))
    return bytes(content)


def sixteen() -> bytes:
    buffer = io.BytesIO()
    Image.new("I;16", (24, 20), 40_000).save(buffer, "PNG")
    return buffer.getvalue()


def sixteen_of_colour() -> bytes:
    """24 × 20 pixels of (0x1234, 0x5678, 0x9abc), which Pillow cannot write."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    rows = (b"\0" + bytes.fromhex("123456789abc") * 24) * 20
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", 24, 20, 16, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def test_bad_images_are_set_aside_and_odd_ones_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cmyk = io.BytesIO()
    Image.open(io.BytesIO(image_file(1))).convert("CMYK").save(cmyk, "JPEG")
    turned = Image.Exif()
    turned[0x0112] = 6
    bad = {
        "cannot be read": [b"", image_file(2, form="jpeg")[:-40], image_file(3)[:-60], b"<html>no image</html>"],
        "the limit is": [bomb(9000)],
        "decompression bomb": [bomb()],
        "convert the image to 8 bits": [sixteen()],
        "animated": [animated("GIF"), animated("WEBP"), animated("PNG"), animated("TIFF")],
    }
    good = [
        cmyk.getvalue(),
        image_file(4, exif=turned, form="jpeg"),
        animated("MPO"),
        image_file(5, form="gif"),
        sixteen_of_colour(),
    ]
    images = [*(one for some in bad.values() for one in some), *good]
    source = parquet_of(tmp_path / "a.parquet", images, caption=["x"] * len(images))
    about = imported(source, tmp_path / "store")
    reasons = list(quarantine(tmp_path / "store").values())
    assert about.quarantined == len(reasons) == len(images) - len(good) and sum(about.counts.values()) == len(good)
    for reason, message in zip(reasons, [message for message, some in bad.items() for _ in some], strict=True):
        assert message in reason
    store = open_store(tmp_path / "store")
    assert [side.tolist()[1] for side in store.sizes()] == [20, 24], "put upright"
    assert [store.encoded(row).content == good[row] for row in range(5)] == [True, False, True, True, True]
    assert decode(store.encoded(4))[:, 0, 0].tolist() == [0x12, 0x56, 0x9A]
    with monkeypatch.context() as patched:
        patched.setattr("PIL.ImageFile.ImageFile.load", lambda self: pytest.fail("pixels were decoded"))
        for one in (bomb(9000), bomb()):
            with pytest.raises(UserError):
                decode(Encoded("bomb", one))


def test_bad_captions_are_set_aside(tmp_path: Path) -> None:
    good = ["a cat <3 of 2 > 1", "<person> waves & smiles", "x" * 20_000, "no 🙂\u2028line"]
    bad = {
        "": "no caption long",
        " \n": "no caption long",
        "x" * 100_000: "has 100,000 characters",
        "a <b>fat</b> cat": "HTML in it: <b>",
        'see <a href="x">this</a>': "HTML in it: <a href",
        "<!DOCTYPE html>": "HTML",
        "one<br/>two": "HTML in it: <br/>",
    }
    texts = [*good, *bad]
    column = pyarrow.array([text.encode() for text in texts] + [b"caf\xe9", b"fine"], pyarrow.binary())
    strings = pyarrow.StringArray.from_buffers(len(column), column.buffers()[1], column.buffers()[2])
    images = [{"bytes": image_file(seed), "path": None} for seed in range(len(strings))]
    parquet.write_table(pyarrow.table({"image": images, "caption": strings}), tmp_path / "a.parquet")
    about = imported(tmp_path / "a.parquet", tmp_path / "store")
    store, reasons = open_store(tmp_path / "store"), list(quarantine(tmp_path / "store").values())
    assert [store.captions_of(row)["long"] for row in range(len(store))] == [*good, "fine"]
    assert about.quarantined == len(reasons) == len(bad) + 1
    for reason, message in zip(reasons, [*bad.values(), "column caption is not text in UTF-8"], strict=True):
        assert message in reason


def test_a_file_whose_name_is_not_utf8_is_stored(tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    name = tmp_path / "set" / b"caf\xe9.png".decode("utf-8", "surrogateescape")
    try:
        name.write_bytes(image_file(0))
    except OSError:
        pytest.skip("this file system has names in UTF-8 only")
    name.with_suffix(".txt").write_text("a caption")
    (tmp_path / "set" / b"\xe9.png".decode("utf-8", "surrogateescape")).write_bytes(b"")
    about = imported(tmp_path / "set", tmp_path / "store")
    assert sum(about.counts.values()) == 1 and about.quarantined == 1
    assert "caf\\udce9.png" in open_store(tmp_path / "store").name(0)
    assert len(quarantine(tmp_path / "store")) == 1


def test_columns_that_are_not_there_are_named(tmp_path: Path) -> None:
    some = sets.entries(4)
    for form, (write, _) in sets.FORMS.items():
        with pytest.raises(UserError, match="no text column 'words'"):
            imported(write(tmp_path / form, some), tmp_path / "out", ImportOptions(captions={"long": "words"}))
    folder = tmp_path / "jsonl"
    (folder / "metadata.jsonl").write_text('{"file": "p0.png", "long": "a"}\n')
    with pytest.raises(UserError, match=r"metadata.jsonl has no column 'file_name'"):
        open_importer(folder)
    (folder / "metadata.jsonl").unlink()
    (folder / "metadata.csv").write_text("name,long\np0.png,a\n")
    with pytest.raises(UserError, match=r"metadata.csv has no column 'file_name'"):
        open_importer(folder)


def test_offsets_that_point_elsewhere_are_not_followed(tmp_path: Path) -> None:
    folder = sets.saved_split(tmp_path / "set", [sets.entries(2)])
    file = folder / "data-00000-of-00001.arrow"
    whole, offsets = file.read_bytes(), struct.pack("<3i", 0, 5, 10)  # of the column short: "no. 0", "no. 1"
    assert whole.count(offsets) >= 1
    file.write_bytes(whole.replace(offsets, struct.pack("<3i", 0, 5, 1 << 30)))
    with pytest.raises(UserError, match="cannot be read as an Arrow stream"):
        imported(folder, tmp_path / "store")


def test_a_path_in_a_table_may_be_any_bytes(tmp_path: Path) -> None:
    source = sets.saved_split(tmp_path / "set", [sets.entries(2)])
    file = source / "data-00000-of-00001.arrow"
    file.write_bytes(file.read_bytes().replace(b"p0.png", b"p\xff.png"))
    assert imported(source, tmp_path / "store").quarantined == 0
    assert "p\ufffd.png" in open_store(tmp_path / "store").name(0)


@pytest.mark.parametrize("form", ["parquet", "metadata.parquet", "webdataset", "saved", "mds"])
def test_flipped_bytes_give_records_reasons_or_an_error(tmp_path: Path, form: str) -> None:
    write, options = sets.FORMS[form]
    source, draw = write(tmp_path / "set", sets.entries(4)), random.Random(0)
    whole = {file: file.read_bytes() for file in sorted(source.rglob("*")) if file.is_file()}
    refused = 0
    for turn in range(30):
        file = draw.choice(list(whole))
        content = bytearray(whole[file])
        content[draw.randrange(min(len(content), draw.choice((64, 600, len(content)))))] = draw.randrange(256)
        file.write_bytes(bytes(content))
        try:
            outcome = tried(source, tmp_path / f"store-{turn}", options)
            assert outcome.done >= 4
        except UserError:
            refused += 1
        file.write_bytes(whole[file])
    assert 0 < refused < 30
