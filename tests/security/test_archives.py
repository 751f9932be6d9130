"""Archives, indexes and tables that name files elsewhere: nothing is written there, and nothing is read from there."""

from __future__ import annotations

import bz2
import contextlib
import io
import json
import lzma
import tarfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests import sets
from tests.fault.promises import Promise
from tests.tiny_store import image_file, imported, rewrite_about, tiny_store, tried
from tintype.data.image_sets import open_images
from tintype.data.store.importing import ImportOptions
from tintype.data.store.layout import open_store
from tintype.errors import UserError

SECRET = image_file(99, (40, 40))
"""An image outside that no attack may bring in."""


def member(name: str, kind: bytes = tarfile.REGTYPE, target: str = "") -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info, image_file(1) if kind == tarfile.REGTYPE else b""


def tar(*members: tuple[tarfile.TarInfo, bytes]) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        good: list[Any] = [("a.png", image_file(0)), ("a.txt", b"words")]
        return sets.tar_of(folder / "set" / "a.tar", [*good, *members])

    return write


def metadata(name: str) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        (folder / "set").mkdir()
        (folder / "set" / "a.png").write_bytes(image_file(0))
        rows = [{"file_name": one, "text": "words"} for one in ("a.png", name)]
        (folder / "set" / "metadata.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        return folder / "set"

    return write


def saved(name: str) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        (folder / "set").mkdir()
        (folder / "set" / "state.json").write_text(json.dumps({"_data_files": [{"filename": name}]}))
        return folder / "set"

    return write


def mds(name: str) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        path = sets.mds(folder / "set", sets.entries())
        index = json.loads((path / "index.json").read_text())
        index["shards"][0]["raw_data"]["basename"] = name
        (path / "index.json").write_text(json.dumps(index))
        return path

    return write


def linked(name: str) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        (folder / "set").mkdir()
        (folder / "set" / "a.png").write_bytes(image_file(0))
        (folder / "set" / "a.txt").write_text("words")
        (folder / "set" / name).symlink_to(folder / "secret.png")
        return folder / "set"

    return write


ATTACKS: dict[str, Callable[[Path], Path]] = {
    **{
        f"tar: {name}": tar(member(name))
        for name in ("../up.png", "b/../../up.png", "/tmp/up.png", "..\\up.png", "./../u.png")
    },
    **{
        f"tar: {kind!r} to {target}": tar(member("link.png", kind, target), member("link.txt", kind, target))
        for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE)
        for target in ("../secret.png", "/etc/passwd", "a.png")
    },
    **{f"tar: {kind!r}": tar(member("x.png", kind)) for kind in (tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE)},
    "tar: a link to a folder, and a file in it": tar(member("d", tarfile.SYMTYPE, ".."), member("d/up.png")),
    **{f"metadata: {name}": metadata(name) for name in ("../secret.png", "/etc/passwd", "b/../../secret.png", "..")},
    **{f"saved: {name}": saved(name) for name in ("../secret.png", "/etc/passwd", "..", "")},
    **{f"MDS: {name}": mds(name) for name in ("../secret.png", "/etc/passwd", "..")},
    **{f"link: {name}": linked(name) for name in ("b.png", "a.short.txt", "metadata.csv", "b.tar", "b.parquet")},
}


def tree(folder: Path) -> dict[str, bytes | None]:
    files = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*")}
    return {
        name: path.read_bytes() if path.is_file() and not path.is_symlink() else None for name, path in files.items()
    }


@pytest.mark.promise(19)
def test_what_names_files_elsewhere_stays_in_its_folder(promise: Promise, tmp_path: Path) -> None:
    """Import tars, indexes, metadata and links that lead out: nothing is written outside or brought from there."""
    for number, (name, write) in enumerate(ATTACKS.items()):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "secret.png").write_bytes(SECRET)
        source, before = write(folder), tree(folder)
        with contextlib.suppress(UserError):
            tried(source, folder / "store", ImportOptions())
        after = {path: content for path, content in tree(folder).items() if path.partition("/")[0] != "store"}
        brought = b"".join(file.read_bytes() for file in (folder / "store").glob("*.arrow"))
        outside = [path.name for path in tmp_path.iterdir() if not path.name.isdigit()]
        held = after == before and SECRET not in brought and b"root:" not in brought and not outside
        promise.count(held, name)


@pytest.mark.promise(19)
@pytest.mark.parametrize("name", ["../shard-00000.arrow", "/etc/passwd", "../store/shard-00000.arrow"])
def test_a_store_names_files_in_its_own_folder(tmp_path: Path, promise: Promise, name: str) -> None:
    """Name a file elsewhere in `store.json`, with a right checksum: it is refused before it is opened."""
    store = tiny_store(tmp_path, 4)
    rewrite_about(store, lambda about: about["shards"][0].update(name=name))
    with pytest.raises(UserError, match="is not in the folder"):
        open_store(store)
    promise.count(True, name)


@pytest.mark.promise(19)
def test_an_archive_that_would_unpack_to_a_thousand_times_its_size_is_not_unpacked(
    promise: Promise, tmp_path: Path
) -> None:
    """Give tars packed with gzip, bzip2 and xz, 1,000 to 1 and more: they are refused, and no byte is unpacked."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as opened:
        info = tarfile.TarInfo("a.png")
        info.size = 8 << 20
        opened.addfile(info, io.BytesIO(bytes(info.size)))
    for name, pack in (("gzip", zlib.compress), ("bzip2", bz2.compress), ("xz", lzma.compress)):
        packed = pack(content.getvalue())
        assert len(content.getvalue()) > 900 * len(packed)
        (tmp_path / f"{name}.tar").write_bytes(packed)
        for read in (lambda path: list(open_images(path)), lambda path: tried(path, tmp_path / "store")):
            try:
                read(tmp_path / f"{name}.tar")
                promise.count(False, name)
            except UserError as error:
                promise.count("cannot be read as a tar file" in str(error), f"{name}: {error}")


@pytest.mark.promise(19, control="a plain extraction of the archive")
def test_control_a_plain_extraction_writes_outside(promise: Promise, tmp_path: Path) -> None:
    for number, name in enumerate(("../up.png", "b/../../up.png")):
        folder = tmp_path / f"{number}" / "in"
        folder.mkdir(parents=True)
        (folder / "b").mkdir()
        source = tar(member(name))(tmp_path / f"{number}")
        with tarfile.open(source) as opened:
            opened.extractall(folder, filter="fully_trusted")
        promise.count(not (folder.parent / "up.png").exists(), name)
    assert len(promise.broken) == 2


@pytest.mark.promise(19, control="--follow-links")
def test_control_with_follow_links_a_link_is_read(promise: Promise, tmp_path: Path) -> None:
    (tmp_path / "secret.png").write_bytes(SECRET)
    source = linked("b.png")(tmp_path)
    (source / "b.txt").write_text("words")
    imported(source, tmp_path / "store", ImportOptions(follow_links=True))
    promise.count(all(one.content != SECRET for one in open_store(tmp_path / "store").all_encoded()), "b.png")


def test_the_index_of_mds_is_changed_in_place(tmp_path: Path) -> None:
    """Else the attacks on it would try nothing: with the right name it is read."""
    path = mds("shard.00000.mds")(tmp_path)
    assert sum(imported(path, tmp_path / "store").counts.values()) == 6
