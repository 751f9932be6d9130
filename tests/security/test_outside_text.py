"""Texts from outside that attack the code that reads them: answers of a captioner, captions, numbers, entities."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.caption_server import CaptionServer, Deed, caption_server, send
from tests.fault.promises import Promise
from tests.tiny_store import tiny_store
from tintype.data.captions import parts_of
from tintype.data.image_file import Encoded
from tintype.data.recaption import answers
from tintype.data.recaption.answers import MOST_CHARACTERS, clean, judge, whole_sentences
from tintype.data.recaption.asking import Asking, Question
from tintype.data.recaption.server import Patience, Server, read_answer, read_place
from tintype.data.recaption.work import Task, recaption
from tintype.data.store.attributes import MisfitError, fit
from tintype.data.store.layout import open_store
from tintype.data.store.texts import has_html
from tintype.errors import UserError
from tintype.runtime.interrupt import Interrupt
from tintype.runtime.redact import hide_passwords
from tintype.text.cleaning import clean as clean_caption

SHORT, TIMES = 1000, 16
UNMEASURED_S = 1e-3
"""Shortest time of the long text that is compared: a clock says little about less."""
Reader = Callable[[str], object]


def number(text: str) -> None:
    with pytest.raises(MisfitError):
        fit(f"{'1' * len(text)}x", "float")


def broken_json(text: str) -> None:
    with pytest.raises(Exception, match="not a chat completion"):
        read_answer(Question("0" * 64, Encoded("a", b"")), text.encode())


ATTACKS: list[tuple[str, Reader, str]] = [
    *[
        (f"answer of {unit!r}", clean, unit)
        for unit in ("\n", " \t", "\n ```", "- ", "\n#", "*a ", "**a ", "__a ", "` `a ", "***", "`", "caption: ", "\"'")
    ],
    *[(f"answer of {unit!r}", clean, unit) for unit in ("<think>", "</think>", "sure! here ", "here's a ", "\r", "\v")],
    *[(f"sentences of {unit!r}", whole_sentences, unit) for unit in (".''", ".", "。)", '!" ')],
    *[(f"HTML of {unit!r}", has_html, unit) for unit in ("<a ", "<!-", "<a\n\n", "</", "<a/")],
    *[(f"caption of {unit!r}", clean_caption, unit) for unit in ("<!--", "&#1", "&", "www.", "http://", "<a ", " ")],
    *[(f"parts of {unit!r}", parts_of, unit) for unit in (" ", "\n ", "，。", ". ", " \n")],
    *[(f"addresses of {unit!r}", hide_passwords, f"://{unit}") for unit in ("", "a:", "http://", "?key", "&amp;", "@")],
    ("an address of 'a:'", lambda text: hide_passwords(f"http://{text}"), "a:"),
    ("a number of digits", number, "1"),
    *[(f"JSON of {unit!r}", broken_json, unit) for unit in ("[", "1", "1e9", '{"a":')],
]


def seconds(read: Reader, text: str) -> float:
    """The least of two, in the time of this thread: what else runs on the machine adds to the others."""
    best = float("inf")
    for _ in range(2):
        began = time.thread_time()
        read(text)
        best = min(best, time.thread_time() - began)
    return best


def is_linear(read: Reader, unit: str, short: int = SHORT) -> bool:
    """Whether a text that is 16 times as long takes less than 64 times as long.

    Linear time takes 16 times as long, quadratic time 256 times; 64 is in the middle of both.
    """
    long_s = seconds(read, f"x{(unit * short * TIMES)[: short * TIMES]}x")
    return long_s < UNMEASURED_S or long_s < TIMES**1.5 * seconds(read, f"x{(unit * short)[:short]}x")


@pytest.mark.promise(27)
def test_texts_from_outside_are_read_in_linear_time(promise: Promise) -> None:
    """Read repetitions of 1,000 and of 16,000 characters that make a search go back, and compare the times."""
    for name, read, unit in ATTACKS:
        promise.count(is_linear(read, unit), name)


EARLIER = {
    "newlines": (r"(?m)^\s*```.*$", "\n"),
    "emphasis": (r"(\*\*\*|\*\*|\*|__|`)(?=\S)(.+?)(?<=\S)\1", "*a "),
    "digits": (r"^x[0-9]+\.?[0-9]*$", "1"),
    "spaces": (r"\s*\n\s*", " "),
    "comments": (r"(?s)<!--.*?-->", "<!--"),
}


@pytest.mark.promise(27, control="patterns that go back over what they read")
def test_control_the_earlier_patterns_take_quadratic_time(promise: Promise) -> None:
    for name, (pattern, unit) in EARLIER.items():
        promise.count(is_linear(re.compile(pattern).search, unit, short=100), name)
    assert len(promise.broken) >= 3


def test_emphasis_is_taken_off_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    earlier = re.compile(EARLIER["emphasis"][0])
    for size in range(1, 7):
        for code in range(5**size):
            text = "".join("*_` a"[code // 5**place % 5] for place in range(size))
            assert answers._without_emphasis(text) == earlier.sub(r"\2", text), text


@pytest.mark.promise(27)
def test_an_answer_that_is_too_long_is_not_looked_at(promise: Promise, monkeypatch: pytest.MonkeyPatch) -> None:
    """Judge answers of 262,144 characters and of one more; the longer is given to no pattern."""
    looked: list[int] = []

    def look(answer: str) -> str:
        looked.append(len(answer))
        return "a dog"

    monkeypatch.setattr(answers, "clean", look)
    assert judge("x" * MOST_CHARACTERS).caption == "a dog"
    judged = judge("x" * (MOST_CHARACTERS + 1))
    assert judged.caption == "" and judged.problem == "has 262,145 characters; the most of an answer is 262,144"
    promise.count(looked == [MOST_CHARACTERS], looked)


@pytest.mark.promise(27)
def test_an_entity_of_many_digits_is_no_character(promise: Promise) -> None:
    """Clean a caption with an entity of 5,000 digits, which Python refuses to read as a number."""
    for digits in ("1" * 5000, "0" * 5000 + "65"):
        promise.count(clean_caption(f"a &#{digits}; b") == "a \ufffd b", digits[:3])


# --- a captioner's answers, from the server to the column

ASKING = Asking("Describe it.", 50)
FAST = Patience(timeout_s=30.0, tries=2, first_wait_s=0.001)
PRICED = Task("vlm", ASKING, tries=2, price_input=1.0, price_output=2.0)


@pytest.fixture
def server() -> Iterator[CaptionServer]:
    with caption_server() as started:
        yield started


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tiny_store(tmp_path, 4)


def to(server: CaptionServer) -> Server:
    return Server(read_place(server.url), "m", ASKING, 1, FAST)


def counting(tokens: str) -> Deed:
    """Answer with a count of tokens as it is written here."""
    content = f'{{"choices": [{{"message": {{"content": "A dog."}}}}], "usage": {{"prompt_tokens": {tokens}}}}}'
    return lambda handler: send(handler, 200, content.encode())


@pytest.mark.promise(27)
@pytest.mark.parametrize("tokens", ["9" * 4001, "9" * 4400, "1e400", "1000000001", "-1", '"9"', "true"])
def test_a_count_of_tokens_that_cannot_be_is_no_answer(
    promise: Promise, tokens: str, store: Path, server: CaptionServer
) -> None:
    """Answer with a count of 4,001 digits, then as it should be: it is asked again, and nothing of it is kept."""
    server.script = [counting(tokens)]
    done = recaption(store, PRICED, to(server), Interrupt())
    assert done.about is not None and done.cost == 4 * (100 * 1.0 + 10 * 2.0) / 1e6
    promise.count(len(server.asked) == 5 and done.counts["input_tokens"] == 400, tokens[:8])


def test_images_whose_tokens_are_only_counted_wrongly_are_set_aside(store: Path, server: CaptionServer) -> None:
    server.always = counting("9" * 4001)
    done = recaption(store, PRICED, to(server), Interrupt())
    assert done.counts["set_aside"] == 4 and done.cost == 0.0 and done.about is not None
    kept = (store / str(done.about.added[0].journal)).read_text()
    assert kept.count("the server's answer reports more than 1,000,000,000 tokens") == 4


@pytest.mark.promise(27)
def test_a_count_of_thousands_of_digits_in_a_journal_is_named_with_its_line(
    promise: Promise, store: Path, server: CaptionServer
) -> None:
    """Put a count of 4,001 digits into the journal of a stopped command, and run it again, then without the line."""
    recaption(store, replace(PRICED, limit=2), to(server), Interrupt())
    journal = store / ".recaption-vlm" / "journal.jsonl"
    lines = journal.read_text().splitlines()
    bad = lines[1].replace('"input_tokens": ', '"input_tokens": ' + "9" * 4001)
    assert bad != lines[1]
    journal.write_text("\n".join([lines[0], bad, lines[2]]) + "\n")
    for _ in range(2):
        with pytest.raises(UserError, match=r"journal\.jsonl is damaged in line 2; remove this line"):
            recaption(store, PRICED, to(server), Interrupt())
    journal.write_text("\n".join([lines[0], lines[2]]) + "\n")
    server.images.clear()
    promise.count(recaption(store, PRICED, to(server), Interrupt()).about is not None, "resumed")
    assert sum(server.images.values()) == 3, "what was answered is not asked again"


@pytest.mark.promise(27)
@pytest.mark.parametrize("answer", ["\n" * 400_000, "*a " * 130_000, "x" * 3_000_000, "\n" * 16_000])
def test_a_long_answer_is_set_aside_and_the_journal_stays_small(
    promise: Promise, answer: str, store: Path, server: CaptionServer
) -> None:
    """Answer with newlines, marks and letters, up to 3 MB: it is set aside, and at most 20,000 characters are kept."""
    server.reply = lambda key, body: answer
    done = recaption(store, PRICED, to(server), Interrupt())
    assert (
        done.about is not None and done.counts["set_aside"] == 4 and open_store(store).texts("caption:vlm") == [""] * 4
    )
    kept = (store / str(done.about.added[0].journal)).stat().st_size
    promise.count(kept < 4 * 60_000, f"{kept} bytes")
