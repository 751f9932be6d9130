"""The rules by which an answer becomes a caption."""

from __future__ import annotations

import pytest

from tintype.data.recaption.answers import clean, is_refusal, judge
from tintype.data.store.texts import LONGEST


@pytest.mark.parametrize(
    ("answer", "caption"),
    [
        ("  A dog\n\non grass.  ", "A dog on grass."),
        ("Here is a caption: A dog.", "A dog."),
        ("Sure! Here's a detailed description of the image:\n\nA dog.", "A dog."),
        ("**Caption:** A *small* dog.", "A small dog."),
        ("Image description: A dog.", "A dog."),
        ('"A dog."', "A dog."),
        ("“A dog.”", "A dog."),
        ('Here is the caption: "A dog."', "A dog."),
        ("# A dog\n\n- on grass\n- in the sun", "A dog on grass in the sun"),
        ("```text\nA dog.\n```", "A dog."),
        ("<think>It is a dog.</think>A dog.", "A dog."),
        ("A \x1b[31mred\x07 dog.", "A [31mred dog."),
        ("A half \ud800 dog.", "A half dog."),
        # What is a part of the caption stays.
        ('"Stop" on one sign and on another "Go"', '"Stop" on one sign and on another "Go"'),
        ("2 * 3 * 4 on a board", "2 * 3 * 4 on a board"),
        ("A sign: Here is the caption", "A sign: Here is the caption"),
        ("A file named a_b_c.txt", "A file named a_b_c.txt"),
        ("Sure, a dog.", "Sure, a dog."),
    ],
)
def test_what_belongs_to_the_conversation_is_taken_off(answer: str, caption: str) -> None:
    assert clean(answer) == caption
    judged = judge(answer)
    assert (judged.caption, judged.problem) == (caption, None)
    assert judged.cleaned == (caption not in (answer, " ".join(answer.split())))


@pytest.mark.parametrize(
    "answer",
    [
        "I'm sorry, I can't help with that.",
        "I’m really sorry, but I cannot describe people.",
        "Sorry, but I can't assist with that request.",
        "As an AI language model, I cannot see images.",
        "I cannot identify the person.",
        "I am unable to view the picture.",
        "Unfortunately, I can't see it.",
        "I don't see any image in our conversation.",
        "No image was provided.",
        '"I apologize, but no."',
    ],
)
def test_refusals_are_known(answer: str) -> None:
    assert judge(answer).problem == "refusal"


@pytest.mark.parametrize(
    "caption",
    [
        "Sorry, we are closed, says a sign.",
        "An AI robot.",
        "A man who is sorry.",
        "No people on a beach.",
        "Ice in a can.",
    ],
)
def test_captions_are_no_refusals(caption: str) -> None:
    assert not is_refusal(caption)
    assert judge(caption).caption == caption


@pytest.mark.parametrize("answer", [None, "", " \n ", "...", '""', "**", "Here is a caption:", 'Caption: ""'])
def test_nothing_is_empty(answer: str | None) -> None:
    assert judge(answer).problem == "empty"


def test_a_refusal_of_the_server_counts_whatever_it_says() -> None:
    assert judge("A dog.", refused=True).problem == "refusal"


def test_an_answer_that_was_cut_off_ends_with_its_last_whole_sentence() -> None:
    judged = judge("A dog 3.5 m long. It runs. It is bro", cut_off=True)
    assert (judged.caption, judged.shortened) == ("A dog 3.5 m long. It runs.", True)
    assert judge("A dog that is bro", cut_off=True).problem == "cut off"
    assert judge("<think>It is. A dog.", cut_off=True).problem == "cut off"


def test_what_cannot_be_a_caption_of_a_store_is_none() -> None:
    assert "characters" in str(judge("a" * (LONGEST + 1)).problem)
    assert "HTML" in str(judge("A dog.<br>A cat.").problem)
    assert judge("a" * LONGEST).problem is None
