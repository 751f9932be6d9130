"""Templates of reports and pages, their shared style sheet, and images embedded in the page."""

from __future__ import annotations

import base64
import hashlib
import io
from collections.abc import Callable
from functools import cache
from importlib.resources import files

from jinja2 import Environment, FunctionLoader, StrictUndefined, Template
from markupsafe import Markup
from PIL import Image

from tintype.page import numerals
from tintype.page.marked import mark, marked
from tintype.runtime.printable import visible

_FILTERS = ("count", "duration", "fixed", "percent", "probability", "share", "significant")


@cache
def template(
    package: str, name: str, *, finalize: Callable[[object], object] | None = None, **filters: Callable[..., object]
) -> Template:
    """Return a template of a package, which escapes everything and has the filter `style` and number filters.

    Every value passes through `finalize` (by default `shown`), even tintype's own markup, which contains foreign texts.
    A template can import other templates by their paths in tintype, such as `study/report/parts.html.j2`.
    """
    environment = Environment(
        autoescape=True,
        finalize=finalize or shown,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        loader=FunctionLoader(lambda path: files("tintype").joinpath(path).read_text(encoding="utf-8")),
    )
    environment.globals["style"] = Markup((files("tintype.page") / "style.css").read_text(encoding="utf-8"))
    environment.filters.update({one: getattr(numerals, one) for one in _FILTERS}, mark=mark, marked=marked, **filters)
    return environment.from_string((files(package) / name).read_text(encoding="utf-8"))


def shown(value: object) -> object:
    """Return a value for a page. Control characters in texts are made visible, and passwords are removed."""
    if isinstance(value, Markup):
        return Markup(visible(value))
    return visible(value) if isinstance(value, str) else value


@cache
def inline_script(*places: str) -> tuple[Markup, Markup]:
    """Join scripts of the package; a content security policy with the returned hash allows only this script."""
    content = "\n".join(files("tintype").joinpath(place).read_text(encoding="utf-8") for place in places)
    digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode("ascii")
    return Markup(content), Markup(f"'sha256-{digest}'")


def image_uri(image: Image.Image, largest_px: int, form: str = "png", **options: object) -> str:
    """Return an image of at most `largest_px` as a data URI; new encoding drops other content of its file."""
    image.thumbnail((largest_px, largest_px))
    content = io.BytesIO()
    image.save(content, form, **options)
    return f"data:image/{form};base64,{base64.b64encode(content.getvalue()).decode('ascii')}"
