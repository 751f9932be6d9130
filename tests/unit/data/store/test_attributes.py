from __future__ import annotations

import json
import signal
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest
from typer.testing import CliRunner

from tests import sets
from tests.tiny_store import captioned, image_file, imported, rewrite_about, tried
from tests.unit.data.test_store import quarantine
from tintype.cli import app
from tintype.data.store import writer
from tintype.data.store.attributes import Attribute, MisfitError, Value, fit, read_attributes
from tintype.data.store.changes import add_column
from tintype.data.store.export import Form, export_store, quoted_import_options
from tintype.data.store.importing import ImportOptions
from tintype.data.store.inspect import histogram
from tintype.data.store.layout import Store, open_store
from tintype.data.store.where import kept_by, written
from tintype.errors import StoppedError, UserError
from tintype.runtime.interrupt import Interrupt

KNOWN: dict[str, list[Value]] = {
    "score": [4.5, 5.0, None, 6.25, 7.0, -1.5],
    "objects": [1, 2, 3, None, 5, 2**53],
    "style": ["flat", "photo", "flat", "drawn", None, "flat"],
    "nsfw": [True, False, None, False, False, True],
}
ASKED = {name: Attribute(name) for name in KNOWN}
SAID = read_attributes({"score": "score:float", "objects": "objects:int", "style": "style:text", "nsfw": "nsfw:bool"})


def known(count: int = 6) -> list[sets.Entry]:
    return [
        sets.Entry(one.name, one.content, {**one.texts, **{name: values[row] for name, values in KNOWN.items()}})
        for row, one in enumerate(sets.entries(count))
    ]


def stored(folder: Path, form: str, asked: dict[str, Attribute]) -> Store:
    source = sets.FORMS[form][0](folder / form, known())
    options = ImportOptions(split_column="split", attributes=asked)
    imported(source, folder / f"{form}-store", options)
    return open_store(folder / f"{form}-store")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """In shards of two records."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(writer, "SHARD_ROWS", 2)
        return stored(tmp_path_factory.mktemp("attributes"), "parquet", ASKED)


@pytest.mark.parametrize("form", ["webdataset", "jsonl", "json", "metadata.parquet", "csv"])
def test_every_importer_brings_in_the_same_attributes(tmp_path: Path, store: Store, form: str) -> None:
    """Importers know the kinds, but for CSV, which has texts only."""
    found = stored(tmp_path, form, SAID if form == "csv" else ASKED)
    assert found.identity == store.identity and found.attributes == store.attributes
    assert found.attributes == {"score": "float", "objects": "int", "style": "text", "nsfw": "bool"}
    for row in range(6):
        assert found.attributes_of(row) == {name: values[row] for name, values in KNOWN.items()}
    found.check()


def test_saved_data_sets_and_mds_shards_have_attributes(tmp_path: Path) -> None:
    sets.saved_split(tmp_path / "saved", [known()])
    imported(tmp_path / "saved", tmp_path / "a", ImportOptions(split_column="split", attributes=ASKED))
    assert [open_store(tmp_path / "a").attributes_of(row)["score"] for row in range(6)] == KNOWN["score"]
    columns = {"image": "png", "caption": "str", "n": "int", "small": "float32", "said": "str_float", "json": "json"}
    entries = json.dumps({"score": 5, "nsfw": True}).encode()
    rows = [image_file(0), b"a word", struct.pack("<q", -7), struct.pack("<f", 0.5), b"2.5", entries]
    odd = [image_file(1), b"a word", struct.pack("<q", 1), b"abc", b"2.5", entries]
    sets.mds_of(tmp_path / "mds", columns, [[rows, odd]])
    asked = read_attributes({"n": "n", "small": "small", "said": "said", "score": "json.score", "nsfw": "json.nsfw"})
    imported(tmp_path / "mds", tmp_path / "b", ImportOptions(attributes=asked))
    found = open_store(tmp_path / "b")
    assert found.attributes_of(0) == {"n": -7, "small": 0.5, "said": 2.5, "score": 5.0, "nsfw": True}
    assert found.attributes["score"] == "float" and len(found) == 1
    assert (
        "has 3 bytes, which is not the size of the type float32"
        in quarantine(tmp_path / "b")["shard.00000.mds, sample 1"]
    )


def test_scenes_have_attributes(tmp_path: Path) -> None:
    asked = read_attributes({"objects": "objects", "style": "style", "light": "light"})
    imported(Path("scenes:count=20,size_px=32"), tmp_path / "store", ImportOptions(attributes=asked))
    found = open_store(tmp_path / "store")
    assert found.attributes == {"objects": "int", "style": "text", "light": "text"} and not any(
        found.missing().values()
    )
    assert 0 < kept_by(found, "objects >= 2").sum() < 22


def test_the_identity_of_a_store_without_attributes(tmp_path: Path) -> None:
    about = imported(captioned(tmp_path / "a.parquet", 3), tmp_path / "store", ImportOptions(eval_share=0))
    assert about.identity == "0ce155ddc6f0b3a57923aa3427e306fc9a62f363dd3677cb10f3de58f59398d9"


def test_attributes_are_part_of_the_identity(tmp_path: Path) -> None:
    identities = set()
    for index, score in enumerate(([1.0, 2.0], [1.0, 3.0], [1.0, None], None)):
        columns: dict[str, Any] = {} if score is None else {"score": score}
        source = captioned(tmp_path / f"{index}.parquet", 2, **columns)
        asked = {} if score is None else {"score": Attribute("score", "float")}
        identities.add(imported(source, tmp_path / f"store-{index}", ImportOptions(attributes=asked)).identity)
    assert len(identities) == 4
    rewrite_about(tmp_path / "store-0", lambda about: about["attributes"].update(score="int"))
    with pytest.raises(UserError, match="does not contain the 2 rows and the columns"):
        Store(tmp_path / "store-0")


@pytest.mark.parametrize("to", ["webdataset", "parquet"])
def test_an_export_comes_in_again_as_the_same_store(tmp_path: Path, store: Store, to: Form) -> None:
    export_store(store, to, tmp_path / "out", None, Interrupt())
    said = quoted_import_options(store).split()
    asked = dict(one.split("=") for one in said if "=attribute_" in one)
    options = ImportOptions(split_column="split", attributes=read_attributes(asked))
    again = imported(tmp_path / "out", tmp_path / "again", options)
    assert again.identity == store.identity and again.attributes == store.attributes
    if to == "parquet":
        schema = pyarrow.parquet.read_schema(tmp_path / "out" / "00000.parquet")
        assert str(schema.field("attribute_score").type) == "double"
        assert json.loads(schema.metadata[b"huggingface"])["info"]["features"]["attribute_nsfw"]["dtype"] == "bool"


@pytest.mark.parametrize(
    ("value", "kind", "expected"),
    [
        (" flat\n", "text", "flat"),
        ("", "text", None),
        (True, "text", "true"),
        (3, "text", "3"),
        ("12", "int", 12),
        (3.0, "int", 3),
        ("", "int", None),
        (float("nan"), "float", None),
        ("-1.5e3", "float", -1500.0),
        (3, "float", 3.0),
        ("True", "bool", True),
        (0, "bool", False),
    ],
)
def test_a_value_becomes_one_of_its_kind(value: Any, kind: Any, expected: Value) -> None:
    found = fit(value, kind)
    assert found == expected and type(found) is type(expected)


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        ([1], "text"),
        ("\udcff", "text"),
        ("a" * 20_001, "text"),
        (1.5, "int"),
        (2**63, "int"),
        (True, "int"),
        ("1_000", "float"),
        ("n/a", "float"),
        (float("inf"), "float"),
        (10**400, "float"),
        (2**53 + 1, "float"),
        (False, "float"),
        ("yes", "bool"),
        (2, "bool"),
    ],
)
def test_a_value_that_does_not_fit_is_shown(value: Any, kind: Any) -> None:
    with pytest.raises(MisfitError):
        fit(value, kind)


def test_a_record_with_another_value_is_set_aside(tmp_path: Path) -> None:
    source = captioned(tmp_path / "a.parquet", 4, score=["5.5", "n/a", None, ""])
    imported(source, tmp_path / "store", ImportOptions(attributes={"score": Attribute("score", "float")}))
    assert quarantine(tmp_path / "store") == {
        "a.parquet, row 1": "the attribute score (column score) is not of the kind float: 'n/a'"
    }
    assert open_store(tmp_path / "store").missing() == {"score": 2}


@pytest.mark.parametrize(
    ("name", "asked", "problem"),
    [
        ("width", "style", "every store has a column with this name"),
        ("long", "style", "a caption column has this name"),
        ("a:b", "style", "is not a valid name of an attribute; use at most 64 characters"),
        ("x", "styl", "has no column of texts, numbers or booleans 'styl'"),
        ("x", "score:flaot", r"has no column .* 'score:flaot'.* NAME=COLUMN:float"),
        ("x", "mixed", r"this column holds int and text; declare its kind: x=mixed:text, x=mixed:int"),
        ("x", "empty", "holds no value from which its kind could be inferred"),
        ("x", "tags", "this column holds list"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, name: str, asked: str, problem: str) -> None:
    more = [{"mixed": value, "empty": None, "tags": [1]} for value in (1, "a")]
    some = [sets.Entry(e.name, e.content, {**e.texts, **m}) for e, m in zip(known(2), more, strict=True)]
    source = sets.jsonl_folder(tmp_path / "set", some)
    with pytest.raises(UserError, match=problem):
        imported(source, tmp_path / "store", ImportOptions(attributes=read_attributes({name: asked})))
    assert not (tmp_path / "store").exists()


def test_a_stopped_import_resumes_with_its_attributes(
    tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, interrupt = sets.tars(tmp_path / "set", known()), Interrupt()

    def stop(progress: Any) -> None:
        interrupt.signal = signal.SIGINT if progress.done == 3 else None

    options = ImportOptions(split_column="split", attributes=ASKED)
    with pytest.raises(StoppedError, match="records are kept"):
        tried(source, tmp_path / "store", options, stop, interrupt)
    with pytest.raises(UserError, match="with other options"):
        imported(source, tmp_path / "store", ImportOptions(split_column="split"))
    assert imported(source, tmp_path / "store", options).identity == store.identity


def test_a_stopped_import_resumes_with_the_same_options_in_another_order(
    tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "SHARD_ROWS", 2)
    source, interrupt = sets.tars(tmp_path / "set", known()), Interrupt()

    def stop(progress: Any) -> None:
        interrupt.signal = signal.SIGINT if progress.done == 3 else None

    captions = {"long": "txt", "short": "short"}
    begun = ImportOptions(captions, ASKED, "split")
    turned = ImportOptions(dict(reversed(captions.items())), dict(reversed(ASKED.items())), "split")
    with pytest.raises(StoppedError, match="records are kept"):
        tried(source, tmp_path / "store", begun, stop, interrupt)
    imported(source, tmp_path / "store", turned)
    whole = open_store(tmp_path / "store")
    whole.check()
    assert whole.identity == store.identity


@pytest.mark.parametrize(
    ("expression", "rows"),
    [
        ("score >= 5", [1, 3, 4]),
        ("not score >= 5", [0, 5]),
        ("score != 5", [0, 3, 4, 5]),
        ("missing(score)", [2]),
        ("score > 6 or missing(score)", [2, 3, 4]),
        ("not missing(style) and not missing(nsfw)", [0, 1, 3, 5]),
        ("min(score, objects) < 2", [0, 5]),
        ("objects in (1, 3)", [0, 2]),
        ("objects not in (1, 3)", [1, 4, 5]),
        ("style == 'flat'", [0, 2, 5]),
        ("style != 'flat'", [1, 3]),
        ("words(style) == 1", [0, 1, 2, 3, 5]),
        ("not contains(style, 'flat')", [1, 3]),
        ("nsfw", [0, 5]),
        ("not nsfw", [1, 3, 4]),
        ("nsfw == false and score > 5", [3, 4]),
        ("nsfw != true", [1, 3, 4]),
        ("nsfw or true", [0, 1, 2, 3, 4, 5]),
        ("nsfw and style == 'flat'", [0, 5]),
    ],
)
def test_what_is_missing_is_neither_true_nor_false(store: Store, expression: str, rows: list[int]) -> None:
    assert np.flatnonzero(kept_by(store, expression)).tolist() == rows


@pytest.mark.parametrize(
    ("expression", "problem"),
    [
        (
            "style > 5",
            "imported as text: import it with `tintype data import SOURCE --out DIR --attribute style=COLUMN:float`",
        ),
        ("score == 'a'", "'==' cannot compare a number with a text"),
        ("nsfw > 3", "'>' cannot compare true or false with a number"),
        ("nsfw < true", "true and false are compared only with == and !="),
        ("nsfw + 1 > 3", "this is true or false, but a number is needed"),
        ("stile == 'a'", "did you mean 'style'?"),
    ],
)
def test_comparisons_of_other_kinds_are_refused(store: Store, expression: str, problem: str) -> None:
    with pytest.raises(UserError, match=problem.replace("+", r"\+").replace("?", r"\?")):
        kept_by(store, expression)


def test_true_is_a_word_and_an_attribute_of_this_name_stands_in_brackets(tmp_path: Path) -> None:
    named = stored(tmp_path, "parquet", {"true": Attribute("nsfw"), "score": Attribute("score")})
    assert np.flatnonzero(kept_by(named, "(score > 5) == true")).tolist() == [3, 4]
    assert written("true") == "[true]"
    assert np.flatnonzero(kept_by(named, written("true"))).tolist() == [0, 5]


def test_numbers_that_would_be_rounded_are_not_compared(tmp_path: Path) -> None:
    columns: dict[str, Any] = {"id": [2**60 + 1, 5]}
    source = captioned(tmp_path / "a.parquet", 2, **columns)
    imported(source, tmp_path / "store", ImportOptions(attributes={"id": Attribute("id")}))
    with pytest.raises(UserError, match=r"beyond ±2\^53"):
        kept_by(open_store(tmp_path / "store"), "id == 5")


def test_new_captions_leave_attributes_alone(tmp_path: Path) -> None:
    before = stored(tmp_path, "parquet", ASKED)
    with pytest.raises(UserError, match="has an attribute with this name"):
        add_column(before.path, "style", ["x"] * 6, {})
    add_column(before.path, "vlm", ["x"] * 6, {})
    after = Store(before.path)
    assert [after.attributes_of(row) for row in range(6)] == [before.attributes_of(row) for row in range(6)]
    after.check()


def test_show_and_inspect_tell_of_attributes(tmp_path: Path) -> None:
    source = sets.jsonl_folder(tmp_path / "set", known())
    pairs = [part for name in KNOWN for part in ("--attribute", f"{name}={name}")]
    asked = ["data", "import", str(source), "--out", str(tmp_path / "store"), *pairs, "--split-column", "split"]
    done = CliRunner().invoke(app, asked)
    assert done.exit_code == 0 and "attributes score (float), objects (int)" in done.output
    shown = CliRunner().invoke(app, ["data", "show", str(tmp_path / "store"), "--where", "score > 5"])
    assert "score (float, 1 missing)" in shown.output and "left: 1 train, 1 eval" in shown.output
    page = tmp_path / "page.html"
    said = CliRunner().invoke(app, ["data", "inspect", str(tmp_path / "store"), "--out", str(page), "--json"])
    about = json.loads(said.stdout)["attributes"]
    assert about["style"]["most_common"][0] == {"value": "flat", "records": 3} and about["style"]["missing"] == 1
    assert about["nsfw"]["most_common"] == [{"value": "false", "records": 3}, {"value": "true", "records": 2}]
    assert sum(about["score"]["histogram"]["counts"]) == 5 and about["score"]["spread"]["min"] == -1.5
    assert '<section id="attributes">' in page.read_text()


@pytest.mark.parametrize("values", [[0.1, 0.2, 0.3], [-5.5, 3.25], list(np.linspace(0, 1, 101)), [1e-5, 2e-5, 9e5]])
def test_a_histogram_of_numbers_holds_every_value_once(values: list[float]) -> None:
    found = histogram(np.array(values))
    assert found is not None and sum(found["counts"]) == len(values) and len(found["counts"]) <= 30
    edges = found["edges"]
    for low, high, count in zip(edges, edges[1:], found["counts"], strict=False):
        assert count == sum(low <= value and (high == edges[-1] or value < high) for value in values)
    assert histogram(np.array([3.0, 3.0])) is None and histogram(np.array([-1e308, 1e308])) is None
