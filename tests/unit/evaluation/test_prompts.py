from __future__ import annotations

from pathlib import Path

import pytest

from tests.shared import shared
from tintype.errors import UserError
from tintype.evaluation.prompts import read_prompts


def test_genevals_file_is_read_as_published() -> None:
    file = read_prompts(shared("data/prompts/geneval.jsonl"))
    assert len(file.prompts) == 553 and file.prompts[0] == "a photo of a bench"
    assert set(file.groups) == {"tag"} and len(set(file.groups["tag"])) == 6


def test_partiprompts_file_is_read_as_published() -> None:
    file = read_prompts(shared("data/prompts/PartiPrompts.tsv"))
    assert len(file.prompts) == 1632
    assert set(file.groups) == {"category", "challenge"} and file.groups["category"][0] == "Abstract"
    assert 'a football club called "The Rumbury Wanderers"' in file.prompts[725]


def test_a_text_file_has_a_prompt_on_each_line(tmp_path: Path) -> None:
    file = tmp_path / "mine.txt"
    file.write_text("a red ball\n\n a blue star \n", encoding="utf-8")
    assert read_prompts(file).prompts == ("a red ball", "a blue star") and not read_prompts(file).groups


def test_ways_to_write_a_file(tmp_path: Path) -> None:
    (tmp_path / "a.JSONL").write_text('{"prompt": "one"}\r\n   \n{"prompt": "two"}', encoding="utf-8")
    assert read_prompts(tmp_path / "a.JSONL").prompts == ("one", "two")
    (tmp_path / "b.txt").write_text("one \u2028 line\ntwo", encoding="utf-8")
    assert read_prompts(tmp_path / "b.txt").prompts == ("one \u2028 line", "two")
    (tmp_path / "c.tsv").write_text("Prompt\tCategory\none\tA\ntwo\n", encoding="utf-8")
    assert read_prompts(tmp_path / "c.tsv").groups == {"category": ("A", "–")}


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", '{"prompt": "x"}\n{"tag": "y"}\n', "a.jsonl, line 2: the line has no prompt"),
        ("b.jsonl", "{oh\n", "b.jsonl, line 1: not JSON"),
        ("c.tsv", "Text\tCategory\nhello\tAbstract\n", "c.tsv, line 2: the row has no prompt; .* must name a column"),
        ("f.csv", "Prompt\n" + "x" * 200_000 + "\n", "f.csv, line [12]: field larger than field limit"),
        ("d.txt", "\n", "contains no prompts"),
        ("e.txt", b"\xff\xfe\x00", "not UTF-8"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, name: str, content: str | bytes, message: str) -> None:
    file = tmp_path / name
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(UserError, match=message):
        read_prompts(file)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"cannot read the prompts in .*nowhere.txt"):
        read_prompts(tmp_path / "nowhere.txt")
