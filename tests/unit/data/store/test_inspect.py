from __future__ import annotations

import io
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from tests.tiny_store import image_file, imported, parquet_of, tiny_store
from tests.unit.data.store.test_duplicates import again, textured
from tintype.cli import app
from tintype.data.importers.importer import Item
from tintype.data.store import fingerprints as looks
from tintype.data.store import problems
from tintype.data.store.encode import Prepared, Sizing, prepare
from tintype.data.store.importing import ImportOptions
from tintype.data.store.inspect import Asked, Inspection, inspect_store, whole_histogram
from tintype.data.store.inspect_html import to_html
from tintype.data.store.inspect_result import Result
from tintype.data.store.layout import Split, Store, open_store
from tintype.data.store.problems import strange_text
from tintype.data.store.selection import select
from tintype.data.store.writer import Writer
from tintype.errors import StoppedError, UserError


def inspected(store: Path, where: str | None = None, asked: Asked | None = None) -> Inspection:
    opened = open_store(store)
    return inspect_store(opened, select(opened, where, None, name="--where"), asked or Asked())


def titles(result: Result) -> list[str]:
    return [problem["title"] for problem in result["problems"]]


def written(folder: Path, texts: list[str], images: list[bytes] | None = None) -> Path:
    """A store past the checks of the import, as another tool could make it."""
    work = folder / "work"
    work.mkdir(parents=True)
    writer = Writer(work, {"captions": ["long"]})
    for index, text in enumerate(texts):
        made = prepare(Item(f"p{index}.png", images[index] if images else image_file(index, (80, 72))), Sizing())
        assert isinstance(made, Prepared)
        split: Split = "eval" if index % 4 == 3 else "train"
        writer.add(made, f"p{index}.png", split, {"long": text}, {})
    writer.keep()
    writer.finish(folder / "store")
    return folder / "store"


def leaky(folder: Path) -> Path:
    """Make a store of 12 images: 2 are in the evaluation split in another file, 1 is there twice, and 1 is broken."""
    images = [textured(seed) for seed in range(9)]
    images += [again(images[0]), again(images[8], scale=0.8), images[4], b"broken"]
    splits = ["train"] * 8 + ["test"] * 2 + ["train"] * 3
    texts = [f"a thing of the number {index}" for index in range(len(images))]
    folder.mkdir(exist_ok=True)
    source = parquet_of(folder / "a.parquet", images, caption=texts, split=splits)
    imported(source, folder / "store", ImportOptions(split_column="split"))
    return folder / "store"


def test_counts_sizes_and_captions_are_reported(tmp_path: Path) -> None:
    sizes = [(80, 64), (64, 64), (100, 200), (640, 64)]
    images = [
        image_file(index, size, form) for index, (size, form) in enumerate(zip(sizes, ("png", "jpeg") * 2, strict=True))
    ]
    texts = ["one two", "one two three", "four", "one two"]
    source = parquet_of(
        tmp_path / "a.parquet", [*images, b""], caption=[*texts, "x"], split=["train"] * 3 + ["test"] * 2
    )
    imported(source, tmp_path / "store", ImportOptions(split_column="split"))
    result = inspected(tmp_path / "store").result
    assert result["splits"] == {"train": 3, "eval": 1} and result["records"] == result["of"] == 4
    assert result["origins"] == [{"name": "a.parquet", "records": 4}]
    assert result["set_aside"] == {
        "records": 1,
        "reasons": [
            {"reason": "it cannot be read as an image: it is not JPEG, PNG, WebP, GIF, BMP, TIFF or AVIF", "records": 1}
        ],
    }
    assert (result["sizes"]["width"]["min"], result["sizes"]["width"]["median"]) == (64, 90)
    assert result["sizes"]["at_least"] == [{"px": 32, "records": 4}, {"px": 64, "records": 4}]
    assert result["aspects"]["above_3"] == 1 and result["aspects"]["max"] == 10
    assert sum(result["aspects"]["histogram"]["counts"]) == 4 and result["aspects"]["histogram"]["counts"][-1] == 1
    assert result["formats"] == {"PNG": 2, "JPEG": 2} and result["pixels"] == {"RGB": 4}
    about = result["captions"]["long"]
    assert (about["words"]["min"], about["words"]["max"], about["distinct"], about["shared"]) == (1, 3, 3, 2)
    assert about["most_common"] == [{"text": "one two", "records": 2}]
    left = inspected(tmp_path / "store", "width < 100").result
    assert left["records"] == 2 and left["of"] == 4 and left["left_out"]["where"] == 2
    with pytest.raises(UserError, match="of 4 records, --where excludes 4 and --skip excludes 0"):
        inspected(tmp_path / "store", "width < 10")


@pytest.mark.parametrize(
    "values", [[5], [3, 3, 3], list(range(100)), [0, 1, 1, 2], [10, 20, 5000], [1] * 999 + [10**6]]
)
def test_a_histogram_holds_every_value_once(values: list[int]) -> None:
    found = whole_histogram(np.array(values))
    edges, counts = found["edges"], found["counts"]
    assert len(edges) == len(counts) + 1 and sum(counts) == len(values) and len(counts) <= 30
    for low, high, count in zip(edges, edges[1:], counts, strict=False):
        last = high == edges[-1]
        assert count == sum(low <= value and (last or value < high) for value in values)
    assert found["open"] == (max(values) >= edges[-1])


def test_training_images_in_the_evaluation_split_are_the_first_problem(tmp_path: Path) -> None:
    result = inspected(leaky(tmp_path)).result
    assert result["duplicates"]["leaking"] == 2 and result["duplicates"]["leaking_groups"] == 2
    assert (result["duplicates"]["exact"], result["duplicates"]["near"]) == (1, 2)
    first = result["problems"][0]
    assert first["severity"] == "alarm" and first["title"] == "2 training images also in the evaluation split"
    assert "--write-skip" in first["do"] and "3 copies of other images (25.0 %)" in titles(result)
    page = to_html(inspected(tmp_path / "store"))
    assert '<aside class="banner alarm"><strong>2 training images are also in the evaluation split' in page


def test_copies_are_gone_in_two_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    store, skip = leaky(tmp_path / "data"), str(tmp_path / "skip.txt")
    asked = ["data", "inspect", str(store)]
    done = CliRunner().invoke(app, [*asked, "--write-skip", skip])
    assert done.exit_code == 0, done.output
    assert (tmp_path / "store-inspect.html").is_file()
    assert done.stdout.endswith(f"page: {tmp_path.resolve() / 'store-inspect.html'}\n")
    lines = Path(skip).read_text().splitlines()
    assert len(lines) == 4 and lines[0].startswith("# Copies in the store ")
    assert sum(" repeats  # train, a.parquet, row 11: like train, a.parquet, row 4" in line for line in lines) == 1
    result = json.loads(CliRunner().invoke(app, [*asked, "--skip", skip, "--json"]).stdout)
    assert result["splits"] == {"train": 7, "eval": 2} and result["duplicates"]["groups"] == 0
    assert result["left_out"] == {"where": 0, "skip": 3, "note": None}
    opened = open_store(store)
    rows = select(opened, None, Path(skip)).rows(opened, "train").tolist()
    assert {opened.about_row(row)["source"] for row in rows} == {
        f"a.parquet, row {row}" for row in (1, 2, 3, 4, 5, 6, 7)
    }
    for more, message in (
        (["--write-skip", skip], "this file exists already"),
        (["--write-skip", "a.parquet"], "the output is a text file"),
        (["--write-skip", "new.txt", "--where", "width > 3"], "searches the whole store"),
        (["--out", str(store / "store.json")], "a file name that ends in .html"),
        (["--out", str(tmp_path / "no" / "x.html")], "cannot write"),
    ):
        wrong = CliRunner().invoke(app, [*asked, *more])
        assert isinstance(wrong.exception, UserError) and message in str(wrong.exception)
    assert open_store(store).identity == json.loads((store / "store.json").read_text())["identity"]


class _Elements(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def test_what_captions_and_names_say_is_text(tmp_path: Path) -> None:
    evil = "<script>alert(1)</script><img src=x onerror=alert(2)>\"'><svg onload=alert(3)>{{ 7*7 }}</style>"
    store = written(tmp_path, [evil] * 12)
    (store / "quarantine.jsonl").write_text(json.dumps({"source": evil, "reason": f"reason {evil}"}) + "\n")
    page = to_html(inspected(store))
    elements = _Elements()
    elements.feed(page)
    tags = {tag for tag, _ in elements.found}
    assert (
        "script" not in tags and "{{" in page and "49" not in re.sub(r"base64,[^\"]*", "", page).split("<body>")[1][:0]
    )
    for tag, attributes in elements.found:
        assert not [name for name in attributes if name.startswith("on")]
        assert all(str(value).startswith("data:image/jpeg") for name, value in attributes.items() if name == "src")
        assert tag != "link" and all(str(v).startswith("#") for name, v in attributes.items() if name == "href")
    assert page.count("&lt;script&gt;") >= 12 and page.count("<svg") == 4
    assert "http" not in re.sub(r"http-equiv", "", page)


def test_samples_are_drawn_by_their_seed_alone(tmp_path: Path) -> None:
    store = tiny_store(tmp_path, 40)

    def rows(asked: Asked) -> list[int]:
        return [sample["row"] for sample in inspected(store, asked=asked).result["samples"]]

    first, second = (rows(Asked(samples=6, seed=seed)) for seed in (0, 1))
    assert rows(Asked(samples=6)) == first != second and len(set(first)) == 6
    assert len(rows(Asked(samples=500))) == 40
    opened = open_store(store)
    assert to_html(inspected(store)) == to_html(inspected(store))
    sample = inspected(store, asked=Asked(samples=6)).result["samples"][0]
    assert sample["captions"] == opened.captions_of(first[0]) and sample["row"] == first[0]


CLEAN = [f"a thing with the number {index} on it" for index in range(24)]


@pytest.mark.parametrize(
    ("texts", "title"),
    [
        ([*CLEAN[:22], "", " "], "2 records without the caption long (8.3 %)"),
        ([*CLEAN[:23], "word " * 257], "1 caption long of more than 256 words"),
        ([*CLEAN[:14], *["a photo"] * 10], "The same caption long on many images, 10 times the most common"),
        ([*CLEAN[:4], *[f"thing {index % 3}" for index in range(20)]], "Few distinct captions long: 7 on 24 records"),
        ([*CLEAN[:23], "a <b>cat</b>"], "1 caption long with tags of HTML"),
        ([*CLEAN[:23], "cats &amp; dogs"], "1 caption long with entities of HTML, such as &amp;"),
        ([*CLEAN[:23], "see https://a.b"], "1 caption long with web addresses"),
        ([*CLEAN[:23], "a cafÃ© here"], "1 caption long with letters that were decoded wrongly"),
    ],
)
def test_problems_of_captions_are_found(tmp_path: Path, texts: list[str], title: str) -> None:
    assert titles(inspected(written(tmp_path, texts)).result) == [title]


def test_a_clean_store_has_no_problems_and_words_are_no_html(tmp_path: Path) -> None:
    result = inspected(written(tmp_path, [*CLEAN[:22], "a cat <3 of 5 > 4", "R&B; <person> in a café"])).result
    assert not result["problems"]
    assert "None of those that are looked for" in to_html(inspected(tmp_path / "store"))
    assert strange_text("Müller & Söhne, 50 % – “quoted”") is None


def _as(mode: str, size: tuple[int, int] = (80, 72)) -> bytes:
    buffer = io.BytesIO()
    Image.open(io.BytesIO(image_file(99, size))).convert(mode).save(buffer, "JPEG" if mode == "CMYK" else "PNG")
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("image", "title"),
    [
        (image_file(50, (63, 90)), "1 image with a short side of less than 64 px (4.2 %)"),
        (image_file(50, (80, 250)), "1 image more than three times as long as wide, or as wide as long"),
        (_as("CMYK"), "1 image with pixels other than RGB (1 CMYK)"),
        (_as("L"), "1 image with pixels other than RGB (1 L)"),
    ],
)
def test_problems_of_images_are_found(tmp_path: Path, image: bytes, title: str) -> None:
    images = [*(image_file(index, (80, 72)) for index in range(23)), image]
    assert titles(inspected(written(tmp_path, CLEAN, images)).result) == [title]


def test_empty_splits_and_many_records_set_aside_are_problems(tmp_path: Path) -> None:
    images = [*(image_file(index, (80, 72)) for index in range(9)), b"", b"broken"]
    source = parquet_of(tmp_path / "a.parquet", images, caption=CLEAN[:11])
    imported(source, tmp_path / "store", ImportOptions(eval_share=0))
    result = inspected(tmp_path / "store").result
    assert titles(result) == ["The split eval is empty", "2 records set aside by the import (18.2 %)"]
    assert [problem["severity"] for problem in result["problems"]] == ["alarm", "notice"]


def test_a_stopped_inspection_resumes_and_a_second_one_decodes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TINTYPE_CACHE", str(tmp_path / "cache"))
    store = open_store(tiny_store(tmp_path, 40))
    seen: list[int] = []
    first_look = looks.look

    def counted(one: Any) -> Any:
        seen.append(1)
        return first_look(one)

    monkeypatch.setattr(looks, "look", counted)
    done: list[int] = []
    everything = select(store, None, None)
    with pytest.raises(StoppedError, match="read so far are kept; run the same command to resume"):
        inspect_store(store, everything, Asked(), lambda: len(done) > 10, lambda at, _: done.append(at))
    looked, begun = len(seen), []
    found = inspect_store(store, everything, Asked(), on_progress=lambda at, total: begun.append((at, total)))
    assert begun[0] == (10, 40) and begun[-1] == (40, 40)
    assert len(seen) - looked == 30
    inspect_store(Store(store.path), everything, Asked())
    assert len(seen) - looked == 30
    monkeypatch.setenv("TINTYPE_CACHE", str(tmp_path / "other"))
    fresh = inspect_store(store, everything, Asked())
    assert fresh.result == found.result


def test_small_images_are_not_left_out_where_all_are_small() -> None:
    def advice(tiny: int) -> str:
        sizes = {"sizes": {"tiny": tiny}, "aspects": {"above_3": 0}, "pixels": {"RGB": 3}, "records": 3}
        return str(next(problems._of_images(cast(Result, sizes)))["do"])

    assert "data.where" in advice(2) and "data.where" not in advice(3)
