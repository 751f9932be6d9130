"""Turn the answer of a model into a caption, or into the reason why it is none.

The rules are few and fixed: docs/data.md lists them. An answer is not trusted: its length is
bounded before anything looks at it, and every rule takes time in proportion to the length.
"""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_left
from dataclasses import dataclass

from tintype.data.store.texts import unfit

EMPTY, REFUSAL, CUT_OFF = "empty", "refusal", "cut off"
MOST_CHARACTERS = 1 << 18
"""Most characters of an answer with its thoughts; a caption has 20,000 at most. A longer answer is not looked at."""


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
    """Clean and check an answer. `cut_off`: the limit of tokens ended it. `refused`: the server says so."""
    if answer is not None and len(answer) > MOST_CHARACTERS:
        return Judged("", f"has {len(answer):,} characters; the most of an answer is {MOST_CHARACTERS:,}")
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


_FENCE = re.compile(r"^[^\S\n]*```.*$", re.MULTILINE)
_LINE_MARK = re.compile(r"^[^\S\n]*(?:#{1,6}|[-*•>])\s+", re.MULTILINE)
_EMPHASIS = ("***", "**", "*", "__", "`")
"""Marks around words, the longer before those that they begin with."""
_MOST_LAYERS = 16
"""Openings and quotes around each other that are taken off."""
_OPENING = re.compile(
    r"\A(?:(?:sure|certainly|of course|absolutely|okay|ok|great)(?:[!,.:]|\s*[-–—])\s+(?=here\b)"
    r"|here(?:['’]s|\s+is|\s+are)\b[^:.!?]{0,80}\b(?:captions?|descriptions?)\b[^:.!?]{0,80}:\s*"
    r"|(?:(?:the|a|image|picture|photo|long|short|brief|detailed|alt)\s+){0,3}(?:caption|description)\s*:\s*)",
    re.IGNORECASE,
)
_QUOTES = {'"': '"', "'": "'", "“": "”", "‘": "’", "«": "»", "„": "“"}


def clean(answer: str) -> str:
    """Return the answer without what belongs to the conversation or to its typography."""
    text = answer.rpartition("</think>")[2]
    text = _visible(text)
    text = _FENCE.sub("", text)
    text = _LINE_MARK.sub("", text)
    text = "\n".join(_without_emphasis(line) for line in text.split("\n"))
    text = " ".join(text.split())
    for _ in range(_MOST_LAYERS):
        text = _unquoted(_OPENING.sub("", text))
    return text


def _without_emphasis(line: str) -> str:
    """Take off each pair of marks that stands around words: no space after the first, none before the second."""
    closings = {mark: _closings(line, mark) for mark in _EMPHASIS if mark in line}
    if not closings:
        return line
    kept, done = [], 0
    for found in re.finditer(r"[*_`]", line):
        first = found.start()
        if first < done:
            continue
        for mark in _EMPHASIS:
            inside = first + len(mark)
            if not line.startswith(mark, first) or line[inside : inside + 1].isspace():
                continue
            place = bisect_left(closings[mark], inside + 1)
            if place < len(closings[mark]):
                last = closings[mark][place]
                kept += [line[done:first], line[inside:last]]
                done = last + len(mark)
                break
    return "".join([*kept, line[done:]])


def _closings(line: str, mark: str) -> list[int]:
    """Return where the mark stands without a space before it."""
    places = (found.start() for found in re.finditer(f"(?={re.escape(mark)})", line))
    return [place for place in places if place and not line[place - 1].isspace()]


def _visible(text: str) -> str:
    """Remove control characters, which could steer a terminal, and half surrogates; line breaks stay."""
    return "".join(c for c in text if c in "\n\t " or unicodedata.category(c) not in ("Cc", "Cs"))


def _unquoted(text: str) -> str:
    """Remove quotes around the whole; a caption that begins with one quotation and ends with another keeps them."""
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
    """Judge by how it begins. A sign that says “Sorry, we are closed” is a caption."""
    return _REFUSAL.match(text) is not None


_SENTENCE_END = re.compile(r"[.!?…。！？][\"'”’»)]*(?=\s|$)|[。！？]")


def whole_sentences(text: str) -> str:
    """Return the text up to the end of its last whole sentence; empty where there is none."""
    ends = [found.end() for found in _SENTENCE_END.finditer(text)]
    return text[: ends[-1]] if ends else ""
