"""Each preset is tried on a few files of its set's form, written here by the description of that form."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import parquet
from typer.testing import CliRunner

from tests.tiny_store import image_file, imported
from tintype.cli import app
from tintype.data.importers import FORMATS, open_importer
from tintype.data.importers.importer import MOST_TEXT_BYTES, Listed, Reading
from tintype.data.presets import Preset, preset_names, read_preset
from tintype.data.store.layout import Store, open_store
from tintype.errors import UserError

COUNT = 6


def midjourney(folder: Path) -> Path:
    """Parquet files of the hub: an image is a struct with its bytes."""
    (folder / "data").mkdir(parents=True)
    for part in range(2):
        rows = [
            {
                "id": f"{index}",
                "prompt": f"prompt {index} --v 6",
                "image": {"bytes": image_file(index), "path": None},
                "llava": f"The image shows number {index}.",
                "llava_status": "success",
            }
            for index in range(part, COUNT, 2)
        ]
        parquet.write_table(pyarrow.Table.from_pylist(rows), folder / "data" / f"train-{part:05d}-of-00002.parquet")
    return folder


def of_the_hub(place: str, **columns: Any) -> Callable[[Path], Path]:
    """Return a writer of one Parquet file of the hub, whose columns have these values; {} in a text is the number."""

    def write(folder: Path) -> Path:
        (folder / place).parent.mkdir(parents=True)
        rows = [
            {
                "image": {"bytes": image_file(index, form="jpeg"), "path": None},
                **{name: one.format(index) if isinstance(one, str) else one for name, one in columns.items()},
            }
            for index in range(COUNT)
        ]
        parquet.write_table(pyarrow.Table.from_pylist(rows), folder / place)
        return folder

    return write


def img2dataset(**columns: str) -> Callable[[Path], Path]:
    """Return a writer of tars as img2dataset makes them, with its Parquet files and statistics beside them."""

    def write(folder: Path) -> Path:
        folder.mkdir()
        rows = []
        with tarfile.open(folder / "00000.tar", "w") as tar:
            for index in range(COUNT):
                key, caption = f"00000{index:04d}", f"caption {index}"
                row = {
                    "caption": caption,
                    "url": f"https://example.org/{index}.jpg",
                    "key": key,
                    "status": "success",
                    "error_message": None,
                    "width": 24,
                    "height": 20,
                    "exif": "{}",
                    **{name: f"{value} {index}" for name, value in columns.items()},
                }
                rows.append(row)
                add(tar, f"{key}.jpg", image_file(index, form="jpeg"))
                add(tar, f"{key}.txt", caption.encode())
                add(tar, f"{key}.json", json.dumps(row, indent=4).encode())
        parquet.write_table(pyarrow.Table.from_pylist(rows), folder / "00000.parquet")
        (folder / "00000_stats.json").write_text(json.dumps({"count": COUNT}))
        return folder

    return write


def add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(content)
    tar.addfile(member, io.BytesIO(content))


def cc12m(folder: Path) -> Path:
    made = img2dataset()(folder)
    (made / "00000.tar").rename(made / "cc12m-train-0000.tar")
    return made


def journeydb(folder: Path) -> Path:
    """Lines of annotations, and images in numbered folders, of which the second one was not downloaded."""
    for split, name in (("train", "train_anno_realease_repath.jsonl"), ("valid", "valid_anno_repath.jsonl")):
        images = folder / split / "imgs" / "000"
        images.mkdir(parents=True)
        lines = []
        for index in range(COUNT):
            seed = index + (100 if split == "valid" else 0)
            shard = "000" if index < 4 else "001"
            if shard == "000":
                (images / f"{index}.jpg").write_bytes(image_file(seed, form="jpeg"))
            row = {
                "img_path": f"./{shard}/{index}.jpg",
                "prompt": f"prompt {index} --v 4",
                "Task1": {"Style": [f"style {index}"]},
                "Task2": {"Caption": f"A caption of {index}."},
                "Task3": {"Style Relevant Questions and Answers": [{"Question": "?"}]},
            }
            lines.append(json.dumps(row))
        (folder / split / name).write_text("\n".join(lines) + "\n")
    return folder


def coco(folder: Path) -> Path:
    (folder / "annotations").mkdir(parents=True)
    for split in ("train2017", "val2017"):
        (folder / split).mkdir()
        images, notes = [], []
        for index in range(COUNT):
            seed = index + (100 if split == "val2017" else 0)
            name = f"{seed:012d}.jpg"
            (folder / split / name).write_bytes(image_file(seed, form="jpeg"))
            images.append({"id": seed, "file_name": name, "width": 24, "height": 20, "license": 3})
            notes += [
                {"id": 10 * seed + 5 - number, "image_id": seed, "caption": f"{5 - number} of {seed}. "}
                for number in range(5)
            ]
        content = {"info": {}, "licenses": [], "images": images, "annotations": notes}
        (folder / "annotations" / f"captions_{split}.json").write_text(json.dumps(content))
        (folder / "annotations" / f"instances_{split}.json").write_text("{}")
    return folder


WRITERS: dict[str, Callable[[Path], Path]] = {
    "midjourney-v6": midjourney,
    "pexels": img2dataset(),
    "unsplash": img2dataset(photo_description="by its author", photographer_username="someone", photo_id="id"),
    "alchemist": img2dataset(img_key="key"),
    "cc12m": cc12m,
    "journeydb": journeydb,
    "coco-captions": coco,
    "flux-generated": of_the_hub("data/train-00000-of-00271.parquet", caption_caption="A caption of {}."),
    "flux-reason-6m": of_the_hub(
        "Text/fluxdb-text-00000-of-00143.parquet",
        id="text-{}",
        caption_detail="In detail, {}.",
        caption_text=None,
        caption_detail_cn="{}",
        bool_caption_detail=True,
        score_image_clarity=9,
        score_image_structure=8,
    ),
    "midjourney-v6-recap": of_the_hub("train_00000.parquet", id="{}", gemini="An image of {}."),
}


def captions(store: Store, split: Any) -> list[dict[str, str]]:
    return [dict(store.captions_of(row)) for row in store.rows(split).tolist()]


def test_every_preset_is_tried() -> None:
    assert set(WRITERS) == set(preset_names())


@pytest.mark.parametrize("name", WRITERS)
def test_a_preset_imports_files_of_its_form(name: str, tmp_path: Path) -> None:
    preset = read_preset(name)
    about = imported(WRITERS[name](tmp_path / "set"), tmp_path / "store", preset.options(name))
    assert about.quarantined == 0
    assert sorted(about.captions) == sorted(preset.captions) and sorted(about.attributes) == sorted(preset.attributes)
    assert about.made_from["preset"] == name
    if preset.split_column is not None:
        expected = {"journeydb": 4, "coco-captions": COUNT}[name]
        assert about.counts == {"train": expected, "eval": expected}
    else:
        assert sum(about.counts.values()) == COUNT


def test_the_columns_are_the_right_ones(tmp_path: Path) -> None:
    stores = {}
    for name in ("midjourney-v6", "unsplash", "journeydb", "coco-captions", "flux-reason-6m"):
        options = read_preset(name).options(name)
        options = options if options.split_column else replace(options, eval_share=0.0)
        imported(WRITERS[name](tmp_path / name), tmp_path / f"{name}-store", options)
        stores[name] = open_store(tmp_path / f"{name}-store")
    assert {"long": "The image shows number 3.", "short": "prompt 3 --v 6"} in captions(
        stores["midjourney-v6"], "train"
    )
    assert {"long": "caption 3"} in captions(stores["unsplash"], "train")
    assert stores["unsplash"].table["attribute:photographer"][2].as_py() == "someone 2"
    assert {"long": "In detail, 3."} in captions(stores["flux-reason-6m"], "train")
    assert stores["flux-reason-6m"].table["attribute:clarity"][2].as_py() == 9
    assert {"long": "A caption of 3.", "short": "prompt 3 --v 4"} in captions(stores["journeydb"], "eval")
    first = captions(stores["coco-captions"], "train")[2]
    assert first == {"short": "1 of 2.", "long": "1 of 2. 2 of 2. 3 of 2. 4 of 2. 5 of 2."}, "in the order of their ids"


@pytest.mark.parametrize("name", WRITERS)
def test_an_import_resumes_at_any_place(name: str, tmp_path: Path) -> None:
    options = read_preset(name).options(name)
    reading = Reading(format=options.format, listed=options.listed)
    importer = open_importer(WRITERS[name](tmp_path / "set"), reading)
    whole = list(importer.items(list(options.captions.values()), 0))
    assert len(whole) == importer.count
    for first in (1, importer.count - 1, importer.count):
        assert list(importer.items(list(options.captions.values()), first)) == whole[first:]


def test_another_number_of_records_is_a_note(tmp_path: Path) -> None:
    source = WRITERS["alchemist"](tmp_path / "set")
    command = ["data", "import", str(source), "--preset", "alchemist", "--out"]
    done = CliRunner().invoke(app, [*command, str(tmp_path / "store"), "--eval-share", "0.5"])
    assert done.exit_code == 0, done.output
    shown = " ".join(done.output.split())
    assert "note: alchemist has 6 records instead of 3,350" in shown and "licence of alchemist: Apache-2.0" in shown
    limited = CliRunner().invoke(app, [*command, str(tmp_path / "limited"), "--limit", "4"])
    assert limited.exit_code == 0 and "instead of" not in limited.output
    again = CliRunner().invoke(app, [*command, str(tmp_path / "limited"), "--limit", "4", "--json"])
    assert json.loads(again.stdout)["already_done"] and "licence of alchemist: Apache-2.0" in again.stderr
    assert not read_preset("coco-captions").unexpected(123_287, {"train": 118_287, "eval": 5_000})
    assert len(read_preset("coco-captions").unexpected(123_286, {"train": 118_286, "eval": 5_000})) == 1


def test_options_take_precedence_over_a_preset(tmp_path: Path) -> None:
    source = coco(tmp_path / "set")
    asked = ["--caption", "long=caption", "--attribute", "part=folder", "--eval-share", "0", "--most-bad", "50%"]
    command = ["data", "import", str(source), "--preset", "coco-captions", "--out", str(tmp_path / "store"), *asked]
    assert CliRunner().invoke(app, command).exit_code == 0
    about = open_store(tmp_path / "store").about
    assert about.captions == ["long"] and about.attributes == {"part": "text"}
    assert about.counts == {"train": 2 * COUNT, "eval": 0}
    again = CliRunner().invoke(app, command)
    assert again.exit_code == 0 and "was imported before" in again.output


def test_presets_are_listed_and_shown() -> None:
    rows = json.loads(CliRunner().invoke(app, ["data", "presets", "--json"]).output)
    assert [row["name"] for row in rows] == preset_names()
    assert all(row["license"] and row["home"].startswith("https://") and row["get"] for row in rows)
    listed = CliRunner().invoke(app, ["data", "presets"]).output
    assert all(name in listed for name in preset_names())
    shown = CliRunner().invoke(app, ["data", "presets", "cc12m"]).output
    assert "hf download pixparse/cc12m-wds" in shown and "unverified: license" in shown
    with pytest.raises(UserError, match="unknown preset 'coco'"):
        read_preset("coco")


def test_a_preset_of_ones_own_is_a_file(tmp_path: Path) -> None:
    file = tmp_path / "own.yaml"
    file.write_text("{title: t, home: h, get: [g], license: l, format: parquet, captions: {long: llava}}")
    about = imported(midjourney(tmp_path / "set"), tmp_path / "store", read_preset(str(file)).options(str(file)))
    assert sum(about.counts.values()) == COUNT
    for wrong, message in {
        "format: parket": "unknown format 'parket'",
        "format: listed": "give it with the format listed",
        "splits: {a: train}": "give split_column too",
        "licence: x": "did you mean 'license'",
    }.items():
        file.write_text(f"title: t\nhome: h\nget: [g]\nlicense: l\ncaptions: {{long: llava}}\n{wrong}\n")
        text = file.read_text() if "format" in wrong else file.read_text() + "format: parquet\n"
        file.write_text(text)
        with pytest.raises(UserError, match=message):
            read_preset(str(file))


def test_a_source_of_another_form_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    listed = Listed("img_path", {"lines.jsonl": "imgs"})
    for form in FORMATS:
        message = "none of the files lines.jsonl" if form == "listed" else f"no files of the format {form}"
        with pytest.raises(UserError, match=message):
            open_importer(tmp_path / "empty", Reading(format=form, listed=listed))
        with pytest.raises(UserError, match="does not exist"):
            open_importer(tmp_path / "nowhere", Reading(format=form, listed=listed))


def test_bad_lines_are_set_aside(tmp_path: Path) -> None:
    (tmp_path / "imgs").mkdir()
    (tmp_path / "imgs" / "a.png").write_bytes(image_file(0))
    (tmp_path / "secret.png").write_bytes(image_file(1))
    lines = [
        b'{"img_path": "a.png", "text": "good"}',
        b"",
        b"[1]",
        b'{"img_path": "../secret.png", "text": "t"}',
        b'{"text": "t"}',
        b'{"img_path": "none.png", "text": "t"}',
        b'{"img_path": "a.png", "text": "\xff"}',
        b'{"text": "' + b"x" * (MOST_TEXT_BYTES + 1) + b'"}',
        b'{"img_path": "a.png", "text": "last"}',
    ]
    (tmp_path / "lines.jsonl").write_bytes(b"\n".join(lines))
    importer = open_importer(tmp_path, Reading(format="listed", listed=Listed("img_path", {"lines.jsonl": "imgs"})))
    found = list(importer.items(["text"], 0))
    assert [item.values["text"] for item in found if not item.problem] == ["good", "last"]
    problems = [item.problem for item in found if item.problem]
    expected = ("is not a JSON object", "is not a file in", "is not a file in", "cannot be read", "decode", "more than")
    assert len(problems) == len(expected)
    assert all(part in text for part, text in zip(expected, problems, strict=True)), problems


def change_image(content: Any) -> None:
    content["images"][0]["file_name"] = "../../secret.jpg"


def change_note(content: Any) -> None:
    content["annotations"][0]["image_id"] = 7_777


def drop_images(content: Any) -> None:
    del content["images"]


@pytest.mark.parametrize(
    ("change", "message"),
    [(change_image, "file_name` inside"), (change_note, "unknown `image_id`"), (drop_images, "no list `images`")],
)
def test_damaged_annotations_are_refused(change: Callable[[Any], None], message: str, tmp_path: Path) -> None:
    file = coco(tmp_path) / "annotations" / "captions_train2017.json"
    content = json.loads(file.read_text())
    change(content)
    file.write_text(json.dumps(content))
    with pytest.raises(UserError, match=message):
        open_importer(tmp_path, Reading(format="coco"))


def test_images_of_coco_that_are_missing_are_set_aside(tmp_path: Path) -> None:
    (coco(tmp_path / "set") / "train2017" / f"{0:012d}.jpg").unlink()
    about = imported(tmp_path / "set", tmp_path / "store", read_preset("coco-captions").options("coco-captions"))
    assert about.quarantined == 1 and about.counts == {"train": COUNT - 1, "eval": COUNT}
    for file in sorted((tmp_path / "set" / "val2017").iterdir()):
        file.unlink()
    (tmp_path / "set" / "val2017").rmdir()
    with pytest.raises(UserError, match="val2017, which does not exist"):
        open_importer(tmp_path / "set", Reading(format="coco"))


def test_unverified_facts_name_what_they_are_about() -> None:
    """Presets without a word on it were checked against the publisher's own words."""
    for name in preset_names():
        preset: Preset = read_preset(name)
        if not preset.records:
            assert any(text.startswith("records:") for text in preset.unverified), name
    assert not read_preset("coco-captions").unverified
