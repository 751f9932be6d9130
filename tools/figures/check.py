"""Check all pages, and rewrite their blocks."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path

import yaml

from tools.figures import claims
from tools.figures.pages import Page

ROOT = Path(__file__).parents[2]


def page_names(root: Path = ROOT) -> list[str]:
    """README, every page of docs, the list of studies and every study's README."""
    lists = [root / "README.md", *sorted(root.glob("docs/**/*.md")), root / "studies" / "README.md"]
    paths = [*lists, *sorted(root.glob("studies/*/README.md"))]
    return [str(path.relative_to(root)) for path in paths]


def problems(names: list[str] | None = None) -> list[str]:
    return [problem for name in names or page_names() for problem in page_problems(Page.read(ROOT, name))]


def page_problems(page: Page) -> list[str]:
    return page.problems(claims.of(page.name), stated().get(page.name, ()))


@cache
def stated() -> Mapping[str, list[str]]:
    """Fragments by page whose figures are not our results."""
    found: dict[str, list[str]] = yaml.safe_load((Path(__file__).parent / "stated.yaml").read_text(encoding="utf-8"))
    if unknown := set(found) - set(page_names()):
        raise ValueError(f"tools/figures/stated.yaml names pages that are not there: {', '.join(sorted(unknown))}")
    return found


def write() -> list[str]:
    """Rewrite the blocks of all pages; return the pages that changed."""
    changed = []
    for name in page_names():
        page = Page.read(ROOT, name)
        text = page.written(claims.of(name))
        if text != page.text:
            (ROOT / name).write_text(text, encoding="utf-8")
            changed.append(name)
    return changed
