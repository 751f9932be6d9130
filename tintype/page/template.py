"""Templates of reports and pages, with the style sheet that they share, and images inside the page."""

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
    """Return a template of a package. It escapes everything, has `style`, and filters for numbers beside its own.

    Every value passes through `finalize`, by default `shown`: also our own markup, which has texts from outside in it.
    It may import others by their paths in tintype, as `study/report/parts.html.j2`.
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
    """Return a value of a page with the control characters of its text written out, and without passwords."""
    if isinstance(value, Markup):
        return Markup(visible(value))
    return visible(value) if isinstance(value, str) else value


@cache
def inline_script(*places: str) -> tuple[Markup, Markup]:
    """Return scripts of the package joined into one, and the hash by which a content policy allows only this script."""
    content = "\n".join(files("tintype").joinpath(place).read_text(encoding="utf-8") for place in places)
    digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode("ascii")
    return Markup(content), Markup(f"'sha256-{digest}'")


def image_uri(image: Image.Image, largest_px: int, form: str = "png", **options: object) -> str:
    """Shrink an image where it is larger, and return it as a data URI.

    It is encoded from its pixels, so nothing else that its file may hold gets into the page.
    """
    image.thumbnail((largest_px, largest_px))
    content = io.BytesIO()
    image.save(content, form, **options)
    return f"data:image/{form};base64,{base64.b64encode(content.getvalue()).decode('ascii')}"
