"""Stage the pages of the site: copy docs and studies, rewrite links that leave them, write the generated pages."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path, PurePosixPath

from tools.site import reference, results

PAGES, FILES = "source", "files"
"""Folders of the staged pages, and of files that the site copies unchanged."""
_CODE = re.compile(r"^```.*?^```$|`[^`\n]+`", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(?<!!)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")
_LANGUAGES = {
    ".py": "python",
    ".yaml": "yaml",
    ".yml": "yaml",
    ".toml": "toml",
    ".json": "json",
    ".md": "markdown",
    ".sh": "sh",
}
_ANCHOR = re.compile(r'^<a id="([\w-]+)"></a>', re.MULTILINE)
_IMAGES = (".png", ".svg", ".jpg", ".webp")
_LARGEST_CODE = 200_000
_PROJECT = ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "AGENTS.md")
"""Pages at the root of the repository that are also on the site, if they exist."""


class Stage:
    """Copies pages from the repository to `out`, and records the targets of their links."""

    def __init__(self, root: Path, out: Path) -> None:
        self.root, self.pages, self.files = root.resolve(), out / PAGES, out / FILES
        self._shown: set[str] = set()
        """Files and folders of the repository that got a page because a page links to them."""

    def write(self) -> None:
        for folder in (self.pages, self.files):
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
        for path in sorted((self.root / "docs").rglob("*")):
            name = path.relative_to(self.root).as_posix()
            if path.suffix == ".md":
                self._page(name, name.removeprefix("docs/"))
            elif path.suffix in _IMAGES:
                self._copy(path, self.pages / name.removeprefix("docs/"))
        for name in _PROJECT:
            if (self.root / name).is_file():
                self._page(name, _project_page(name))
        self._page("studies/README.md", "results/studies.md")
        for folder in results.studies(self.root):
            self._page(f"studies/{folder.name}/README.md", f"results/{folder.name}/index.md")
            self._static(f"studies/{folder.name}/report.html")
        made = {**reference.pages(), "results/index.md": "\n".join(results.page(self.root))}
        for name, text in made.items():
            self._write(name, text)
        self._leave_out_missing(self.pages / "index.md")

    def _leave_out_missing(self, index: Path) -> None:
        """Leave patterns without pages out of the navigation, and sections without any page."""
        text = index.read_text(encoding="utf-8")
        lines = [line for line in text.splitlines() if "*" not in line or self._is_no_pattern_or_matches(line)]
        kept = re.sub(r"```\{toctree\}\n(?::[^\n]*\n)*\n*```\n", "", "\n".join(lines) + "\n")
        index.write_text(kept, encoding="utf-8")

    def _is_no_pattern_or_matches(self, line: str) -> bool:
        pattern = re.fullmatch(r"[\w/-]+\*", line)
        return pattern is None or any(self.pages.glob(f"{pattern[0]}.md"))

    def _page(self, name: str, staged: str) -> None:
        """Copy one page, with its links rewritten for the site."""
        text = _ANCHOR.sub(r"(\1)=\n", (self.root / name).read_text(encoding="utf-8"))
        self._write(
            staged, outside_code(text, lambda part: _LINK.sub(lambda link: self._link(link, name, staged), part))
        )

    def _write(self, name: str, text: str) -> None:
        path = self.pages / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

    def _link(self, link: re.Match[str], name: str, staged: str) -> str:
        """Return a link of the page `name` as it must be in `staged`."""
        words, (target, _, heading) = link[1], link[2].partition("#")
        if not target or ":" in target:
            return link[0]
        path = os.path.normpath(PurePosixPath(name).parent / target)
        there = self._page_of(path)
        if there is not None:
            place = os.path.relpath(there, PurePosixPath(staged).parent)
            kept = f"#{heading}" if heading and not there.startswith("code/") else ""
            return f"[{words}]({place}{kept})"
        if (self.root / path).is_file():
            place = os.path.relpath(self._static(path), PurePosixPath(staged).parent)
            return f'<a href="{place}">{words}</a>'
        return link[0]  # Sphinx says that it leads nowhere

    def _page_of(self, path: str) -> str | None:
        """Return the staged page of a file or folder of the repository; None for a file that is copied unchanged."""
        if path == "README.md":
            return "index.md"
        if path in _PROJECT:
            return _project_page(path)
        if path == "studies/README.md":
            return "results/studies.md"
        study = re.fullmatch(r"studies/([^/]+)(?:/README\.md)?", path)
        if study and (self.root / "studies" / study[1] / "README.md").is_file():
            return f"results/{study[1]}/index.md"
        if path.startswith("docs/") and path.endswith(".md"):
            return path.removeprefix("docs/")
        place = self.root / path
        if place.is_file() and (path.startswith(("docs/", "studies/")) or not _is_text(place)):
            return None
        if not place.exists():
            return None
        return self._code_page(path)

    def _code_page(self, path: str) -> str:
        """Write a page that shows a file, or the files of a folder, and return its name."""
        staged = f"code/{path}.md"
        if path not in self._shown:
            self._shown.add(path)
            place = self.root / path
            inside = sorted(one for one in place.rglob("*") if _is_text(one)) if place.is_dir() else [place]
            parts = [f"---\norphan: true\n---\n\n# {path}\n"]
            for file in inside:
                name = file.relative_to(self.root).as_posix()
                parts.append(f"## {name}\n" if place.is_dir() else "")
                parts.append(f"````{_LANGUAGES.get(file.suffix, 'text')}\n{file.read_text(encoding='utf-8')}\n````\n")
            self._write(staged, "\n".join(parts))
        return staged

    def _static(self, path: str) -> str:
        """Copy a file that is not a page, and return its place on the site. For a report, that is the page."""
        if path.endswith("/report.md"):
            path = path.removesuffix(".md") + ".html"
        place = re.sub(r"^docs/", "", re.sub(r"^studies/", "results/", path))
        if (self.root / path).is_file():
            self._copy(self.root / path, self.files / place)
        return place

    def _copy(self, source: Path, target: Path) -> None:
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)


def outside_code(text: str, change: Callable[[str], str]) -> str:
    """Return the text with a change made to everything but blocks of code and code within sentences.

    Code in the text of a link is part of the link.
    """
    hidden: list[str] = []

    def hide(match: re.Match[str]) -> str:
        hidden.append(match[0])
        return f"\0{len(hidden) - 1}\0"

    changed = change(_CODE.sub(hide, text))
    return re.sub("\0(\\d+)\0", lambda match: hidden[int(match[1])], changed)


def _project_page(name: str) -> str:
    return f"project/{name.lower()}"


def _is_text(path: Path) -> bool:
    return path.is_file() and path.suffix in _LANGUAGES and path.stat().st_size <= _LARGEST_CODE
