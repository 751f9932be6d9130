"""From what a model answered to a caption, or to the reason why it is none.

The rules are few and fixed, so that they can be told: docs/data.md lists them.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass

from tintype.data.store.texts import unfit

EMPTY, REFUSAL, CUT_OFF = "empty", "refusal", "cut off"


@dataclass(frozen=True)
class Judged:
    """A caption, or why there is none."""

    caption: str
    problem: str | None = None
    """`empty`, `refusal`, `cut off`, or why the text cannot be a caption."""
    cleaned: bool = False
    """Whether more than white space was taken off."""
    shortened: bool = False
    """Whether a last sentence that the limit of tokens had cut was dropped."""


def judge(answer: str | None, cut_off: bool = False, refused: bool = False) -> Judged:
    """`cut_off`: the limit of tokens ended the answer. `refused`: the server itself says that it is a refusal."""
    plain = " ".join((answer or "").split())
    text = clean(answer or "")
    if refused or is_refusal(text):
        return Judged("", REFUSAL)
    unfinished = "<think>" in text  # thoughts that came to no end, and so to no answer
    shortened = cut_off and not unfinished
    if shortened:
        text = whole_sentences(text)
    if (cut_off and not text) or unfinished:
        return Judged("", CUT_OFF)
    if not any(character.isalnum() for character in text):
        return Judged("", EMPTY)
    if reason := unfit(text):
        return Judged("", reason)
    return Judged(text, None, not shortened and text != plain, shortened)


_THOUGHTS = re.compile(r"^.*</think>", re.DOTALL)
_FENCE = re.compile(r"^\s*```.*$", re.MULTILINE)
_LINE_MARK = re.compile(r"^\s*(?:#{1,6}|[-*•>])\s+", re.MULTILINE)
_EMPHASIS = re.compile(r"(\*\*\*|\*\*|\*|__|`)(?=\S)(.+?)(?<=\S)\1")
_OPENING = re.compile(
    r"(?:sure|certainly|of course|absolutely|okay|ok|great)(?:[!,.:]|\s*[-–—])\s+(?=here\b)"
    r"|here(?:['’]s|\s+is|\s+are)\b[^:.!?]{0,80}\b(?:captions?|descriptions?)\b[^:.!?]{0,80}:\s*"
    r"|(?:(?:the|a|image|picture|photo|long|short|brief|detailed|alt)\s+){0,3}(?:caption|description)\s*:\s*",
    re.IGNORECASE,
)
_QUOTES = {'"': '"', "'": "'", "“": "”", "‘": "’", "«": "»", "„": "“"}


def clean(answer: str) -> str:
    """The answer without what belongs to the conversation or to its typography."""
    text = _THOUGHTS.sub("", answer)
    text = _visible(text)
    text = _FENCE.sub("", text)
    text = _LINE_MARK.sub("", text)
    text = _EMPHASIS.sub(r"\2", text)
    text = " ".join(text.split())
    while (shorter := _unquoted(_without_opening(text))) != text:
        text = shorter
    return text


def _visible(text: str) -> str:
    """Without control characters, which could steer a terminal; a line break stays, a half surrogate does not."""
    return "".join(c for c in text if c in "\n\t " or unicodedata.category(c) not in ("Cc", "Cs"))


def _without_opening(text: str) -> str:
    found = _OPENING.match(text)
    return text[found.end() :] if found else text


def _unquoted(text: str) -> str:
    """Without quotes around the whole; a caption that begins with one quotation and ends with another keeps them."""
    if len(text) < 2 or _QUOTES.get(text[0]) != text[-1]:
        return text
    inside = text[1:-1]
    return text if text[0] in inside or text[-1] in inside else inside.strip()


_REFUSAL = re.compile(
    r"(?:(?:i['’]m|i am)\s+(?:(?:very|really|so|truly)\s+)?sorry\b"
    r"|sorry[,.!]?\s+(?:but\s+)?i\b"
    r"|(?:my apologies|i apologi[sz]e)\b"
    r"|(?:unfortunately|regrettably),?\s+(?:i\b|as an)"
    r"|i\s+(?:can['’]?t|cannot|can not|could not|couldn['’]t|won['’]t|will not|must decline)\b"
    r"|i\s+(?:do not|don['’]t)\s+have\b"
    r"|(?:i am|i['’]m)\s+(?:unable|not able|not allowed|not permitted|just an? ai|an ai)\b"
    r"|as an?\s+(?:ai|artificial intelligence|(?:large\s+)?language model|text[- ]based)\b"
    r"|i\s+(?:do not|don['’]t)\s+(?:actually\s+)?see\s+(?:any|an|the|your)\s+(?:image|picture|photo)"
    r"|(?:there is |it (?:seems|looks like|appears)(?: that)? (?:there is )?)?no (?:image|picture|photo) "
    r"(?:is|was|has been|provided|attached|uploaded|shown)\b"
    r")",
    re.IGNORECASE,
)


def is_refusal(text: str) -> bool:
    """By how it begins. A sign that says “Sorry, we are closed” is a caption."""
    return _REFUSAL.match(text) is not None


_SENTENCE_END = re.compile(r"[.!?…。！？][\"'”’»)]*(?=\s|$)|[。！？]")


def whole_sentences(text: str) -> str:
    """The text up to the end of its last whole sentence; empty where there is none."""
    ends = [found.end() for found in _SENTENCE_END.finditer(text)]
    return text[: ends[-1]] if ends else ""
