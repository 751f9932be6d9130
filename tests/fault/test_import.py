"""The table of faults of an import, through the real command: each is set aside with its reason, or stops all with a
message, and the store is never smaller than what was good."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import tarfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow
import pytest
import torch
from PIL import Image
from pyarrow import parquet
from typer.testing import CliRunner

import tintype.runtime.files
from tests import sets
from tests.fault.promises import Promise
from tests.shared import shared
from tests.tiny_store import image_file, imported, parquet_of
from tests.unit.data.test_importers import animated, bomb, sixteen, sixteen_of_colour
from tests.unit.data.test_store import quarantine
from tintype.cli import app
from tintype.data.order import Shuffled
from tintype.data.store import writer
from tintype.data.store.attributes import read_attributes
from tintype.data.store.encode import Sizing
from tintype.data.store.importing import ImportOptions, import_images, read_share
from tintype.data.store.layout import AboutStore, open_store
from tintype.data.store.settings import StoreSettings
from tintype.data.store.source import StoreSource
from tintype.errors import UserError
from tintype.runtime.interrupt import Interrupt

ROOT = Path(__file__).parents[2]
GOOD = 5


@dataclass(frozen=True)
class Case:
    image: bytes = field(default_factory=lambda: image_file(100))
    text: bytes = b"a good caption"
    reason: str | None = None
    """Why it is set aside; None where it is stored."""
    size: tuple[int, int] = (24, 20)
    same_bytes: bool = True


def cmyk() -> bytes:
    buffer = io.BytesIO()
    Image.open(io.BytesIO(image_file(1))).convert("CMYK").save(buffer, "JPEG")
    return buffer.getvalue()


def turned() -> bytes:
    exif = Image.Exif()
    exif[0x0112] = 6
    return image_file(4, exif=exif, form="jpeg")


CASES = {
    "zero bytes": Case(b"", reason="cannot be read as an image: it is not JPEG, PNG"),
    "truncated jpeg": Case(
        image_file(2, form="jpeg")[:-40], reason="cannot be read as an image: image file is truncated"
    ),
    "truncated png": Case(image_file(3)[:-60], reason="cannot be read as an image"),
    "truncated webp": Case(image_file(3, form="webp")[:-60], reason="cannot be read as an image"),
    "html for an image": Case(b"<html>404</html>", reason="it is not JPEG, PNG"),
    "cmyk": Case(cmyk()),
    "16 bits, grey": Case(sixteen(), reason="convert the image to 8 bits per channel first"),
    "16 bits, colours": Case(sixteen_of_colour()),
    "animated gif": Case(animated("GIF"), reason="animated"),
    "animated webp": Case(animated("WEBP"), reason="animated"),
    "turned by exif": Case(turned(), size=(20, 24), same_bytes=False),
    "decompression bomb": Case(bomb(), reason="decompression bomb"),
    "many pixels": Case(bomb(9000), reason="the limit is"),
    "empty caption": Case(text=b"", reason="the record has no caption long"),
    "blank caption": Case(text=b" \n\t ", reason="the record has no caption long"),
    "100k characters": Case(text=b"x" * 100_000, reason="has 100,000 characters; the limit is 20,000"),
    "not utf-8": Case(text=b"caf\xe9", reason="is not text in UTF-8"),
    "html": Case(text=b"a <b>fat</b> cat", reason="has HTML in it: <b>"),
    "script": Case(text=b"cat<script>alert(1)</script>", reason="has HTML in it: <script>"),
    "angle brackets": Case(text=b"a cat <3 of 2 > 1"),
}


def in_parquet(folder: Path, cases: Sequence[Case]) -> Path:
    texts = pyarrow.array([case.text for case in cases], pyarrow.binary())
    strings = pyarrow.StringArray.from_buffers(len(texts), texts.buffers()[1], texts.buffers()[2])
    images = [{"bytes": case.image, "path": None} for case in cases]
    folder.mkdir()
    parquet.write_table(pyarrow.table({"image": images, "caption": strings}), folder / "a.parquet")
    return folder / "a.parquet"


def in_folder(folder: Path, cases: Sequence[Case]) -> Path:
    folder.mkdir()
    for index, case in enumerate(cases):
        (folder / f"{index:03d}.png").write_bytes(case.image)
        (folder / f"{index:03d}.txt").write_bytes(case.text)
    return folder


def in_tar(folder: Path, cases: Sequence[Case]) -> Path:
    members: list[tuple[str | tarfile.TarInfo, bytes]] = []
    for index, case in enumerate(cases):
        members += [(f"{index:03d}.png", case.image), (f"{index:03d}.txt", case.text)]
    return sets.tar_of(folder / "a.tar", members)


def command(*arguments: str) -> Any:
    """Of so few records, one bad one is more than 5%."""
    return CliRunner().invoke(app, ["data", "import", "--most-bad", "50%", *arguments])


@pytest.mark.promise(12)
@pytest.mark.parametrize("write", [in_parquet, in_folder, in_tar])
@pytest.mark.parametrize("name", CASES)
def test_a_fault_is_counted_with_its_reason_and_the_rest_is_there(
    tmp_path: Path, name: str, write: Callable[[Path, Sequence[Case]], Path]
) -> None:
    """Import one faulty record in the middle of good ones, in three forms: it is set aside with its reason, alone."""
    case = CASES[name]
    good = [Case(image_file(index), f"good caption {index}".encode()) for index in range(GOOD)]
    source = write(tmp_path / "set", [*good[:2], case, *good[2:]])
    done = command(str(source), "--out", str(tmp_path / "store"), "--eval-share", "0")
    assert done.exit_code == 0, done.output
    store, aside = open_store(tmp_path / "store"), case.reason is not None
    contents = [store.encoded(row).content for row in range(len(store))]
    assert store.about.counts == {"train": GOOD + (not aside), "eval": 0} and store.about.quarantined == int(aside)
    assert [contents.index(image_file(index)) for index in range(GOOD)] == (
        [0, 1, 2, 3, 4] if aside else [0, 1, 3, 4, 5]
    )
    if case.reason is not None:
        (reason,) = quarantine(tmp_path / "store").values()
        assert case.reason in reason
        assert "1 records were set aside" in " ".join(done.output.split())
    else:
        assert (contents[2] == case.image) == case.same_bytes
        assert tuple(int(side[2]) for side in store.sizes()) == case.size
        assert store.captions_of(2)["long"] == case.text.decode()
    store.check()


@pytest.mark.promise(19)
@pytest.mark.parametrize(
    ("name", "kind", "reason"),
    [
        ("../up.png", tarfile.REGTYPE, "leads out"),
        ("/tmp/up.png", tarfile.REGTYPE, "leads out"),
        ("link.png", tarfile.SYMTYPE, "link"),
        ("hard.png", tarfile.LNKTYPE, "link"),
        ("pipe.png", tarfile.FIFOTYPE, "not a regular file"),
    ],
)
def test_an_unsafe_member_of_a_tar_is_set_aside(tmp_path: Path, name: str, kind: bytes, reason: str) -> None:
    """Import tars with members that lead out, links and pipes: each is set aside, and the rest is stored."""
    secret = tmp_path / "secret.png"
    secret.write_bytes(image_file(9))
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, str(secret) if kind == tarfile.SYMTYPE else "0.png"
    unsafe: tuple[tarfile.TarInfo, bytes] = (info, image_file(8) if kind == tarfile.REGTYPE else b"")
    rest: list[Any] = [
        (f"{n}.{end}", what) for n in range(3) for end, what in (("png", image_file(n)), ("txt", b"words"))
    ]
    source = sets.tar_of(tmp_path / "set" / "a.tar", [*rest[:2], unsafe, *rest[2:]])
    assert command(str(source), "--out", str(tmp_path / "store")).exit_code == 0
    store = open_store(tmp_path / "store")
    assert len(store) == 3 and store.about.quarantined == 1
    (said,) = quarantine(tmp_path / "store").values()
    assert reason in said and sorted(path.name for path in tmp_path.iterdir()) == ["secret.png", "set", "store"]
    assert all(store.encoded(row).content == image_file(row) for row in range(3))


def test_a_parquet_without_the_named_column_stops_the_import(tmp_path: Path) -> None:
    source = parquet_of(tmp_path / "a.parquet", [image_file(0)], words=["a"], other=["b"])
    parquet.write_table(pyarrow.table({"photo": [1], "words": ["a"]}), tmp_path / "b.parquet")
    for arguments, message in (
        ([str(source), "--caption", "long=wrds"], "has no text column 'wrds'; it has words, other"),
        ([str(source)], "none of its columns is known for captions"),
        ([str(source), "--caption", "long=words", "--split-column", "part"], "--split-column part"),
        ([str(tmp_path / "b.parquet"), "--caption", "long=words"], "no column 'image'"),
    ):
        done = command(*arguments, "--out", str(tmp_path / "store"))
        assert isinstance(done.exception, UserError) and message in str(done.exception)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.parquet", "b.parquet"]


_SCRIPT = """
import json, os, resource, signal, sys
from tintype.cli import main
from tintype.data.order import Shuffled
from tintype.data.store import writer
from tintype.data.store.attributes import read_attributes
import tintype.terminal.data, tintype.data.store.encode, tintype.data.importers.parquet
import pyarrow.parquet, pyarrow.compute

def too_large():
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))

def after_the_second_shard(number):
    keep, kept = writer.Writer.keep, []
    def counted(self):
        keep(self)
        kept.append(1)
        if len(kept) == 2:
            os.kill(os.getpid(), number)
    writer.Writer.keep = counted

FAULTS = {
    "full": too_large,
    "interrupted": lambda: after_the_second_shard(signal.SIGINT),
    "killed": lambda: after_the_second_shard(signal.SIGKILL),
}
writer.SHARD_ROWS = 4
source, folder = sys.argv[1:]
codes = {}
for fault, begin in FAULTS.items():
    child = os.fork()
    if not child:
        with open(f"{folder}/{fault}.log", "w") as log:
            os.dup2(log.fileno(), 1), os.dup2(log.fileno(), 2)
            begin()
            sys.argv[:] = ["tintype", "data", "import", source, "--out", f"{folder}/{fault}", "--most-bad", "50%"]
            main()
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    left = os.listdir(f"{folder}/.{fault}.importing")
    shards = sorted(name for name in left if "writing" in name or "shard" in name)
    codes[fault] = [code, os.path.exists(f"{folder}/{fault}"), shards]
print(json.dumps(codes))
"""


@pytest.mark.slow
def test_a_full_disk_a_signal_and_a_kill_leave_no_store_and_the_same_command_resumes(tmp_path: Path) -> None:
    """With real processes. The system itself refuses to write on, in the middle of the third shard."""
    images = [image_file(index, (24, 20) if index < 9 else (300, 200), "bmp") for index in range(14)]
    images[5] = b"broken"
    source = parquet_of(tmp_path / "a.parquet", images, caption=[f"number {index}" for index in range(14)])
    whole = imported(source, tmp_path / "whole")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "400"}
    asked = [sys.executable, "-c", _SCRIPT, str(source), str(tmp_path)]
    done = subprocess.run(asked, capture_output=True, text=True, env=environment, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    two, three = ([f"shard-{index:05d}.arrow" for index in range(count)] for count in (2, 3))
    codes = json.loads(done.stdout)
    assert codes["full"] == [2, False, two] and codes["killed"] == [-signal.SIGKILL, False, two], "no half shard"
    assert codes["interrupted"] in ([130, False, two], [130, False, three])
    said = " ".join((tmp_path / "full.log").read_text().split())
    assert (
        "File too large; no store was made; 9 items are kept there. Free some disk space, then run the same command"
        in said
    )
    for fault in ("full", "interrupted", "killed"):
        assert command(str(source), "--out", str(tmp_path / fault)).exit_code == 0
        store = open_store(tmp_path / fault)
        assert store.identity == whole.identity and store.about.quarantined == len(quarantine(tmp_path / fault)) == 1
        store.check()
    assert not list(tmp_path.glob(".*"))


def broken_of(folder: Path, bad: int, count: int) -> Path:
    images = [b"broken" if index < bad else image_file(index % 7) for index in range(count)]
    return parquet_of(folder / f"{bad}.parquet", images, caption=[f"number {index}" for index in range(count)])


KINDS: dict[str, dict[str, Any]] = {
    "zero bytes": {"image": b""},
    "truncated": {"image": image_file(50, form="jpeg")[:-40]},
    "another format": {"image": b"%PDF-1.4"},
    "empty caption": {"caption": " "},
    "not a number": {"score": "high"},
}


def faulty(folder: Path, share: int, only_good: bool = False) -> tuple[Path, list[int]]:
    """A hundred records of which so many are bad, of all kinds in turn, and the numbers of those."""
    bad = [(7 * n) % 100 for n in range(share)]
    records = []
    for n in range(100):
        fault = KINDS[list(KINDS)[bad.index(n) % len(KINDS)]] if n in bad else {}
        records.append({"image": image_file(n, (18, 16)), "caption": f"number {n}", "score": f"{n}", **fault})
    kept = [one for n, one in enumerate(records) if not (only_good and n in bad)]
    columns = {name: [one[name] for one in kept] for name in ("image", "caption", "score")}
    path = folder / f"{share}-{only_good}.parquet"
    return parquet_of(path, columns.pop("image"), **columns), bad


def imported_with(source: Path, out: Path, most_bad: float) -> AboutStore:
    attributes = read_attributes({"score": "score:float"})
    options = ImportOptions(eval_share=0.0, attributes=attributes, most_bad=most_bad)
    return import_images(source, out, options, Interrupt()).about


@pytest.mark.promise(12)
@pytest.mark.parametrize("share", [1, 10, 60])
def test_bad_records_are_named_exactly_and_batches_stay_full(promise: Promise, tmp_path: Path, share: int) -> None:
    """Import 100 records, 1, 10 and 60 bad ones among them: the list is exact, batches stay full, the ceiling stops."""
    source, bad = faulty(tmp_path, share)
    good, _ = faulty(tmp_path, share, only_good=True)
    about = imported_with(source, tmp_path / "store", 1.0)
    assert about is not None
    named = {int(one.rpartition(" ")[2]) for one in quarantine(tmp_path / "store")}
    promise.count(named == set(bad) and about.quarantined == share, "the list is exact")
    alike = imported_with(good, tmp_path / "good", 0.0)
    promise.count(alike is not None and about.identity == alike.identity, "the rest is as without them")
    settings = StoreSettings(path=str(tmp_path / "store"), size_px=16)
    sources = [StoreSource(settings, "train", torch.device("cpu"), keep=False, threads=2) for _ in range(2)]
    batches = [[one.images(Shuffled(0, one).ids(8 * n, 8)) for n in range(12)] for one in sources]
    promise.count(all(torch.equal(*pair) and len(pair[0]) == 8 for pair in zip(*batches, strict=True)), "full batches")
    for most in (0.05, share / 100 - 0.005):
        try:
            imported_with(source, tmp_path / f"ceiling-{most}", most)
            promise.count(share <= 100 * most, f"{most} lets {share} of 100 by")
        except UserError as error:
            said = "--most-bad" in str(error) and not (tmp_path / f"ceiling-{most}").exists()
            promise.count(share > 100 * most and said, f"{most} refuses {share} of 100: {error}")


@pytest.mark.promise(12, control="the ceiling at 100%")
def test_control_without_a_ceiling_a_broken_set_is_imported(promise: Promise, tmp_path: Path) -> None:
    source, _ = faulty(tmp_path, 60)
    promise.count(imported_with(source, tmp_path / "store", 1.0) is None, "60 of 100 are bad")


@pytest.mark.promise(12)
@pytest.mark.parametrize("options", [[], ["--most-bad", "0.05"]])
def test_more_bad_records_than_the_ceiling_are_refused(tmp_path: Path, options: list[str]) -> None:
    """Import 100 records of which 90 are broken: it stops at the sixth, with the first reasons."""
    out = tmp_path / "store"
    done = CliRunner().invoke(app, ["data", "import", str(broken_of(tmp_path, 90, 100)), "--out", str(out), *options])
    said = str(done.exception)
    assert isinstance(done.exception, UserError) and not out.exists()
    assert "6 of the first 6 records were rejected, which is more than --most-bad 5% of all 100" in said
    assert "90.parquet, row 0: 90.parquet, row 0 cannot be read as an image" in said and "row 3" not in said
    assert "with a larger share, such as --most-bad 100%" in said and f"{tmp_path / '.store.importing'}" in said


def test_a_share_of_just_the_ceiling_is_taken_and_one_more_is_not(tmp_path: Path) -> None:
    five, six = broken_of(tmp_path, 5, 100), broken_of(tmp_path, 6, 100)
    assert CliRunner().invoke(app, ["data", "import", str(five), "--out", str(tmp_path / "a")]).exit_code == 0
    done = CliRunner().invoke(app, ["data", "import", str(six), "--out", str(tmp_path / "b")])
    assert isinstance(done.exception, UserError) and "6 of the first 6 records were rejected" in str(done.exception)


def test_a_refused_import_resumes_with_a_larger_share_and_not_without(tmp_path: Path) -> None:
    """The control too: with the ceiling at 100% all broken images are let by."""
    images = [image_file(index) if index < 10 else b"broken" for index in range(20)]
    source = parquet_of(tmp_path / "a.parquet", images, caption=["words"] * 20)
    asked = ["data", "import", str(source), "--out", str(tmp_path / "store")]
    first, again = (str(CliRunner().invoke(app, asked).exception) for _ in range(2))
    assert "2 of the first 12 records were rejected" in first and first == again
    done: list[int] = []
    seen = ImportOptions(most_bad=1.0)
    import_images(source, tmp_path / "store", seen, Interrupt(), lambda progress: done.append(progress.done))
    assert done[0] == 12 and done[-1] == 20, "it resumed"
    about = open_store(tmp_path / "store").about
    assert about.quarantined == 10 and sum(about.counts.values()) == 10


def test_images_that_the_user_leaves_out_are_not_bad(tmp_path: Path) -> None:
    images = [image_file(index, (24, 20) if index < 15 else (64, 64)) for index in range(20)]
    source = parquet_of(tmp_path / "a.parquet", images, caption=["words"] * 20)
    options = ImportOptions(sizing=Sizing(min_px=32))
    about = import_images(source, tmp_path / "store", options, Interrupt()).about
    assert about is not None and about.quarantined == 15 and sum(about.counts.values()) == 5


@pytest.mark.parametrize("value", ["5", "-1%", "101%", "many", "nan", ""])
def test_a_share_is_written_as_one(value: str) -> None:
    with pytest.raises(UserError, match=r"such as 5% or 0\.05"):
        read_share("most-bad", value)


class Disk:
    """Watches what is flushed to the disk and what is renamed, in order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.events: list[tuple[str, str]] = []
        fsync, replace = os.fsync, Path.replace

        def watched_fsync(descriptor: int) -> None:
            self.events.append(("flush", str(Path(f"/proc/self/fd/{descriptor}").readlink())))
            fsync(descriptor)

        def watched_replace(path: Path, target: Path) -> Path:
            self.events.append(("rename", str(path)))
            return replace(path, target)

        monkeypatch.setattr(os, "fsync", watched_fsync)
        monkeypatch.setattr(Path, "replace", watched_replace)

    def unsafe(self, work: Path, store: Path) -> set[str]:
        """Return the store's files that were renamed, or named by the store, before they were on the disk."""
        commit = self.events.index(("rename", str(work)))
        flushed = {name for kind, name in self.events[:commit] if kind == "flush"}
        temporary = {f".{Path(name).name.split('.writing-')[0].lstrip('.')}" for name in flushed if ".writing-" in name}
        names = {file.name for file in store.iterdir()}
        late = {name for name in names if f".{name}" not in temporary and str(work / name) not in flushed}
        late |= set() if str(work) in flushed else {"the folder"}
        after = {name for kind, name in self.events[commit:] if kind == "flush"}
        return late | (set() if str(store.parent) in after else {"the rename"})


def test_all_is_on_the_disk_before_the_rename_that_makes_it_a_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "SHARD_ROWS", 4)
    images = [image_file(index) for index in range(9)] + [b"broken"]
    source = parquet_of(tmp_path / "a.parquet", images, caption=["words"] * 10)
    disk = Disk(monkeypatch)
    imported(source, tmp_path / "store")
    files = sorted(file.name for file in (tmp_path / "store").iterdir())
    assert files == ["quarantine.jsonl", *(f"shard-{index:05d}.arrow" for index in range(3)), "store.json"]
    assert disk.unsafe(tmp_path / ".store.importing", tmp_path / "store") == set()
    disk.events.clear()
    for module in (writer, tintype.runtime.files):  # control
        monkeypatch.setattr(module, "flush", lambda path: None)
    imported(source, tmp_path / "other")
    late = disk.unsafe(tmp_path / ".other.importing", tmp_path / "other")
    assert late == {*files, "the folder", "the rename"}


def real_entries(name: str, count: int) -> list[sets.Entry]:
    file = parquet.ParquetFile(shared(f"data/{name}.parquet"))
    columns = ["image", "caption_long", "caption_short"]
    rows = next(file.iter_batches(batch_size=count, columns=columns)).to_pylist()
    return [
        sets.Entry(
            f"p{index:03d}{Path(row['image']['path'] or 'x.jpg').suffix}",
            row["image"]["bytes"],
            {"long": row["caption_long"], "short": row["caption_short"], "split": ("train", "test")[index % 4 == 0]},
        )
        for index, row in enumerate(rows)
    ]


@pytest.mark.parametrize("name", ["photos", "illustrations"])
def test_real_images_come_through_every_importer_as_the_same_records(tmp_path: Path, name: str) -> None:
    some = real_entries(name, 40)
    identities = {}
    for form in ("parquet", "jsonl", "webdataset", "mds"):
        write, options = sets.FORMS[form]
        about = imported(write(tmp_path / form, some), tmp_path / f"{form}-store", options)
        assert about.quarantined == 0 and about.counts == {"train": 30, "eval": 10}
        identities[form] = about.identity
        store = open_store(tmp_path / f"{form}-store")
        for row, one in enumerate(some):
            assert store.encoded(row).content == one.content
            assert store.captions_of(row) == {kind: str(one.texts[kind]).strip() for kind in ("long", "short")}
    assert len(set(identities.values())) == 1, "every hash, split and caption, in order"


def test_a_smaller_shard_gives_the_same_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    some = real_entries("illustrations", 12)
    whole = imported(sets.plain_parquet(tmp_path / "a", some), tmp_path / "whole", ImportOptions(split_column="split"))
    monkeypatch.setattr(writer, "SHARD_ROWS", 5)
    cut = imported(sets.tars(tmp_path / "b", some), tmp_path / "cut", ImportOptions(split_column="split"))
    assert cut.identity == whole.identity and len(cut.shards) == 3
