"""Read images from an existing page, for a new page that is written after the runs were deleted."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterator
from html.parser import HTMLParser

from tintype.study.report import copies
from tintype.study.results import StudyResults

_URI = "data:image/png;base64,"
_EARLY_URI = "data:image/webp;base64,"


def images_of(page: str, results: StudyResults) -> dict[str, bytes]:
    """Return the samples on a page, by their paths in the results.

    A sample is identified by its arm and prompt, and a picked image by its number. With several resolutions, the page
    has such an image once per resolution, in the order of the resolutions.
    """
    shown = _Images()
    shown.feed(page)
    found: dict[str, bytes] = {}
    for number, one in enumerate(results.picked, 1):
        if images := shown.by_title.get(f"picked by hand {number}", []):
            found[one.image] = images[0][0]
    for pair in copies.pairs(results):
        if images := shown.by_title.get(pair.title, []):
            found[pair.pair.image] = images[0][0]
    for index, view in enumerate(results.by_resolution()):
        for names, paths, earlier in _strips(view):
            for number, (prompt, path) in enumerate(zip(view.resolution.prompts, paths, strict=False), 1):
                titles = [title for name in names for title in (f"{name}, prompt {number}", f"{name}: {prompt}")]
                images = next((shown.by_title[title] for title in titles if title in shown.by_title), [])
                if index < len(images):
                    found[path], early = images[index]
                    found |= {where: early[step] for step, where in earlier.get(number, {}).items() if step in early}
    return found


def _strips(view: StudyResults) -> Iterator[tuple[list[str], list[str], dict[int, dict[str, str]]]]:
    """Yield (names on the page, paths, paths at earlier steps) for each arm's samples, and for the real images.

    Paths at earlier steps are keyed by prompt number and step. Pages of earlier versions use the name "real".
    """
    for arm in view.arms:
        run = arm.sampled_run
        earlier: dict[int, dict[str, str]] = {}
        for one in run.along[:-1] if run else ():
            for number, path in enumerate(one.previews, 1):
                earlier.setdefault(number, {})[str(one.step)] = path
        yield [arm.name], run.previews if run else [], earlier
    yield ["real image", "real"], view.resolution.real_previews, {}


class _Images(HTMLParser):
    """The images of a page by their alternative texts, in the page's order."""

    def __init__(self) -> None:
        super().__init__()
        self.by_title: dict[str, list[tuple[bytes, dict[str, bytes]]]] = {}
        """Pairs (image, the same sample at earlier steps), by the image's alternative text."""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Store an image that is embedded in the page; skip the image if it cannot be decoded."""
        given = dict(attrs)
        title, source = given.get("alt") or "", given.get("src") or ""
        if tag == "img" and source.startswith(_URI):
            try:
                content = base64.b64decode(source.removeprefix(_URI), validate=True)
                early = {step: _early(uri) for step, uri in json.loads(given.get("data-at") or "{}").items()}
            except (binascii.Error, ValueError, AttributeError):
                return
            self.by_title.setdefault(title, []).append((content, early))


def _early(uri: str) -> bytes:
    return base64.b64decode(uri.removeprefix(_EARLY_URI), validate=True)
