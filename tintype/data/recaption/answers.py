"""Turn a model's answer into a caption, or into the reason why it cannot be a caption.

docs/data.md lists the rules. An answer is untrusted. The length of an answer is checked first, and every rule takes
time linear in this length.
"""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_left
from dataclasses import dataclass

from tintype.data.store.texts import unfit

EMPTY, REFUSAL, CUT_OFF = "empty", "refusal", "cut off"
MOST_CHARACTERS = 1 << 18
"""Maximum characters of an answer, including its reasoning. A longer answer is not parsed."""


@dataclass(frozen=True)
class Judged:
    """The caption that an answer gives, or the reason why it gives none."""

    caption: str
    problem: str | None = None
    """The problem `empty`, `refusal` or `cut off`, or another reason why the text cannot be a caption."""
    cleaned: bool = False
    """Whether the clean-up removed more than white space."""
    shortened: bool = False
    """Whether the last sentence was dropped, since the token limit had truncated it."""


def judge(answer: str | None, cut_off: bool = False, refused: bool = False) -> Judged:
    """Clean and check an answer. `cut_off`: the token limit was reached. `refused`: the server reports a refusal."""
    if answer is not None and len(answer) > MOST_CHARACTERS:
        return Judged("", f"has {len(answer):,} characters; the most of an answer is {MOST_CHARACTERS:,}")
    plain = " ".join((answer or "").split())
    text = clean(answer or "")
    if refused or is_refusal(text):
        return Judged("", REFUSAL)
    unfinished = "<think>" in text  # the reasoning did not end, so there is no answer
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
"""Markdown emphasis marks. A longer mark precedes each mark that it begins with."""
_MOST_LAYERS = 16
"""Maximum number of nested openings and quotes that are removed."""
_OPENING = re.compile(
    r"\A(?:(?:sure|certainly|of course|absolutely|okay|ok|great)(?:[!,.:]|\s*[-–—])\s+(?=here\b)"
    r"|here(?:['’]s|\s+is|\s+are)\b[^:.!?]{0,80}\b(?:captions?|descriptions?)\b[^:.!?]{0,80}:\s*"
    r"|(?:(?:the|a|image|picture|photo|long|short|brief|detailed|alt)\s+){0,3}(?:caption|description)\s*:\s*)",
    re.IGNORECASE,
)
_QUOTES = {'"': '"', "'": "'", "“": "”", "‘": "’", "«": "»", "„": "“"}


def clean(answer: str) -> str:
    """Return the answer without reasoning, Markdown, quotes around it, and openings such as "Sure, here is"."""
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
    """Remove pairs of emphasis marks around words. No space follows a pair's first mark or precedes its second mark."""
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
    """Return the positions of the mark where no space precedes it."""
    places = (found.start() for found in re.finditer(f"(?={re.escape(mark)})", line))
    return [place for place in places if place and not line[place - 1].isspace()]


def _visible(text: str) -> str:
    """Remove control characters, which could control a terminal, and lone surrogates. Keep line breaks."""
    return "".join(c for c in text if c in "\n\t " or unicodedata.category(c) not in ("Cc", "Cs"))


def _unquoted(text: str) -> str:
    """Remove quotes around the whole text, but not if the text begins with one quotation and ends with another."""
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
    """Return whether the text begins like a refusal. A caption of a sign “Sorry, we are closed” is not a refusal."""
    return _REFUSAL.match(text) is not None


_SENTENCE_END = re.compile(r"[.!?…。！？][\"'”’»)]*(?=\s|$)|[。！？]")


def whole_sentences(text: str) -> str:
    """Truncate the text after its last whole sentence. Return an empty text if no sentence is whole."""
    ends = [found.end() for found in _SENTENCE_END.finditer(text)]
    return text[: ends[-1]] if ends else ""
