"""Small files that stand for much memory: measured in a process of its own, against bounds from their sizes."""

from __future__ import annotations

import io
import json
import os
import struct
import subprocess
import sys
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow
import pytest
from PIL import Image
from pyarrow import parquet

from tests.fault.promises import Promise
from tests.security.memory import FIRST
from tests.tiny_store import image_file
from tintype.data import parquet_file
from tintype.data.arrow_file import refuse_compressed
from tintype.data.parquet_file import MOST_PAGE_VALUES, check_pages, open_bounded
from tintype.errors import UserError

MIB = 1 << 20
SLACK = 32 * MIB
"""Memory that reading any file may take besides."""
SMALL, LARGE = 8 * MIB, 72 * MIB
"""Sizes of a blob below and one above the limits of an image file and of a page."""
ROWS = 16


def blobs(path: Path, size: int, rows: int, nested: bool = False) -> None:
    """A Parquet file of few kilobytes: one blob in a dictionary, which all rows name."""
    column = pyarrow.array([bytes(size)] * rows)
    if nested:
        paths = pyarrow.array([None] * rows, pyarrow.string())
        column = pyarrow.StructArray.from_arrays([column, paths], ["bytes", "path"])
    table = pyarrow.table({"image": column, "caption": ["words"] * rows})
    parquet.write_table(table, path, compression="zstd", dictionary_pagesize_limit=1 << 30, data_page_size=1 << 30)
    assert path.stat().st_size < size // 100


def lists(path: Path) -> None:
    """One row with a list of zeros."""
    zeros = pyarrow.array(np.zeros(LARGE, np.int8))
    values = pyarrow.ListArray.from_arrays(pyarrow.array([0, len(zeros)], pyarrow.int32()), zeros)
    parquet.write_table(pyarrow.table({"image": values, "caption": ["words"]}), path, compression="zstd")


def long_hashes(path: Path) -> None:
    """A skip list with one text of 8 MiB, which all rows name."""
    table = pyarrow.table({"sha256": ["0" * SMALL] * ROWS})
    parquet.write_table(table, path, compression="zstd", dictionary_pagesize_limit=1 << 30)


def large_footer(path: Path) -> None:
    """A hole of 200 MB, and at its end that all of it is the footer."""
    path.write_bytes(b"PAR1")
    os.truncate(path, 200 * MIB)
    with path.open("ab") as file:
        file.write(struct.pack("<I", 200 * MIB - 4) + b"PAR1")


def saved(folder: Path) -> None:
    """A data set as `save_to_disk` writes it, but compressed."""
    folder.mkdir()
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": "a.arrow"}]}))
    packed(folder / "a.arrow")


def packed(path: Path, new: object = pyarrow.ipc.new_stream) -> None:
    batch = pyarrow.record_batch({"image": [bytes(LARGE)], "caption": ["words"]})
    options = pyarrow.ipc.IpcWriteOptions(compression="zstd")
    with new(str(path), batch.schema, options=options) as writer:  # type: ignore[operator]
        writer.write_batch(batch)


def png(path: Path, side: int, *chunks: bytes, stated: int | None = None) -> None:
    """A PNG of one colour, written by hand: Pillow would need the memory that it is about."""
    data = zlib.compress(bytes(side * (1 + side)), 1)
    head = struct.pack(">IIBBBBB", stated or side, stated or side, 8, 0, 0, 0, 0)
    content = [chunk(b"IHDR", head), *chunks, chunk(b"IDAT", data), chunk(b"IEND", b"")]
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(content))


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def animation(path: Path) -> None:
    frames = [Image.new("L", (500, 500), colour) for colour in range(4)]
    frames[0].save(path, "GIF", save_all=True, append_images=frames[1:])


def measured(folder: Path, asked: Sequence[tuple[str, str]]) -> list[tuple[str, int]]:
    (folder / "asked.json").write_text(json.dumps(asked))
    command = [sys.executable, "-m", "tests.security.memory", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    found: list[tuple[str, int]] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hostile")
    blobs(folder / "usual.parquet", MIB, 1)
    blobs(folder / "small.parquet", SMALL, ROWS)
    blobs(folder / "large.parquet", LARGE, 1)
    blobs(folder / "nested.parquet", LARGE, 1, nested=True)
    lists(folder / "lists.parquet")
    long_hashes(folder / "skip.parquet")
    large_footer(folder / "footer.parquet")
    saved(folder / "saved")
    packed(folder / "shard.arrow", pyarrow.ipc.new_file)
    png(folder / "9000.png", 9000)
    png(folder / "12000.png", 16, stated=12_000)
    png(folder / "20000.png", 16, stated=20_000)
    text = zlib.compress(bytes(LARGE), 1)
    png(folder / "text.png", 16, chunk(b"zTXt", b"a\0\0" + text))
    png(folder / "profile.png", 16, chunk(b"iCCP", b"a\0\0" + text))
    png(folder / "lies.png", 16, stated=8000)
    animation(folder / "animated.gif")
    return folder


# What is read, and how far the memory may rise above the slack. A page of 8 MiB is unpacked, put into a dictionary,
# copied into a batch of one row, cast and handed out, beside the item before it: eight times its size at most.
BOUNDED = [
    ("import", "small.parquet", 8 * SMALL),
    ("score", "small.parquet", 8 * SMALL),
    ("import", "large.parquet", 0),
    ("score", "large.parquet", 0),
    ("import", "nested.parquet", 0),
    ("import", "lists.parquet", 0),
    ("score", "lists.parquet", 0),
    ("skip list", "skip.parquet", 8 * SMALL),
    ("import", "footer.parquet", 0),
    ("import", "saved", 0),
    ("shard", "shard.arrow", 0),
    ("image", "9000.png", 0),
    ("image", "12000.png", 0),
    ("image", "20000.png", 0),
    ("image", "text.png", 0),
    ("image", "profile.png", 0),
    ("image", "lies.png", 3 * 8000 * 8000),
    ("image", "animated.gif", 0),
]
UNBOUNDED = [
    ("control: a table", "small.parquet", 8 * SMALL),
    ("control: a table", "large.parquet", 0),
    ("control: batches", "saved/a.arrow", 0),
    ("control: an image", "9000.png", 0),
]
linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")


@pytest.fixture(scope="module")
def found(files: Path) -> list[tuple[str, int]]:
    first = [("import", "usual.parquet"), ("image", "text.png")]
    assert len(first) == FIRST
    return measured(files, [*first, *((reader, name) for reader, name, _ in [*BOUNDED, *UNBOUNDED])])


@pytest.mark.slow
@linux
@pytest.mark.promise(13)
def test_small_files_that_stand_for_much_memory_are_bounded(promise: Promise, found: list[tuple[str, int]]) -> None:
    """Read bombs in Parquet, Arrow, PNG and GIF in a process of its own, and compare its peak with their sizes."""
    for (reader, name, most), (said, rise) in zip(BOUNDED, found, strict=False):
        held = rise < most + SLACK and (bool(most) or "refused" in said or "decoded (3, 16, 16)" in said)
        promise.count(held, f"{reader} {name}: {rise / MIB:.0f} MiB, {said[:200]}")


@pytest.mark.slow
@linux
@pytest.mark.promise(13, control="no limits on pages, batches and pixels")
def test_control_without_limits_the_memory_rises(promise: Promise, found: list[tuple[str, int]]) -> None:
    for (reader, name, most), (_, rise) in zip(UNBOUNDED, found[len(BOUNDED) :], strict=True):
        promise.count(rise < most + SLACK, f"{reader} {name}: {rise / MIB:.0f} MiB")
    assert len(promise.broken) == len(UNBOUNDED), promise.broken


# --- the headers of pages


@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("compression", ["none", "snappy", "zstd"])
def test_the_pages_of_usual_files_are_within_the_bounds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, compression: str
) -> None:
    rng = np.random.default_rng(0)
    column = pyarrow.array([rng.bytes(200) for _ in range(3000)])
    table = pyarrow.table({"image": column, "caption": [f"words {n % 7}" for n in range(3000)]})
    path = tmp_path / "a.parquet"
    options = {"row_group_size": 1000, "data_page_size": 4096, "data_page_version": version, "write_batch_size": 16}
    parquet.write_table(table, path, compression=compression, use_dictionary=["caption"], **options)
    file = open_bounded(path)
    check_pages(file, path, ["image", "caption"])
    seen: list[int] = []
    monkeypatch.setattr(parquet_file, "_check_page", lambda column, packed, unpacked, values: seen.append(values))
    check_pages(file, path, ["image", "caption"])
    assert len(seen) > 100 and sum(seen) == 6000 + 3 * 7  # with the dictionary of each row group


@pytest.mark.parametrize("end", range(1, 40, 3))
def test_a_file_whose_pages_are_damaged_is_refused(tmp_path: Path, end: int) -> None:
    path = tmp_path / "a.parquet"
    parquet.write_table(pyarrow.table({"image": [image_file(n) for n in range(4)]}), path)
    content = bytearray(path.read_bytes())
    content[4 : 4 + end] = b"\xff" * end
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"a\.parquet"):
        check_pages(open_bounded(path), path, ["image"])


def test_a_page_of_too_many_values_is_refused() -> None:
    with pytest.raises(UserError, match="image has 16,777,217 values; the limit is 16,777,216"):
        parquet_file._check_page("image", 100, 100, MOST_PAGE_VALUES + 1)
    parquet_file._check_page("image", 100, 64 * MIB, MOST_PAGE_VALUES)
    parquet_file._check_page("image", MIB, 100 * MIB, 1)
    with pytest.raises(UserError, match="smaller pages"):
        parquet_file._check_page("image", MIB, 100 * MIB + 1, 1)


@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
@pytest.mark.parametrize("dictionary", [False, True])
def test_compressed_batches_are_seen_without_reading_them(
    tmp_path: Path, compression: str | None, dictionary: bool
) -> None:
    column = pyarrow.array(["words"] * 100)
    batch = pyarrow.record_batch({"caption": column.dictionary_encode() if dictionary else column})
    options = pyarrow.ipc.IpcWriteOptions(compression=compression)
    sink = io.BytesIO()
    with pyarrow.ipc.new_stream(sink, batch.schema, options=options) as writer:
        writer.write_batch(batch)
        writer.write_batch(batch)
    (tmp_path / "a.arrow").write_bytes(sink.getvalue())
    if compression is None:
        refuse_compressed(tmp_path / "a.arrow")
    else:
        with pytest.raises(UserError, match="contains compressed record batches"):
            refuse_compressed(tmp_path / "a.arrow")


def test_a_stream_that_is_cut_or_damaged_is_refused_and_never_a_traceback(tmp_path: Path) -> None:
    batch = pyarrow.record_batch({"caption": ["words"] * 100})
    sink = io.BytesIO()
    with pyarrow.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    whole, refused = sink.getvalue(), 0
    for at in range(0, len(whole), 7):
        for content in (whole[:at], whole[:at] + bytes([whole[at] ^ 255]) + whole[at + 1 :]):
            (tmp_path / "a.arrow").write_bytes(content)
            try:
                refuse_compressed(tmp_path / "a.arrow")
            except UserError:
                refused += 1
    assert refused > len(whole) // 7
