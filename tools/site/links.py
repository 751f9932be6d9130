"""Check the built pages: links inside the site lead somewhere, and nothing is loaded from elsewhere."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

_LOADS = {
    "script": "src",
    "img": "src",
    "link": "href",
    "iframe": "src",
    "source": "src",
    "video": "src",
    "object": "data",
}
"""Tags that load something by themselves, and the attribute that says what."""
_REMOTE = re.compile(r"""(?:@import\s+|url\()\s*["']?(?:https?:)?//""")


class _Page(HTMLParser):
    """The headings of a page, where its links lead, and what it loads."""

    def __init__(self) -> None:
        super().__init__()
        self.places: set[str] = set()
        self.links: list[str] = []
        self.loads: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attrs}
        self.places |= {found[name] for name in ("id", "name") if name in found}
        if tag == "a" and "href" in found:
            self.links.append(found["href"])
        if (
            tag in _LOADS
            and (target := found.get(_LOADS[tag]))
            and found.get("rel") not in ("canonical", "prev", "next")
        ):
            self.loads.append(target)


def problems(folder: Path) -> list[str]:
    """Return what is wrong with the pages in a folder, each with its page."""
    pages = {path.resolve(): _read(path) for path in sorted(folder.rglob("*.html"))}
    found = []
    for path, page in pages.items():
        name = path.relative_to(folder.resolve())
        own = _is_of_sphinx(path)
        for target in page.loads:
            if urlsplit(target).scheme in ("http", "https") or target.startswith("//"):
                found.append(f"{name}: loads {target}")
            elif own and urlsplit(target).path and not urlsplit(target).scheme and not _there(path, target).is_file():
                found.append(f"{name}: loads {target}, which is missing")
        found += [f"{name}: {problem}" for target in page.links if own and (problem := _broken(path, target, pages))]
    for style in sorted(folder.rglob("*.css")):
        if _REMOTE.search(style.read_text(encoding="utf-8")):
            found.append(f"{style.relative_to(folder)}: loads from elsewhere")
    return found


def _read(path: Path) -> _Page:
    page = _Page()
    page.feed(path.read_text(encoding="utf-8"))
    return page


def _is_of_sphinx(path: Path) -> bool:
    """Reports of studies are pages by themselves, whose links are checked by the tests of reports."""
    return path.name != "report.html"


def _there(path: Path, target: str) -> Path:
    return (path.parent / unquote(urlsplit(target).path)).resolve()


def _broken(path: Path, target: str, pages: dict[Path, _Page]) -> str | None:
    parts = urlsplit(target)
    if parts.scheme or parts.netloc:
        return None
    there = _there(path, target) if parts.path else path
    if not there.exists():
        return f"the link {target} leads nowhere"
    if there in pages and parts.fragment and unquote(parts.fragment) not in pages[there].places:
        return f"the link {target} leads to no heading of its page"
    return None
