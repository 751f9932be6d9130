from __future__ import annotations

import time

import numpy as np
import pytest

from tests.tiny_store import image_file, imported_earlier, parquet_of
from tintype.data.store import writer
from tintype.data.store.importing import ImportOptions
from tintype.data.store.layout import Store, open_store
from tintype.data.store.where import kept_by, written
from tintype.errors import UserError

SIZES = [(24, 20), (40, 20), (20, 60), (32, 32), (24, 20)]
LONG = ["a red cat", "A dog 🙂 runs", "one two three four five", "it's   here\nnow", "dog"]
STYLE = ["flat", "photo", "flat", "drawn", "photo"]
KINDS = {"long": "long", "style": "style", "split": "style", "in": "long", "two words": "style"}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """In shards of two records."""
    folder = tmp_path_factory.mktemp("where")
    images = [image_file(index, size) for index, size in enumerate(SIZES)]
    source = parquet_of(
        folder / "a.parquet", images, long=LONG, style=STYLE, s=["train", "train", "test"] + ["train"] * 2
    )
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(writer, "SHARD_ROWS", 2)
        imported_earlier(source, folder / "store", ImportOptions(captions=KINDS, split_column="s"))
    return open_store(folder / "store")


@pytest.mark.parametrize(
    ("expression", "rows"),
    [
        ("width >= 32", [1, 3]),
        ("min(width, height) >= 21", [3]),
        ("max(width, height) / min(width, height) > 1.9", [1, 2]),
        ("width * height == 480 or width + 1 == 41", [0, 1, 4]),
        ("24 <= width < 40", [0, 3, 4]),
        ("height - width > -1", [2, 3]),
        ("-width < -39", [1]),
        ("words(long) >= 4", [1, 2]),
        ("words(long) == 3", [0, 3]),
        ("characters(long) <= 3", [4]),
        ("style == 'flat' and words(long) > 3", [2]),
        ('style != "flat"', [1, 3, 4]),
        ("'flat' == style", [0, 2]),
        ("style in ('flat', 'drawn')", [0, 2, 3]),
        ("style not in ('flat', 'drawn')", [1, 4]),
        ("width in (20, 40)", [1, 2]),
        ("not style == 'flat' and not width < 30", [1, 3]),
        ("not (style == 'flat' or width < 30)", [1, 3]),
        ("style == 'flat' or style == 'photo' and width > 30", [0, 1, 2]),
        ("split == 'eval'", [2]),
        ("split == 'eval' or width >= 32", [1, 2, 3]),
        ("caption:split == 'drawn'", [3]),
        ("words([in]) == 1", [4]),
        ("[two words] == style and [two words] == 'photo'", [1, 4]),
        ("contains(lower(long), 'dog')", [1, 4]),
        ("starts(long, 'A ')", [1]),
        ("ends(source, 'row 4')", [4]),
        ("matches(long, '^a .* cat$')", [0]),
        ('long == "it\'s   here\nnow"', [3]),
        ("--width > 39", [1]),
        (" \twidth\n>= 32", [1, 3]),
        ("style in ('flat')", [0, 2]),
        ("style in ( ('flat'), 'drawn' , )", [0, 2, 3]),
        ("not[in] == 'dog' and'a' == 'a'", [0, 1, 2, 3]),
        (r"matches(long, '^\w+$')", [4]),
        (r"long == '\x64og'", []),
        ("1 == 1", [0, 1, 2, 3, 4]),
        ("'a' == 'b' or words('a b') == 3", []),
        ("contains('abc', 'b') and width > 30", [1, 3]),
    ],
)
def test_an_expression_says_which_records_are_taken(store: Store, expression: str, rows: list[int]) -> None:
    assert np.flatnonzero(kept_by(store, expression)).tolist() == rows


@pytest.mark.parametrize(
    ("expression", "at", "problem"),
    [
        ("widht >= 256", 1, "there is no column 'widht'; did you mean 'width'? The columns are long, style, "),
        ("words(width) > 3", 7, "this is a number, but a text is needed: write words(long)"),
        ("wrds(long) > 3", 1, "there is no function 'wrds'; did you mean 'words'?"),
        ("words > 3", 1, "words is a function; write words(long)"),
        ("width", 1, "this is a number, but a comparison is needed: the whole is to say"),
        ("width >= 'a'", 7, "'>=' cannot compare a number with a text"),
        ("style > 'a'", 7, "texts are compared only with == and !=; '>' is for numbers"),
        ("width = 3", 7, "to compare, write =="),
        ("width >= 3 &", 12, "'&' is not a known operator"),
        ("style == 'flat", 10, "this bracket or quote is never closed"),
        ("width >=", 9, "the expression ends too early"),
        ("(width >= 3", 1, "was never closed"),
        ("width >= 3)", 11, "unmatched ')'"),
        ("width >= 3 height < 2", 12, "join conditions with and, or"),
        ("width + style > 3", 9, "the operator '+' needs numbers"),
        ("width and style == 'a'", 1, "this is a number, but a comparison is needed: 'and' joins comparisons"),
        ("min(width) > 3", 1, "min takes 2 values, not 1: min(width, height)"),
        ("contains(long, style)", 16, "this argument must be a text in quotes"),
        ("matches(long, '(')", 15, "this text is not a valid regular expression"),
        ("style in (width)", 11, "the list after 'in' may contain only numbers and texts in quotes"),
        ("style in ('a', 3)", 16, "cannot compare a text with a number"),
        ("width / (height - 20) > 1", 7, "the divisor is zero in 3 of the records"),
        ("width / 0 > 1", 7, "the divisor is zero in all records"),
        ("zzzzzz >= 256", 1, "there is no column 'zzzzzz'; the columns are long, style, "),
        ("(width > 3) == (height > 3)", 13, "cannot compare a comparison with a comparison"),
        ("width ** 2 > 3", 1, "'width ** 2' cannot be used here"),
        ("width // 2 > 3", 1, "'width // 2' cannot be used here"),
        ("+width > 3", 1, "'+width' cannot be used here"),
        ("style in 'flat'", 10, "'in' must be followed by a list in ( )"),
        ("style in ['flat']", 10, "'in' must be followed by a list in ( )"),
        ("style in ()", 10, "'in' must be followed by a list in ( )"),
        (
            "style in ('a', 'b') == true",
            10,
            "'in' must be followed by a list in ( ), without another comparison after it",
        ),
        ("style == 'a''b'", 10, "cannot be used here"),
        ("style == '''a'''", 10, "cannot be used here"),
        ("style == r'a'", 11, "join conditions with and, or"),
        ("style[in] == 'a'", 1, "cannot be used here"),
        ("(width, height) == 3", 1, "cannot be used here"),
        ("min(*width) > 3", 1, "min takes 2 values, not 1"),
        ("width if height else 3", 7, "join conditions with and, or"),
        ("0x10 > 3", 2, "invalid decimal literal"),
        ("width == 1and height > 2", 11, "invalid decimal literal"),
        ("width > 3 # all", 11, "'#' is not a known operator"),
        ("__import__('os') == 'x'", 1, "there is no function '__import__'"),
        ("long.__class__ == 'a'", 1, "'long.__class__' cannot be used here"),
        ("12abc > 3", 3, "invalid decimal literal"),
        ("", 1, "the expression ends too early"),
    ],
)
def test_mistakes_are_pointed_at(store: Store, expression: str, at: int, problem: str) -> None:
    with pytest.raises(UserError) as raised:
        kept_by(store, expression)
    said, shown, mark = str(raised.value).split("\n")
    assert said.startswith(f"data.where, character {at}: ") and problem in said
    assert shown.strip() == expression.strip() and mark.index("^") - 2 == at - 1


def test_long_and_deep_expressions_are_refused_and_bad_patterns_cost_nothing(store: Store) -> None:
    with pytest.raises(UserError, match="nested more than 60 levels deep"):
        kept_by(store, "(" * 500 + "width > 3" + ")" * 500)
    with pytest.raises(UserError, match="nested more than 60 levels deep"):
        kept_by(store, "not " * 500 + "width > 3")
    for signs in ("-" * 3900, "1+" * 1900):
        with pytest.raises(UserError, match="nested more than 60 levels deep"):
            kept_by(store, f"{signs}1 > 3")
    assert kept_by(store, " or ".join(["1==2"] * 480 + ["1==1"])).all(), "many conditions are not deep"
    with pytest.raises(UserError, match=r"has 9,011 characters; the limit is 4,000"):
        kept_by(store, "width > 3 a" + "a" * 9000)
    with pytest.raises(UserError, match=r"character 221: .*\n  …"):
        kept_by(store, "width > 3 and " * 15 + "width > \n wdth")
    with pytest.raises(UserError, match=r"character 2: .* is not a known operator"):
        kept_by(store, "w\x00 > 3")
    began = time.monotonic()
    kept_by(store, "matches('" + "a" * 60 + "', '(a|a|aa)+$b')")
    assert time.monotonic() - began < 10, "a pattern that others need ages for"


def test_every_kind_of_caption_can_be_written(store: Store) -> None:
    assert [written(kind) for kind in KINDS] == ["long", "style", "caption:split", "[in]", "[two words]"]
    for kind in KINDS:
        assert kept_by(store, f"words({written(kind)}) > 0").all()
    assert written("words") == "[words]"
