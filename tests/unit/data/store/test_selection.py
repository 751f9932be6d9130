from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pyarrow
import pytest
import torch
from pyarrow import parquet
from typer.testing import CliRunner

from tests.stopping import train_to
from tests.tiny import tiny_plan
from tests.tiny_store import image_file, imported, parquet_of, tiny_store
from tintype.cli import app
from tintype.data.sources import forget_sources, open_source
from tintype.data.store.importing import ImportOptions
from tintype.data.store.layout import Split, Store, open_store
from tintype.data.store.selection import read_skip_list, select
from tintype.data.store.settings import StoreSettings
from tintype.data.store.source import StoreSource
from tintype.errors import UserError
from tintype.runtime.interrupt import Interrupt
from tintype.train.loop import train
from tintype.train.record import RunRecord
from tintype.train.session import _data_key

CPU = torch.device("cpu")


def hashes(store: Store, split: Split = "train") -> list[str]:
    return [store.about_row(row)["sha256"] for row in store.rows(split).tolist()]


def opened(store: Path, split: Split = "train", **settings: object) -> StoreSource:
    return StoreSource(StoreSettings.model_validate({"path": str(store), "size_px": 16, **settings}), split, CPU)


def shorts(source: StoreSource) -> list[str]:
    return [record.captions["short"] for record in source.records(range(len(source)))]


def as_text(path: Path, some: list[str]) -> Path:
    path.write_text("# a remark\n\n" + "".join(f"  {one}  # why\r\n" for one in some))
    return path


def as_parquet(path: Path, some: list[str]) -> Path:
    parquet.write_table(pyarrow.table({"why": ["x"] * len(some), "sha256": some}), path.with_suffix(".parquet"))
    return path.with_suffix(".parquet")


@pytest.mark.parametrize("write", [as_text, as_parquet])
def test_records_of_a_skip_list_are_left_out_of_both_splits(
    tmp_path: Path, write: Callable[[Path, list[str]], Path]
) -> None:
    store = tiny_store(tmp_path)
    gone = [*hashes(open_store(store))[2:5], *hashes(open_store(store), "eval")[:2]]
    skip = str(write(tmp_path / "skip.txt", gone))
    for split in ("train", "eval"):
        which: Split = "train" if split == "train" else "eval"
        whole, left = opened(store, which), opened(store, which, skip=skip)
        assert set(shorts(whole)) > set(shorts(left)) and len(whole) - len(left) == (3 if split == "train" else 2)
    rows = open_store(store).rows("train").tolist()
    assert shorts(opened(store, skip=skip))[:3] == [f"number {rows[at]}" for at in (0, 1, 5)]
    assert shorts(opened(store, skip=skip, limit=3)) == [f"number {rows[at]}" for at in (0, 1, 5)]


def test_an_expression_chooses_from_both_splits_and_comes_with_a_skip_list(tmp_path: Path) -> None:
    store = tiny_store(tmp_path)
    rows = open_store(store).rows("train").tolist()
    skip = str(as_text(tmp_path / "skip", hashes(open_store(store))[:1]))
    ones = [f"number {row}" for row in rows[1:] if row < 10]
    assert shorts(opened(store, where="characters(short) == 8", skip=skip)) == ones
    evaluated = sorted(shorts(opened(store, "eval", where="characters(short) == 8")))
    assert evaluated == sorted(f"number {row}" for row in open_store(store).rows("eval").tolist() if row < 10)
    train_only = "split == 'eval' or characters(short) == 8"
    assert len(opened(store, "eval", where=train_only)) == len(open_store(store).rows("eval"))


def test_repeats_leave_the_first_of_copies(tmp_path: Path) -> None:
    images = [image_file(seed) for seed in (0, 1, 0, 2, 1, 0)]
    source = parquet_of(tmp_path / "a.parquet", images, caption=list("abcdef"))
    imported(source, tmp_path / "store", ImportOptions(eval_share=0))
    store = open_store(tmp_path / "store")
    first, second = hashes(store)[:2]
    for lines, kept in (
        ([f"{first} repeats"], [0, 1, 3, 4]),
        ([first], [1, 3, 4]),
        ([f"{first} repeats", first], [1, 3, 4]),
        ([f"{first} repeats", f"{second} repeats"], [0, 1, 3]),
    ):
        selection = select(store, None, as_text(tmp_path / "skip", lines))
        assert selection.rows(store, "train").tolist() == kept and selection.by_skip == 6 - len(kept)


def test_what_is_left_names_the_data(tmp_path: Path) -> None:
    store = tiny_store(tmp_path)
    some, whole = hashes(open_store(store))[:3], opened(store).identity
    assert whole == open_store(store).identity
    by_list = opened(store, skip=str(as_text(tmp_path / "a", some))).identity
    again = opened(store, skip=str(as_parquet(tmp_path / "b", some[::-1]))).identity
    assert by_list == again != whole, "wherever the list lies, and in whatever order"
    assert opened(store, skip=str(as_text(tmp_path / "c", some[:2]))).identity not in (by_list, whole)
    assert opened(store, "eval", skip=str(tmp_path / "a")).identity == by_list, "of the store, not of a split"
    assert opened(store, where="width == 24").identity == whole, "which leaves nothing out"
    settings = [StoreSettings(path=str(store), size_px=16, skip=str(tmp_path / name)) for name in ("a", "b.parquet")]
    keys = [_data_key(one, StoreSource(one, "train", CPU)) for one in settings]
    plain = StoreSettings(path=str(store), size_px=16)
    assert keys[0] == keys[1] != _data_key(plain, StoreSource(plain, "train", CPU))


def test_a_run_does_not_resume_with_another_skip_list(tmp_path: Path) -> None:
    store = tiny_store(tmp_path)
    some, skip = hashes(open_store(store)), tmp_path / "skip.txt"
    as_text(skip, some[:3])
    plan = tiny_plan("data.kind=store", f"data.path={store}", f"data.skip={skip}")
    train_to(plan, tmp_path / "run", 2)
    as_text(skip, some[:4])
    forget_sources()
    with pytest.raises(UserError, match=r"identity of 'data' .*put the first one back"):
        train(plan, tmp_path / "run", Interrupt())
    held_out = plan.data.held_out(8)
    with pytest.raises(UserError, match="identity of 'data'"):
        RunRecord(tmp_path / "run").check_identity("data", open_source(held_out, "eval", CPU).identity)
    as_text(skip, [some[2], some[0], some[1]])
    forget_sources()
    assert train(plan, tmp_path / "run", Interrupt()).finished
    RunRecord(tmp_path / "run").check_identity("data", open_source(held_out, "eval", CPU).identity)


def test_filters_are_part_of_the_hash() -> None:
    def hash_of(*assignments: str) -> str:
        return tiny_plan("data.kind=store", "data.path=A", *assignments).hash

    assert hash_of() == hash_of("data.where=null", "data.skip=null")
    assert len({hash_of(), hash_of("data.where=width > 3"), hash_of("data.where=width > 4")}) == 3
    assert len({hash_of(), hash_of("data.skip=a"), hash_of("data.skip=b")}) == 3
    pin = "data.skip_sha256=0123456789abcdef"
    assert hash_of("data.skip=a", pin) == hash_of("data.skip=b", pin) != hash_of("data.skip=a")
    with pytest.raises(UserError, match="skip_sha256 pins a skip list; give skip too"):
        hash_of(pin)


def test_a_pinned_list_is_the_only_one(tmp_path: Path) -> None:
    store = tiny_store(tmp_path)
    skip = as_text(tmp_path / "skip", hashes(open_store(store))[:2])
    identity = read_skip_list(skip).identity
    assert len(opened(store, skip=str(skip), skip_sha256=identity[:8])) == len(open_store(store).rows("train")) - 2
    as_text(skip, hashes(open_store(store))[:1])
    with pytest.raises(
        UserError,
        match=rf"data.skip_sha256 records .* the skip list .*{identity[:12]}… there.*, or leave skip_sha256 out",
    ):
        opened(store, skip=str(skip), skip_sha256=identity)


def test_nothing_left_is_an_error_with_counts(tmp_path: Path) -> None:
    store = tiny_store(tmp_path, 20)
    counts = open_store(store).about.counts
    message = rf"none of the {counts['train']} train records of .*, data.where excludes 20 and data.skip excludes 1;"
    with pytest.raises(UserError, match=message):
        opened(store, where="width > 100", skip=str(as_text(tmp_path / "skip", hashes(open_store(store))[:1])))
    with pytest.raises(UserError, match=f"none of the {counts['eval']} eval records"):
        opened(store, "eval", where="split == 'train'")


def test_hashes_that_no_record_has_are_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = tiny_store(tmp_path, 20)
    skip = as_text(tmp_path / "skip", ["a" * 64, "b" * 64 + " repeats", hashes(open_store(store))[0]])
    assert len(opened(store, skip=str(skip))) == open_store(store).about.counts["train"] - 1
    assert (
        "note: 2 hashes are in the skip list and not in the store (for example aaaaaaaaaaaa…)"
        in capsys.readouterr().err
    )
    assert select(open_store(store), None, as_text(tmp_path / "known", hashes(open_store(store))[:2])).note is None


def test_bad_skip_lists_are_named(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    parquet.write_table(pyarrow.table({"hash": ["a" * 64]}), tmp_path / "other.parquet")
    (tmp_path / "bad.parquet").write_bytes(b"PAR1")
    as_text(tmp_path / "short", ["a" * 64, "abc"])
    as_text(tmp_path / "upper", ["A" * 64])
    as_text(tmp_path / "word", ["a" * 64 + " repeat"])
    as_parquet(tmp_path / "row", ["a" * 64, "abc"])
    for name, message in {
        "nowhere": "cannot read the skip list .*nowhere: No such file",
        "nowhere.parquet": "nowhere.parquet cannot be read as a Parquet file",
        "binary": "is not text in UTF-8",
        "other.parquet": "has no column 'sha256'; its columns are hash",
        "bad.parquet": "as a Parquet file",
        "short": r"short, line 4: 'abc' is not a valid entry",
        "upper": "line 3: 'AAA",
        "word": "is not a valid entry. .*'repeats'",
        "row.parquet": "row.parquet, row 1: 'abc' is not a valid entry",
    }.items():
        with pytest.raises(UserError, match=message):
            read_skip_list(tmp_path / name)


def test_show_says_how_many_are_left(tmp_path: Path) -> None:
    store = tiny_store(tmp_path, 20)
    counts = open_store(store).about.counts
    skip = as_text(tmp_path / "skip", [*hashes(open_store(store))[:1], "a" * 64])
    asked = ["data", "show", str(store), "--skip", str(skip), "--where", "width == 24"]
    said = " ".join(CliRunner().invoke(app, asked).output.split())
    assert f"left: {counts['train'] - 1} train, {counts['eval']} eval (--where leaves out 0, --skip 1)" in said
    assert "note: 1 hash is in the skip list and not in the store" in said
    left = json.loads(CliRunner().invoke(app, [*asked, "--json"]).output)["left"]
    assert left == {"train": counts["train"] - 1, "eval": counts["eval"]}
    assert json.loads(CliRunner().invoke(app, [*asked[:3], "--json"]).output)["left"] is None
    wrong = CliRunner().invoke(app, [*asked[:-1], "wdth == 24"])
    assert "--where, character 1: there is no column 'wdth'" in str(wrong.exception)
