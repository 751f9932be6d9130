from __future__ import annotations

import pytest

from tintype.text.cleaning import clean


@pytest.mark.parametrize(
    ("caption", "cleaned"),
    [
        ("A &amp;quot;red&amp;quot; ball &amp; a cube", 'A "red" ball & a cube'),
        ("a <b>red</b> ball<br/> on<!-- not\nthis --> grass", "a red ball on grass"),
        ("a dog, see https://example.org/a?b=c#d, on www.example.org.", "a dog, see , on ."),
        ("  two\tlines\nof \x00 text  ", "two lines of text"),
        ("cafe\u0301", "café"),
        ("Is 2 < 3 > 1? Yes: A, B; 红色的球!", "Is 2 < 3 > 1? Yes: A, B; 红色的球!"),
        ("", ""),
        ("<p></p>", ""),
    ],
)
def test_markup_goes_and_what_is_said_stays(caption: str, cleaned: str) -> None:
    assert clean(caption) == cleaned
    assert clean(cleaned) == cleaned
