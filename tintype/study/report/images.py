"""Images of a page that was written before, for a page that is written where the runs are gone."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator
from html.parser import HTMLParser

from tintype.study.results import StudyResults

_URI = "data:image/png;base64,"


def images_of(page: str, results: StudyResults) -> dict[str, bytes]:
    """Return the samples that a page shows, by the paths that the results have for them.

    An image is known by its arm and its prompt. With several resolutions it stands once for each, in their order.
    """
    shown = _Images()
    shown.feed(page)
    found: dict[str, bytes] = {}
    for index, view in enumerate(results.by_resolution()):
        for names, paths in _strips(view):
            for number, (prompt, path) in enumerate(zip(view.prompts, paths, strict=False), 1):
                titles = [title for name in names for title in (f"{name}, prompt {number}", f"{name}: {prompt}")]
                images = next((shown.by_title[title] for title in titles if title in shown.by_title), [])
                if index < len(images):
                    found[path] = images[index]
    return found


def _strips(view: StudyResults) -> Iterator[tuple[list[str], list[str]]]:
    """Yield (names in the page, paths) of the samples of each arm, and of the real images. Older pages say "real"."""
    for arm in view.arms:
        yield [arm.name], next((run.previews for run in arm.runs if run.previews), [])
    yield ["real image", "real"], view.real_previews


class _Images(HTMLParser):
    """The images of a page by their alternative texts, in the page's order."""

    def __init__(self) -> None:
        super().__init__()
        self.by_title: dict[str, list[bytes]] = {}

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Keep an image that the page itself holds; one that cannot be decoded is left out."""
        given = dict(attrs)
        title, source = given.get("alt") or "", given.get("src") or ""
        if tag == "img" and source.startswith(_URI):
            try:
                content = base64.b64decode(source.removeprefix(_URI), validate=True)
            except binascii.Error:
                return
            self.by_title.setdefault(title, []).append(content)
