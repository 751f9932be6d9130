"""Tables of other trainers are read as they are written, and each mistake names its place and its fix."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from tintype.errors import UserError
from tintype.judge.metrics import guess, is_bookkeeping, metric_of, parse_metric
from tintype.judge.table import Runs, read_table, runs_of

GOOD = "arm,seed,fid\nbaseline,0,14\nbaseline,1,15\nmuon,0,12\nmuon,1,13\n"


def read(
    tmp_path: Path, text: str | bytes, name: str = "runs.csv", *metrics: str, primary: tuple[str, ...] = ()
) -> Runs:
    file = tmp_path / name
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return runs_of(read_table(file), metrics, primary)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("runs.csv", GOOD),
        ("runs.csv", "\ufeff" + GOOD.replace("\n", "\r\n") + "\r\n"),
        ("runs.csv", GOOD.replace(",", ";")),
        ("runs.tsv", GOOD.replace(",", "\t")),
        ("runs.csv", GOOD.replace(",0,", ",0.0,").replace(",1,", ", 1 ,")),
        ("runs.jsonl", '{"arm": "baseline", "seed": 0, "fid": 14}\n\n{"arm": "baseline", "seed": 1, "fid": 15.0}\n'
         '{"arm": "muon", "seed": 0, "fid": 12}\n{"arm": "muon", "seed": 1, "fid": 13}'),
        ("runs.json", '[{"arm": "baseline", "seed": 0, "fid": 14}, {"arm": "baseline", "seed": 1, "fid": 15},'
         ' {"arm": "muon", "seed": 0, "fid": 12}, {"arm": "muon", "seed": 1, "fid": 13}]'),
    ],
    ids=["CSV", "Excel", "semicolons", "TSV", "a data frame", "JSON lines", "a JSON list"],
)  # fmt: skip
def test_one_table_in_every_form(name: str, text: str, tmp_path: Path) -> None:
    found = read(tmp_path, text, name)
    assert found.values == {
        "baseline": {"0": {"fid": 14.0}, "1": {"fid": 15.0}},
        "muon": {"0": {"fid": 12.0}, "1": {"fid": 13.0}},
    }


def test_text_and_bookkeeping_are_left_out_and_said(tmp_path: Path) -> None:
    text = "arm,seed,step,lr,note,val_loss\na,0,100,1e-3,good,2.5\nb,0,100,1e-3,bad,2.4\n"
    found = read(tmp_path, text)
    assert [one.name for one in found.metrics] == ["val_loss"]
    assert found.left_out == ["step", "lr", "note"]
    assert [one.name for one in read(tmp_path, text, "runs.csv", "step:lower").metrics] == ["step"]


def test_a_diverged_run_and_a_missing_value_are_told_apart(tmp_path: Path) -> None:
    found = read(tmp_path, "arm,seed,fid\na,0,nan\na,1,\na,2,-inf\nb,0,3\n").values["a"]
    values = [found[seed]["fid"] for seed in "012"]
    assert values[1] is None and all(value is not None and math.isnan(value) for value in (values[0], values[2]))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "has no rows; write one row for each run, with columns arm, seed"),
        ("arm,seed,fid\n", "has no rows"),
        ("name,seed,fid\na,0,1\n", "has no column 'arm'; name the column with --arm-column"),
        ("arm,run,fid\na,0,1\n", "has no column 'seed'; name the column with --seed-column"),
        ("arm,seed\na,0\n", "has no numeric column except arm and seed. Its columns are: arm, seed"),
        ("arm,seed,note\na,0,x\n", "has no numeric column"),
        ("arm,seed,fid\na,,1\n", "runs.csv, line 2: column 'seed' is empty"),
        ("arm,seed,fid\n,0,1\n", "runs.csv, line 2: column 'arm' is empty"),
        (GOOD + "muon,1,12\n", "runs.csv, line 6: arm 'muon' already has seed 1 in line 5; keep one row for each run"),
        (GOOD + "muon,2,n/a\n", "runs.csv, line 6: column 'fid': 'n/a' is not a number"),
        (GOOD + 'muon,2,"12,5"\n', "'12,5' is not a number; write numbers with a decimal point"),
        (GOOD + "muon,2,12,5\n", "runs.csv, line 6: the row has 4 cells, but the table has 3 columns"),
        ("arm,seed,fid,fid\na,0,1,2\n", "two columns are named 'fid'"),
        ("arm,seed,fid\na,0,nan\n", "'fid' has no finite value"),
        (b"arm,seed,fid\n\xff,0,1\n", "is not text in UTF-8"),
        ("arm,seed,zeta\na,0,1\n", "it is unknown whether lower or higher values of zeta are better")
    ],
)  # fmt: skip
def test_a_mistake_names_its_place_and_its_fix(text: str | bytes, words: str, tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        read(tmp_path, text)
    assert words in str(caught.value) and "runs.csv" in str(caught.value)


def test_mistakes_in_json_lines_and_missing_files(tmp_path: Path) -> None:
    for text, words in (("{", "runs.jsonl, line 1"), ("[1]", "line 1 is not an object"), ("3\n", "is not an object")):
        with pytest.raises(UserError, match=words):
            read(tmp_path, text, "runs.jsonl")
    with pytest.raises(UserError, match=r"nowhere\.csv: No such file"):
        read_table(tmp_path / "nowhere.csv")
    with pytest.raises(UserError, match="Is a directory"):
        read_table(tmp_path)


def test_a_metric_that_is_not_there_has_the_nearest_name(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no column 'fib' for --metric; did you mean 'fid'"):
        read(tmp_path, GOOD, "runs.csv", "fib:lower")
    with pytest.raises(UserError, match=r"no column 'fic' for --primary; did you mean 'fid'"):
        read(tmp_path, GOOD, primary=("fic",))


MIXED = "arm,seed,{0}\na,0,52.3\na,1,51\nb,0,0.541\nb,1,0.549\n"


@pytest.mark.parametrize("name", ["accuracy", "clip_score"])
def test_two_units_in_one_column_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"two units: about 0.545 in b and about 51.6 in a; .*all as percentages"):
        read(tmp_path, MIXED.format(name))
    assert read(tmp_path, MIXED.format(name), "runs.csv", f"{name}:higher:raw").metrics[0].kind == "raw"


def test_losses_that_differ_a_hundredfold_are_no_mistake(tmp_path: Path) -> None:
    assert read(tmp_path, MIXED.format("fid")).metrics[0].kind == "distance"
    assert read(tmp_path, MIXED.format("val_loss")).metrics[0].kind == "loss"


def test_a_declared_share_lies_between_zero_and_one(tmp_path: Path) -> None:
    percent = "arm,seed,accuracy\na,0,52.3\nb,0,54\n"
    assert read(tmp_path, percent).metrics[0].kind == "raw", "all in percent: one unit"
    with pytest.raises(UserError, match=r"'accuracy' is 52.3 in arm 'a'.*divide percentages by 100"):
        read(tmp_path, percent, "runs.csv", "accuracy:higher:share")


@pytest.mark.parametrize(
    ("name", "direction", "kind"),
    [
        ("val_loss", "lower", "loss"),
        ("validation_metrics/loss", "lower", "loss"),
        ("loss/val/pooled", "lower", "loss"),
        ("val/bpb", "lower", "loss"),
        ("Perplexity", "lower", "loss"),
        ("clip_loss", "lower", "loss"),
        ("FID-50k", "lower", "distance"),
        ("fd_scenes", "lower", "distance"),
        ("train_time", "lower", "raw"),
        ("scene_accuracy", "higher", "share"),
        ("core_metric", "higher", "raw"),
        ("clip/mean", "higher", "raw"),
        ("valAccuracy", "higher", "share"),
        ("images_per_s", "higher", "raw"),
        ("tok/sec", "higher", "raw"),
        ("throughput(tps)", "higher", "raw"),
        ("bf16_mfu", "higher", "raw"),
    ],
)
def test_known_names_tell_direction_and_kind(name: str, direction: str, kind: str) -> None:
    assert guess(name) == (direction, kind)


def test_other_names_tell_nothing() -> None:
    assert guess("zeta") is None and metric_of("zeta", None, "raw", False) is None
    assert is_bookkeeping("learning_rate") and is_bookkeeping("_step") and not is_bookkeeping("loss")


def test_a_metric_is_declared_by_its_name_and_two_words() -> None:
    assert parse_metric("fid") == ("fid", None, None)
    assert parse_metric("fid:lower") == ("fid", "lower", None)
    assert parse_metric("a:b:higher:share") == ("a:b", "higher", "share")
    assert parse_metric("x:raw") == ("x", None, "raw")
    assert parse_metric("fid:down") == ("fid:down", None, None)
    with pytest.raises(UserError, match="the name is missing"):
        parse_metric(":lower")
    declared = metric_of("accuracy", "lower", None, False)
    assert declared is not None and declared.kind == "raw" and not declared.guessed, "a declared direction wins"
