from __future__ import annotations

import random

import pytest

from tintype.text.cleaning import clean, cleaner


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


AS_PRX = [
    ('"Hello!" #art', '"hello!" art'),
    ('"Hello!"', "hello!"),
    ("A RED ball", "a red ball"),
    ("a+cat%20on%20grass", "a cat on grass"),
    ("a <person> on grass", "a person on grass"),
    ("see https://example.org/a.png now", "see . now"),
    ("see example.com/x-y now", "see now"),
    ("by @someone, 2020", "by , 2020"),
    ("a 红色 ball カ", "a ball カ"),
    ("a\u2014b \uff0d c", "a-b - c"),
    ("\u00abthe\u00bb `ball`", 'the" "ball'),
    ("red &amp; blue &quot;cube&quot;", "red ; blue cube"),
    ("from 10.0.0.1 on", "from on"),
    ("ends at 7:45 ", "ends at 7:45"),
    ("#12 #1234 #12345 123456", "1234"),
    ("a photo.JPG of it", "a of it"),
    ('"""SALE""" ... now', '"sale" now'),
    ("(a) [b] {c} |d| *e* ~f", "a b c d e f"),
    ("my-cute_cat-is_here", "my cute cat is here"),
    ("my-cute_cat-is", "my-cute_cat-is"),
    ("caf\u00c3\u00a9", "caf\u00e3"),
    ("&lt;b&gt;", "lt;b gt;"),
    ("jc6640 jc6640vc 66vc23 a1b2c3d", ""),
    ("worldwide free shipping today", "today"),
    ("free download here", "here"),
    ("click on this link", "link"),
    ("a png image of page 3", "a of"),
    ("30x40 print, 3.5\u04454", "print,"),
    ("a : b,c", "a: b, c"),
    ("3,5 and a,b", "3,5 and a, b"),
    ("-start and end-", "start and end"),
    (".hidden", ""),
    ("", ""),
]
"""Captions, and what diffusers 0.42.1's rules make of them."""


@pytest.mark.parametrize(("caption", "cleaned"), AS_PRX)
def test_prx_cleans_by_deepfloyds_rules(caption: str, cleaned: str) -> None:
    pytest.importorskip("ftfy", reason="the rules repair broken letters with it")
    assert cleaner("prx")(caption) == cleaned


def test_both_ways_of_prx_are_those_of_diffusers_string_by_string() -> None:
    pytest.importorskip("ftfy", reason="diffusers repairs broken letters with it")
    module = pytest.importorskip("diffusers.pipelines.prx.pipeline_prx", reason="the rules compared with are there")
    theirs = module.TextPreprocessor()
    prx, pixel = cleaner("prx"), cleaner("prx-pixel")
    draw = random.Random(0)
    pieces = [caption for caption, _ in AS_PRX] + list("\"'`#@&%+-_.,:;()[]{}|/\\*~ \n\t½™é\u2019\u201c\u00a0")
    texts = pieces + [
        draw.choice(("", " ")).join(draw.choice(pieces) for _ in range(draw.randint(2, 6))) for _ in range(800)
    ]
    assert [prx(text) for text in texts] == [theirs.clean_text(text) for text in texts]
    assert [pixel(text) for text in texts] == [theirs.basic_clean(text) for text in texts]
    assert sum(prx(text) != text for text in texts) > 700


def test_an_entity_of_a_thousand_digits_does_not_stop_the_cleaning() -> None:
    pytest.importorskip("ftfy", reason="the rules repair broken letters with it")
    assert cleaner("prx")(f"a ball {'9' * 3} &#{'9' * 5000}; b").startswith("a ball 999")
