from __future__ import annotations

import errno
import json
import signal
import tarfile
from pathlib import Path
from typing import Any

import pytest
from pyarrow import parquet
from typer.testing import CliRunner

from tests import sets
from tests.tiny_store import captioned, image_file, imported, imported_earlier, parquet_of, tiny_store
from tintype.cli import app
from tintype.data.store import export as module
from tintype.data.store.export import Exported, Form, export_store
from tintype.data.store.importing import ImportOptions
from tintype.data.store.layout import Split, open_store
from tintype.errors import StoppedError, UserError
from tintype.runtime.interrupt import Interrupt

TO: list[Form] = ["webdataset", "parquet"]


def exported(store: Path, form: Form, out: Path, split: Split | None = None) -> Exported:
    return export_store(open_store(store), form, out, split, Interrupt())


@pytest.mark.parametrize("to", TO)
@pytest.mark.parametrize("form", sets.FORMS)
def test_what_came_in_goes_out_and_comes_in_again(tmp_path: Path, form: str, to: Form) -> None:
    """The identity is that of every hash, split and caption in order."""
    write, options = sets.FORMS[form]
    first = imported(write(tmp_path / "set", sets.entries(7)), tmp_path / "store", options)
    assert exported(tmp_path / "store", to, tmp_path / "out") == Exported(7, 1)
    again = imported(tmp_path / "out", tmp_path / "again", ImportOptions(split_column="split"))
    assert again.identity == first.identity and again.counts == first.counts and again.quarantined == 0
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize("to", TO)
def test_an_export_is_cut_into_files_in_the_order_of_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, to: Form
) -> None:
    store = tiny_store(tmp_path, 11)
    monkeypatch.setattr(module, "PART_ROWS", 4)
    assert exported(store, to, tmp_path / "rows") == Exported(11, 3)
    monkeypatch.setattr(module, "PART_BYTES", 1)
    assert exported(store, to, tmp_path / "bytes") == Exported(11, 11)
    for name in ("rows", "bytes"):
        again = imported(tmp_path / name, tmp_path / f"{name}-store", ImportOptions(split_column="split"))
        assert again.identity == open_store(store).identity


@pytest.mark.parametrize("to", TO)
def test_one_split_is_exported(tmp_path: Path, to: Form) -> None:
    store = tiny_store(tmp_path, 12)
    exported(store, to, tmp_path / "out", "eval")
    about = imported(tmp_path / "out", tmp_path / "again", ImportOptions(split_column="split"))
    assert about.counts == {"train": 0, "eval": open_store(store).about.counts["eval"]}
    imported(captioned(tmp_path / "b.parquet", 3), tmp_path / "whole", ImportOptions(eval_share=0))
    with pytest.raises(UserError, match="has no records in the split eval"):
        exported(tmp_path / "whole", to, tmp_path / "none", "eval")


def test_other_tools_find_what_they_know(tmp_path: Path) -> None:
    source = parquet_of(tmp_path / "a.parquet", [image_file(0, form="webp")], words=["a word"])
    imported_earlier(source, tmp_path / "store", ImportOptions(captions={"split": "words"}, eval_share=1))
    store = open_store(tmp_path / "store")
    exported(tmp_path / "store", "webdataset", tmp_path / "tars")
    with tarfile.open(tmp_path / "tars" / "00000.tar") as tar:
        assert tar.getnames() == ["000000000.webp", "000000000.json"]
        content = tar.extractfile("000000000.json")
        assert content is not None
        sha256 = store.about_row(0)["sha256"]
        assert json.load(content) == {
            "caption_split": "a word",
            "split": "eval",
            "sha256": sha256,
            "source": "a.parquet, row 0",
        }
    exported(tmp_path / "store", "parquet", tmp_path / "parquet")
    file = parquet.ParquetFile(tmp_path / "parquet" / "00000.parquet")
    assert file.read().to_pylist() == [
        {
            "image": {"bytes": image_file(0, form="webp"), "path": "000000000.webp"},
            "caption_split": "a word",
            "split": "eval",
            "sha256": sha256,
            "source": "a.parquet, row 0",
        }
    ]
    features = json.loads(file.schema_arrow.metadata[b"huggingface"])["info"]["features"]
    assert features["image"] == {"_type": "Image"} and set(features) == set(file.schema_arrow.names)


def test_the_same_store_gives_the_same_tars(tmp_path: Path) -> None:
    store = tiny_store(tmp_path, 5)
    for name in ("one", "two"):
        exported(store, "webdataset", tmp_path / name)
    assert (tmp_path / "one" / "00000.tar").read_bytes() == (tmp_path / "two" / "00000.tar").read_bytes()


@pytest.mark.parametrize("to", TO)
def test_an_export_is_whole_or_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, to: Form) -> None:
    store, interrupt = tiny_store(tmp_path, 9), Interrupt()

    def stop(done: int, total: int) -> None:
        if done == 4:
            interrupt.signal = signal.SIGINT

    there = sorted(tmp_path.iterdir())
    with pytest.raises(StoppedError, match="nothing was exported"):
        export_store(open_store(store), to, tmp_path / "out", None, interrupt, stop)
    assert sorted(tmp_path.iterdir()) == there

    def full(self: Path, target: Path) -> Any:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "replace", full)
        with pytest.raises(UserError, match=r"No space left on device\. Nothing was exported"):
            exported(store, to, tmp_path / "out")
    assert sorted(tmp_path.iterdir()) == there
    (tmp_path / ".out.exporting").mkdir()
    (tmp_path / ".out.exporting" / "00007.tar").write_bytes(b"of an export that was killed")
    exported(store, to, tmp_path / "out")
    assert len(list((tmp_path / "out").iterdir())) == 1 and not (tmp_path / ".out.exporting").exists()
    with pytest.raises(UserError, match="exists already"):
        exported(store, to, tmp_path / "out")


@pytest.mark.parametrize(("option", "value"), [("--to", "tar"), ("--split", "test")])
def test_mistakes_are_named(option: str, value: str, tmp_path: Path) -> None:
    given = {"--to": "parquet", "--split": "train", option: value}
    words = [word for pair in given.items() for word in pair]
    result = CliRunner().invoke(app, ["data", "export", str(tmp_path), "--out", str(tmp_path / "out"), *words])
    assert result.exit_code == 2 and option in result.output and f"'{value}' is not one of" in result.output


def test_the_command_says_how_to_bring_it_back(tmp_path: Path) -> None:
    store = tiny_store(tmp_path, 6)
    asked = ["data", "export", str(store), "--to", "webdataset", "--out", str(tmp_path / "my tars")]
    said = CliRunner().invoke(app, asked).stdout
    assert "6 records in 1 file" in said
    assert f"`tintype data import '{tmp_path / 'my tars'}' --caption" in said
    assert "--caption long=caption_long --caption short=caption_short --split-column split" in said


def test_the_command_exports_one_split(tmp_path: Path) -> None:
    store = tiny_store(tmp_path, 8)
    asked = ["data", "export", str(store), "--to", "parquet", "--out", str(tmp_path / "out"), "--split", "train"]
    assert CliRunner().invoke(app, asked).exit_code == 0
    file = parquet.ParquetFile(tmp_path / "out" / "00000.parquet")
    assert file.metadata.num_rows == open_store(store).about.counts["train"]
