"""Find figures and verdict words in a page, and what covers them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

Span = tuple[int, int]

NUMERAL = re.compile(r"(?<![\w.])(?<![A-Za-z]-)\d(?:[\d.,]*\d)?(?:e[-+−]?\d+)?")
"""A number that is not part of a name: `bf16`, `T5` and `SHA-256` contain none."""
NAMES = re.compile(r"arXiv[: ]\d{4}\.\d{5}|FLUX\.\d|\d{4}-\d{2}-\d{2}|^ *\d+\. ", re.MULTILINE)
"""Numbers of papers, of versions in names, of dates, and of the items of a list."""
VERDICT_WORD = re.compile(
    r"\b(better|best|worse|worst|behind|ahead|beats?|helps?|helped|hurts?|harm\w*|ruin\w*|hal(?:f|ves|ved)|doubles?|costs?"
    r"|gains?|gained|loses?|lost|lower\w*|higher|smaller|larger|faster|slower|raise[sd]?|rises?|improve[sd]?|falls?|fell"
    r"|thirds?|quarters?|fifths?|tenths?|twice|times|nothing|undecided|unstable)\b",
    re.IGNORECASE,
)
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_COMMENT = re.compile(r"(?:^|(?<=\s))#\s.*$", re.MULTILINE)
_CODE = re.compile(r"`[^`\n]+`")
_LINK = re.compile(r"\]\([^)\s]*\)|https?://\S+")
_HIDDEN = re.compile(r"<!--.*?-->", re.DOTALL)
_MARKER = "<!-- made by tools/figures: {name} -->"
_ANY_MARKER = re.compile(_MARKER.format(name=r"(\S+)"))
FINDINGS = "docs/findings.md"
RESULTS_SECTION = re.compile(r"^## What it finds$.*?(?=^## )", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Quote:
    """A fragment that the page must have exactly once; line breaks in it do not matter."""

    text: str
    holds: bool = True
    """Whether the data say so."""


@dataclass(frozen=True)
class Block:
    """Lines made from data that follow the marker of this name, up to an empty line."""

    name: str
    lines: Sequence[str]

    @property
    def marker(self) -> str:
        return _MARKER.format(name=self.name)


Claim = Quote | Block


@dataclass(frozen=True)
class Page:
    name: str
    """Path from the root of the repository."""
    text: str

    @classmethod
    def read(cls, root: Path, name: str) -> Page:
        return cls(name, (root / name).read_text(encoding="utf-8"))

    def problems(self, claims: Iterable[Claim], stated: Iterable[str]) -> list[str]:
        """Return the problems of the page, each with its line."""
        claims = list(claims)
        found: list[str] = []
        covered: list[Span] = []
        for claim in [*claims, *map(Quote, stated)]:
            spans = self._spans(claim)
            covered += spans
            what = f"{self.name}: “{_shortened(claim)}”"
            if isinstance(claim, Quote) and not claim.holds:
                found.append(f"{what}: the data do not say this; rewrite the sentence")
            elif len(spans) != 1:
                count = "is missing" if not spans else f"stands {len(spans)} times"
                found.append(f"{what} {count}; the text must have it once")
        known = {claim.name for claim in claims if isinstance(claim, Block)}
        for marker in _ANY_MARKER.finditer(self.text):
            if marker[1] not in known and self._block_at(marker.end())[1].strip():
                found.append(f"{self._place(marker.start())}: no data makes the block '{marker[1]}'; remove its lines")
        return found + [
            f"{self._place(start)}: “{self.text[start:end]}” is not bound to data: … {self._around(start, end)} …"
            for start, end in self._to_cover()
            if not any(low <= start and end <= high for low, high in covered)
        ]

    def written(self, claims: Iterable[Claim]) -> str:
        """Return the text with every block as the data make it."""
        page = self
        for claim in claims:
            if isinstance(claim, Block) and claim.marker in page.text:
                at = page.text.index(claim.marker) + len(claim.marker)
                (_, end), _ = page._block_at(at)
                body = "\n".join(claim.lines)
                page = Page(page.name, f"{page.text[:at]}\n{body}{page.text[end:]}")
        return page.text

    def _spans(self, claim: Claim) -> list[Span]:
        if isinstance(claim, Quote):
            return [match.span() for match in _pattern(claim.text).finditer(self.text)]
        ends = [at.end() for at in re.finditer(re.escape(claim.marker), self.text)]
        blocks = [self._block_at(end) for end in ends]
        return [span for span, text in blocks if text.strip() == "\n".join(claim.lines).strip()]

    def _block_at(self, at: int) -> tuple[Span, str]:
        """Return the place and text of the block after a marker, up to an empty line."""
        end = self.text.find("\n\n", at)
        end = len(self.text.rstrip()) if end < 0 else end
        return (at, end), self.text[at:end]

    def _to_cover(self) -> Iterator[Span]:
        readable = self._readable()
        yield from (match.span() for match in NUMERAL.finditer(readable))
        for low, high in self._results():
            yield from (match.span() for match in VERDICT_WORD.finditer(readable, low, high))

    def _results(self) -> Iterator[Span]:
        """The parts of the page with results: all of a study's README and of the findings, one section of README.md."""
        if self.name.startswith("studies/") or self.name == FINDINGS:
            yield 0, len(self.text)
        elif section := RESULTS_SECTION.search(self.text):
            yield section.span()

    def _readable(self) -> str:
        """Return the text with all parts without claims blanked out; positions stay.

        In a fenced block with a language only the comments are read, in one without a language everything. Code within
        a sentence is read if it is only a number.
        """
        text = self.text

        def blank(match: re.Match[str]) -> str:
            return " " * len(match[0])

        def fence(match: re.Match[str]) -> str:
            if not match[1]:
                return match[0]
            kept = [" "] * len(match[0])
            for comment in _COMMENT.finditer(match[0]):
                kept[comment.start() : comment.end()] = comment[0]
            return "".join(kept)

        def code(match: re.Match[str]) -> str:
            return match[0] if re.fullmatch(r"`[+−-]?[\d.,]+(e-?\d+)?[ %×]*`", match[0]) else blank(match)

        text = _FENCE.sub(fence, text)
        text = _HIDDEN.sub(blank, text)
        text = _CODE.sub(code, text)
        text = _LINK.sub(blank, text)
        return NAMES.sub(blank, text)

    def _place(self, at: int) -> str:
        return f"{self.name}:{self.text.count(chr(10), 0, at) + 1}"

    def _around(self, start: int, end: int) -> str:
        return " ".join(self.text[max(0, start - 30) : end + 30].split())


def _pattern(text: str) -> re.Pattern[str]:
    """Match the fragment across line breaks, and not inside a longer number."""
    body = r"\s+".join(re.escape(word) for word in text.split())
    before = r"(?<![\w.,+−±-])" if text[0].isdigit() else ""
    after = r"(?!\d|[.,]\d|e[-+−]?\d|%)" if text[-1].isdigit() else ""
    return re.compile(before + body + after)


def _shortened(claim: Claim) -> str:
    return claim.name if isinstance(claim, Block) else " ".join(claim.text.split())
