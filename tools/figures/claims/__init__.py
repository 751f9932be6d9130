"""Claims of the pages, with values from data: one function for each page that reports results."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from tools.figures.claims import docs, judge, readme, studies
from tools.figures.pages import Claim

PAGES: dict[str, Callable[[], Iterable[Claim]]] = {**readme.PAGES, **docs.PAGES, **judge.PAGES, **studies.PAGES}


def of(page: str) -> list[Claim]:
    return list(PAGES[page]()) if page in PAGES else []
