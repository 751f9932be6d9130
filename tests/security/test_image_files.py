"""Image files are hostile: none starts a program, fills the memory, leads out of its folder or ends in a traceback."""

from __future__ import annotations

import ast
import hashlib
import io
import os
import tarfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest
from PIL import EpsImagePlugin, Image
from pyarrow import parquet
from typer.testing import CliRunner

import tintype
from tests.tiny_store import image_file, parquet_of, tried
from tintype.cli import app
from tintype.data import image_file as image_files
from tintype.data import image_sets as images
from tintype.data.decoding.threads import PixelBudget
from tintype.data.folders import files_in
from tintype.data.image_file import BadImageError, Encoded, Limits, open_image, pixels_stated, read_file
from tintype.data.image_sets import decode, map_prefetched, open_images
from tintype.data.importers import open_importer
from tintype.data.importers.importer import Item, Reading
from tintype.data.parquet_file import parquet_rows
from tintype.data.recaption.server import data_url
from tintype.data.store import importing
from tintype.data.store.encode import Prepared, Refused, Sizing, prepare
from tintype.data.store.export import export_store
from tintype.data.store.fingerprints import look
from tintype.data.store.importing import ImportOptions
from tintype.data.store.inspect_html import _uri
from tintype.data.store.layout import open_store
from tintype.data.store.writer import Writer
from tintype.errors import UserError
from tintype.runtime.interrupt import Interrupt
from tintype.study.report.html import _image

EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\nshowpage\n%%EOF\n"
PACKAGE = Path(tintype.__file__).parent


def command(*arguments: str) -> Any:
    return CliRunner().invoke(app, [*arguments])


def captioned_folder(folder: Path, images: dict[str, bytes]) -> Path:
    folder.mkdir(parents=True)
    for name, content in images.items():
        (folder / name).write_bytes(content)
        (folder / name).with_suffix(".txt").write_text(f"a caption of {name}")
    return folder


# --- programs


@pytest.fixture
def started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], bool]:
    """A Ghostscript that only notes that it was started."""
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "gs").write_text(f'#!/bin/sh\ncase "$1" in --version) ;; *) touch {programs}/started ;; esac\n')
    (programs / "gs").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(EpsImagePlugin, "gs_binary", None)
    return (programs / "started").exists


@pytest.fixture
def any_format(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_files, "_formats", lambda: None)


def store_of(folder: Path, content: bytes) -> Path:
    """A store past the checks of the import, as an earlier version could make it."""
    (folder / "work").mkdir()
    writer = Writer(folder / "work", {"captions": ["long"]})
    made = prepare(Item("a.png", image_file(0)), Sizing())
    assert isinstance(made, Prepared)
    bad = Prepared(content, 24, 20, hashlib.sha256(content).hexdigest(), "0" * 64)
    for index, one in enumerate((made, bad)):
        writer.add(one, f"{index}.png", "train", {"long": "words"}, {})
    writer.keep()
    writer.finish(folder / "store")
    return folder / "store"


def in_report(content: bytes, folder: Path) -> None:
    (folder / "preview.png").write_bytes(content)
    if _image(folder, "preview.png").uri is None:
        raise BadImageError("left out of the report")


READERS: dict[str, Callable[[bytes, Path], object]] = {
    "evaluate, train": lambda content, folder: decode(Encoded("a.png", content)),
    "inspect": lambda content, folder: look(Encoded("a.png", content)),
    "page of inspect": lambda content, folder: _uri(Encoded("a.png", content)),
    "recaption": lambda content, folder: data_url(Encoded("a.png", content)),
    "report": in_report,
}


@pytest.mark.parametrize("reader", READERS)
def test_no_reader_hands_postscript_to_a_program(tmp_path: Path, started: Callable[[], bool], reader: str) -> None:
    with pytest.raises(BadImageError):
        READERS[reader](EPS, tmp_path)
    assert not started()


@pytest.mark.parametrize("reader", READERS)
def test_control_without_the_list_of_formats_the_program_is_started(
    tmp_path: Path, started: Callable[[], bool], any_format: None, reader: str
) -> None:
    with pytest.raises((UserError, OSError)):
        READERS[reader](EPS, tmp_path)
    assert started()


def test_an_import_sets_postscript_aside_and_an_export_names_it(tmp_path: Path, started: Callable[[], bool]) -> None:
    folder = captioned_folder(tmp_path / "set", {**{f"{n}.png": image_file(n) for n in range(3)}, "3.png": EPS})
    done = command("data", "import", str(folder), "--out", str(tmp_path / "out"), "--most-bad", "25%")
    assert done.exit_code == 0, done.output
    assert open_store(tmp_path / "out").about.quarantined == 1 and not started()
    assert "3.png cannot be read as an image: it is not JPEG, PNG" in (tmp_path / "out/quarantine.jsonl").read_text()
    with pytest.raises(BadImageError, match=r"row 1 \(1\.png\) cannot be read as an image"):
        export_store(open_store(store_of(tmp_path, EPS)), "parquet", tmp_path / "exported", None, Interrupt())


def forbidden(source: str) -> list[str]:
    """Return ways to open image files. Of Pillow only what makes, changes and writes images is allowed."""
    modules = {"Image", "ImageDraw", "ImageFont", "PngImagePlugin", "UnidentifiedImageError"}
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found += [
                one.name for one in node.names if one.name.split(".")[0] in ("PIL", "cv2", "imageio", "torchvision")
            ]
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in ("PIL", "cv2", "imageio"):
            names = {one.name if one.asname in (None, one.name) else f"{one.name} as" for one in node.names}
            found += sorted(names if node.module != "PIL" else names - modules)
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            name = f"{node.value.id}.{node.attr}"
            found += [name] if name in ("Image.open", "Image.init", "Image.preinit") or node.attr == "imread" else []
    return sorted(found)


def test_the_package_opens_images_in_one_place() -> None:
    texts = {file: file.read_text(encoding="utf-8") for file in PACKAGE.rglob("*.py")}
    some = {
        file: text for file, text in texts.items() if any(word in text for word in ("PIL", "cv2", "imageio", "imread"))
    }
    opened = {file: names for file, text in some.items() if (names := forbidden(text))}
    assert {file.relative_to(PACKAGE).as_posix() for file in opened} == {"data/image_file.py"}, opened
    assert opened[PACKAGE / "data/image_file.py"] == ["Image.init", "Image.open", "Image.open"]


@pytest.mark.parametrize(
    "source",
    [
        "from PIL import Image\nImage.open(x)",
        "import PIL.Image",
        "from PIL import Image as I",
        "from PIL.Image import open",
    ],
)
def test_control_another_opener_is_seen(source: str) -> None:
    assert forbidden(source)


@pytest.mark.parametrize("form", ["jpeg", "png", "webp", "gif", "bmp", "tiff", "avif"])
def test_accepted_formats_are_read(form: str) -> None:
    if form.upper() not in Image.registered_extensions().values():
        pytest.skip(f"this build of Pillow lacks {form}")
    assert decode(Encoded("a", image_file(1, form=form))).shape == (3, 20, 24)


@pytest.mark.parametrize("form", ["ppm", "pcx", "ico", "tga"])
def test_other_formats_are_refused_by_name(form: str) -> None:
    with pytest.raises(BadImageError, match=r"a\.png cannot be read as an image: it is not JPEG, PNG, .* or AVIF"):
        decode(Encoded("a.png", image_file(1, form=form)))


@pytest.mark.parametrize("error", [OverflowError, KeyError, RuntimeError, AttributeError, AssertionError("x")])
def test_whatever_a_decoder_raises_is_one_kind_of_error(error: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(Image.Image, "convert", broken)
    expected = AssertionError if isinstance(error, AssertionError) else BadImageError
    with pytest.raises(expected):
        look(Encoded("a.png", image_file(1)))


# --- links


def secret_folder(tmp_path: Path) -> Path:
    """Three images; the caption of the last is a link to a token outside."""
    (tmp_path / "token").write_text("hf_secret")
    folder = captioned_folder(tmp_path / "set", {f"{n}.png": image_file(n) for n in range(3)})
    (folder / "2.txt").unlink()
    (folder / "2.txt").symlink_to(tmp_path / "token")
    return folder


@pytest.mark.promise(19)
def test_a_caption_that_is_a_link_to_a_token_is_refused(tmp_path: Path) -> None:
    """Import a folder whose caption is a link to a token outside."""
    done = command("data", "import", str(secret_folder(tmp_path)), "--out", str(tmp_path / "store"))
    assert isinstance(done.exception, UserError)
    assert "2.txt is a link that leads out of" in str(done.exception) and "--follow-links" in str(done.exception)
    assert not (tmp_path / "store").exists()


@pytest.mark.promise(19, control="--follow-links")
def test_control_with_follow_links_it_is_read(tmp_path: Path) -> None:
    """Import the same folder with --follow-links."""
    source, out = str(secret_folder(tmp_path)), tmp_path / "store"
    assert command("data", "import", source, "--out", str(out), "--follow-links").exit_code == 0
    assert "hf_secret" in open_store(out).texts("caption:long")


def test_links_that_stay_in_the_folder_are_followed_to_files_only(tmp_path: Path) -> None:
    folder = captioned_folder(tmp_path / "set" / "inner", {"0.png": image_file(0)}).parent
    (folder / "1.png").symlink_to("inner/0.png")
    (folder / "again").symlink_to("inner")
    (folder / "loop").symlink_to("loop")
    assert [file.relative_to(folder).as_posix() for file in files_in(folder)] == ["1.png", "inner/0.png", "inner/0.txt"]


@pytest.mark.promise(19)
def test_a_folder_that_is_a_link_is_read_only_where_that_is_meant(tmp_path: Path) -> None:
    """List a folder with a link to a folder outside."""
    captioned_folder(tmp_path / "elsewhere", {"0.png": image_file(0)})
    (tmp_path / "elsewhere" / "back").symlink_to(tmp_path / "set")
    folder = captioned_folder(tmp_path / "set", {"1.png": image_file(1)})
    (folder / "more").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UserError, match="more is a link that leads out"):
        files_in(folder)
    assert [file.name for file in files_in(folder, (".png",), follow_links=True)] == ["1.png", "0.png"]
    (tmp_path / "named").symlink_to(tmp_path / "elsewhere" / "0.png")
    assert files_in(tmp_path / "elsewhere" / "back" / "..", (".png",), follow_links=True), (
        "what the user names is meant"
    )


@pytest.mark.promise(19)
def test_a_set_to_score_has_no_links_that_lead_out(tmp_path: Path) -> None:
    """Score a folder with a link to an image outside."""
    (tmp_path / "outside.png").write_bytes(image_file(0))
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "a.png").symlink_to(tmp_path / "outside.png")
    done = command("evaluate", "--images", str(tmp_path / "set"), "--reference", str(tmp_path / "set"))
    assert isinstance(done.exception, UserError) and "a.png is a link that leads out of" in str(done.exception)
    assert len(list(open_images(tmp_path / "set", follow_links=True))) == 1


@pytest.mark.promise(19)
@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.GNUTYPE_SPARSE])
def test_a_member_of_a_tar_to_score_that_is_no_plain_file_is_refused(tmp_path: Path, kind: bytes) -> None:
    """Score a tar with a link, a pipe or a sparse file in it: a set without it would be another set."""
    member = tarfile.TarInfo("a.png")
    member.type, member.linkname = kind, "b.png"
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        tar.addfile(member)
    with pytest.raises(UserError, match=r"a\.tar:a\.png is a link, or is not a regular file"):
        list(open_images(tmp_path / "a.tar"))


@pytest.mark.promise(19)
@pytest.mark.parametrize("hidden", [False, True])
def test_metadata_names_no_link_that_leads_out(tmp_path: Path, hidden: bool) -> None:
    """Name a link, hidden or not, that leads out in the metadata of a folder."""
    (tmp_path / "outside.png").write_bytes(image_file(0))
    (tmp_path / "set").mkdir()
    name = ".a.png" if hidden else "a.png"
    (tmp_path / "set" / name).symlink_to(tmp_path / "outside.png")
    (tmp_path / "set" / "b.png").write_bytes(image_file(1))
    rows = [f'{{"file_name": "{one}", "text": "words"}}' for one in (name, "b.png")]
    (tmp_path / "set" / "metadata.jsonl").write_text("\n".join(rows))
    if not hidden:
        with pytest.raises(UserError, match=r"a\.png is a link that leads out"):
            open_importer(tmp_path / "set")
    else:
        first, second = open_importer(tmp_path / "set").items(["text"], 0)
        assert first.content is None and "leads out of" in first.problem and second.content == image_file(1)
    linked = open_importer(tmp_path / "set", Reading(follow_links=True))
    assert [item.content for item in linked.items(["text"], 0)] == [image_file(0), image_file(1)]


# --- sizes


@pytest.mark.promise(13)
def test_a_file_of_nine_gigabytes_is_set_aside_unread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Import and score an image and a caption of nine gigabytes."""
    folder = captioned_folder(tmp_path / "set", {f"{n}.jpg": image_file(n, form="jpeg") for n in range(3)})
    os.truncate(folder / "1.jpg", 9 << 30)
    os.truncate(folder / "2.txt", 9 << 30)
    about = tried(folder, tmp_path / "store").about
    assert about is not None and sum(about.counts.values()) == 1 and about.quarantined == 2
    said = (tmp_path / "store" / "quarantine.jsonl").read_text()
    assert "1.jpg has 9,663,676,416 bytes; the limit is 67,108,864" in said and "2.txt has 9,663,676,416 bytes" in said
    with pytest.raises(BadImageError, match=r"1\.jpg has 9,663,676,416 bytes"):
        list(open_images(folder))


@pytest.mark.promise(13, control="a larger limit on bytes")
def test_control_without_the_limit_a_large_file_is_read(tmp_path: Path) -> None:
    """Read a file of 64 MiB and a byte with a larger limit."""
    (tmp_path / "a.jpg").write_bytes(image_file(0))
    os.truncate(tmp_path / "a.jpg", (64 << 20) + 1)
    with pytest.raises(BadImageError):
        read_file(tmp_path / "a.jpg")
    assert len(read_file(tmp_path / "a.jpg", 1 << 30)) == (64 << 20) + 1


BLOB = 1 << 20


def repeated_blobs(path: Path, nested: bool, rows: int = 64) -> Path:
    """A file of few kilobytes with so many blobs: one in a dictionary, which all rows name."""
    blob = bytes(BLOB)
    kind = pyarrow.struct([("bytes", pyarrow.binary()), ("path", pyarrow.string())]) if nested else pyarrow.binary()
    values = pyarrow.array([{"bytes": blob, "path": None} if nested else blob] * rows, kind)
    table = pyarrow.table({"image": values, "caption": ["words"] * rows})
    parquet.write_table(table, path, compression="zstd", dictionary_pagesize_limit=1 << 30, data_page_size=1 << 30)
    assert path.stat().st_size < 10_000
    return path


@pytest.mark.promise(13)
@pytest.mark.parametrize("nested", [False, True])
def test_a_parquet_of_large_blobs_is_read_one_at_a_time(tmp_path: Path, nested: bool) -> None:
    """Read 64 rows of a Parquet file that name one blob, and count what Arrow holds at a time."""
    path = repeated_blobs(tmp_path / "a.parquet", nested)
    before, most, rows = pyarrow.total_allocated_bytes(), 0, 0
    for _, values in parquet_rows(path, ["image", "caption"], BLOB // 2):
        most, rows = max(most, pyarrow.total_allocated_bytes() - before), rows + 1
        assert str(values["image"]).startswith("it has 1,048,")
    assert rows == 64 and most < 8 * BLOB
    for number, one in enumerate(open_images(path).encoded()):
        assert len(one.content) == BLOB and pyarrow.total_allocated_bytes() - before < 8 * BLOB, number
    about = [item.problem for item in open_importer(path, Reading(Limits(bytes=BLOB // 2))).items(["caption"], 0)]
    assert len(about) == 64 and all("the column image is too large: it has 1,048," in one for one in about)


@pytest.mark.promise(13, control="batches of many rows")
def test_control_in_batches_the_blobs_fill_the_memory(tmp_path: Path) -> None:
    """Read the same rows in one batch."""
    path = repeated_blobs(tmp_path / "a.parquet", nested=False)
    before = pyarrow.total_allocated_bytes()
    batch = next(parquet.ParquetFile(path).iter_batches(batch_size=64))
    assert pyarrow.total_allocated_bytes() - before >= 64 * BLOB and batch.num_rows == 64


def test_the_limits_of_an_import_are_settings(tmp_path: Path) -> None:
    images = [image_file(0, (24, 20)), image_file(1, (40, 30)), image_file(2, (24, 20), "bmp")]
    source = parquet_of(tmp_path / "a.parquet", images, caption=["a", "b", "c"])
    for options, reason in (
        (["--most-pixels", "1000"], "row 1 has 40 × 30 pixels; the limit is 1000"),
        (["--most-bytes", "1400"], "the column image is too large: it has"),
    ):
        out = tmp_path / options[0]
        done = command("data", "import", str(source), "--out", str(out), "--most-bad", "50%", *options)
        assert done.exit_code == 0, done.output
        assert reason in (out / "quarantine.jsonl").read_text() and len(open_store(out)) == 2
    done = command("data", "import", str(source), "--out", str(tmp_path / "a"), "--most-pixels", "178956971")
    assert done.exit_code == 2, "Pillow reads no more"


def test_what_is_stored_can_be_read_with_the_default_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A limit that was raised for the source is none for the store: it may only be shrunk into it."""
    monkeypatch.setattr("tintype.data.store.encode.LIMITS", Limits(pixels=500))
    kept = prepare(Item("a", image_file(0, (30, 20))), Sizing(), Limits(pixels=600))
    assert isinstance(kept, Refused) and "shrink it with --short-px" in kept.reason
    assert isinstance(prepare(Item("a", image_file(0, (30, 20))), Sizing(short_px=10), Limits(pixels=600)), Prepared)


class Watched:
    """Counts what is under way."""

    def __init__(self) -> None:
        self.now, self.most, self._lock = 0, 0, threading.Lock()

    def work(self, size: int) -> int:
        with self._lock:
            self.now += size
            self.most = max(self.most, self.now)
        threading.Event().wait(0.002)
        with self._lock:
            self.now -= size
        return size


@pytest.fixture
def four_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "usual_threads", lambda: 4)


@pytest.mark.promise(13)
def test_pixels_under_way_are_bounded_and_the_order_stays(four_threads: None) -> None:
    """Decode images of many sizes in four threads, and count the pixels at a time."""
    sizes, watched = [60, 60, 30, 30, 30, 300, 10, 10, 60] * 3, Watched()
    assert list(map_prefetched(watched.work, sizes, lambda size: size, 100)) == sizes
    assert watched.most == 300, "a single one may have more"
    watched = Watched()
    small = [size for size in sizes if size <= 100]
    assert list(map_prefetched(watched.work, small, lambda size: size, 100)) == small and watched.most <= 100
    assert list(map_prefetched(watched.work, [], lambda size: size, 100)) == []


@pytest.mark.promise(13, control="no count of pixels")
def test_control_without_counting_more_is_under_way(four_threads: None) -> None:
    """Decode them without counting."""
    watched = Watched()
    list(map_prefetched(watched.work, [60] * 12))
    assert watched.most > 100


def test_an_import_and_a_set_to_score_count_their_pixels(
    tmp_path: Path, four_threads: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched = Watched()
    source = parquet_of(tmp_path / "a.parquet", [image_file(n, (20, 20)) for n in range(8)], caption=["x"] * 8)

    def counted(item: Item, sizing: Sizing, limits: Limits) -> Prepared | Refused:
        watched.work(400)
        return prepare(item, sizing, limits)

    monkeypatch.setattr(importing, "prepare", counted)
    size = len(image_file(0, (20, 20)))
    tried(source, tmp_path / "one", ImportOptions(most_pixels_at_once=max(400, size)))
    assert watched.most == 400
    tried(source, tmp_path / "many", ImportOptions(most_pixels_at_once=10**9))
    assert watched.most > 400, "control"
    asked: list[int] = []

    def stated(content: bytes) -> int:
        asked.append(pixels_stated(content))
        return asked[-1]

    monkeypatch.setattr(images, "pixels_stated", stated)
    list(open_images(source))
    assert asked == [400] * 8


def test_threads_of_a_training_share_a_budget_of_pixels() -> None:
    budget, watched = PixelBudget(100), Watched()

    def decode_some(sizes: list[int]) -> None:
        for size in sizes:
            with budget.take(size):
                watched.work(size)

    threads = [threading.Thread(target=decode_some, args=([60, 30, 10, 60],)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert 60 <= watched.most <= 100
    with budget.take(300):
        pass


def test_a_broken_image_states_no_pixels() -> None:
    assert pixels_stated(image_file(0)) == 480 and pixels_stated(b"") == pixels_stated(EPS) == 0


@pytest.mark.promise(13)
def test_the_pixels_are_checked_before_any_is_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Open an image of more pixels than the limit with a decoder that fails the test."""
    buffer = io.BytesIO()
    Image.fromarray(np.zeros((90, 100), np.uint8)).save(buffer, "png")
    monkeypatch.setattr(Image.Image, "convert", lambda *_: pytest.fail("decoded"))
    refused = pytest.raises(BadImageError, match=r"has 100 × 90 pixels; the limit is 8999")
    with refused, open_image(buffer.getvalue(), "a.png", Limits(pixels=8999)) as image:
        image.convert("RGB")
