"""Sentences are found in Markdown, docstrings and messages, each in its line."""

from __future__ import annotations

from pathlib import Path

from tools.sentences.collect import sentences, split

PAGE = """# A heading. Not prose

First sentence, e.g. this
one. The second has `code. with a stop`.

- An item: two parts
- Another [link](https://x.y/z)
  goes on.

| a table. | cell |

<!-- made by tools/figures: block -->
Made by data. Not read.

```sh
echo code. No prose.
```
Last one."""

CODE = '''"""Module docstring."""

SIZE = 3
"""Attribute docstring."""


def check(size):
    """Check it.

    Formula:

        a  b
    """
    raise UserError(f"the size {size} of {found.name} is too large", "take a smaller one than that")
'''


def test_prose_is_split_and_code_left_out() -> None:
    assert list(split(PAGE)) == [
        (2, "First sentence, e.g. this one."),
        (3, "The second has `code. with a stop`."),
        (5, "An item:"),
        (5, "two parts"),
        (6, "Another link goes on."),
        (17, "Last one."),
    ]


def test_docstrings_and_messages_are_found(tmp_path: Path) -> None:
    (tmp_path / "tintype").mkdir()
    (tmp_path / "tintype" / "a.py").write_text(CODE)
    found = [(one.line, one.text) for one in sentences(tmp_path, "docstrings")]
    assert found == [(1, "Module docstring."), (4, "Attribute docstring."), (8, "Check it."), (10, "Formula:")]
    messages = [(one.line, one.text) for one in sentences(tmp_path, "errors")]
    assert messages == [
        (14, "the size {size} of {name} is too large"),
        (14, "take a smaller one than that"),
    ]


def test_words_are_counted_without_signs() -> None:
    [(_, text)] = split("Take `a b c` – or 3 × 4.")
    found = sentences(Path(__file__).parents[3], "docs")[0]._replace(text=text)
    assert found.words == 5
