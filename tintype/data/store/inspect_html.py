"""The page of `tintype data inspect`: one file with embedded style and images, and no script.

Captions and file names are text, never HTML: the template escapes everything.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from itertools import pairwise
from pathlib import Path

from markupsafe import Markup

from tintype.data.image_file import Encoded, open_image
from tintype.data.image_sets import map_prefetched
from tintype.data.store.attributes import Value
from tintype.data.store.inspect import Inspection
from tintype.data.store.inspect_result import Histogram, LogHistogram
from tintype.data.store.texts import shortened
from tintype.errors import as_user_error
from tintype.page import numerals, svg
from tintype.page.template import image_uri, template
from tintype.runtime.files import write_text
from tintype.wording import option

_THUMB_PX = 200
_SHOWN_GROUPS, _SHOWN_MEMBERS = 16, 6
_cut = partial(shortened, most=700)
_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 480.0, 210.0, 46.0, 8.0, 12.0, 28.0


def write_page(out: Path, inspection: Inspection) -> None:
    with as_user_error(OSError, f"cannot write {out}", f"choose another {option('out')}"):
        write_text(out, to_html(inspection))


def to_html(inspection: Inspection) -> str:
    store, result, groups = inspection.store, inspection.result, inspection.groups[:_SHOWN_GROUPS]
    samples = {sample["row"] for sample in result["samples"]}
    wanted = sorted(samples.union(row for group in groups for row in group.rows[:_SHOWN_MEMBERS]))
    uris = map_prefetched(lambda row: _uri(store.encoded(row)), wanted, store.pixels)
    page = template("tintype.data.store", "inspect.html.j2", code=_code, whole="{:,.0f}".format, said=_said, cut=_cut)
    return page.render(
        result=result,
        name=Path(result["store"]).resolve().name,
        groups=groups,
        shown_members=_SHOWN_MEMBERS,
        thumbs=dict(zip(wanted, uris, strict=True)),
        about_row=store.about_row,
        bars=bars,
        aspect_bars=aspect_bars,
    )


def _code(text: str) -> Markup:
    return Markup("").join(
        Markup("<code>{}</code>" if at % 2 else "{}").format(p) for at, p in enumerate(text.split("`"))
    )


def _said(value: Value) -> str:
    if value is None:
        return "missing"
    if isinstance(value, bool):
        return "true" if value else "false"
    return value if isinstance(value, str) else f"{value:,}" if isinstance(value, int) else f"{value:.6g}"


def _uri(one: Encoded) -> str:
    """Return a thumbnail encoded from pixels, so that no other content of a file gets into the page."""
    with open_image(one.content, one.name) as image:
        image.draft("RGB", (_THUMB_PX, _THUMB_PX))
        small = image.convert("RGB")
    return image_uri(small, _THUMB_PX, "jpeg", quality=82)


def bars(histogram: Histogram, description: str) -> Markup:
    """Draw bars between the edges. The last bar's label says if it also holds all larger values."""
    edges, counts = histogram["edges"], histogram["counts"]
    across = svg.Scale(edges[0], edges[-1], _LEFT, _WIDTH - _RIGHT)
    whole, step = isinstance(edges[0], int), edges[1] - edges[0]
    labels = []
    for low, high in pairwise(edges):
        several = f"{_said(low)} to {_said(high - 1 if whole else high)}" if step > 1 or not whole else f"{low:,}"
        labels.append(f"{_said(low)} and more" if histogram["open"] and high == edges[-1] else several)
    places = [(across(low), across(high)) for low, high in pairwise(edges)]
    every = -(-len(counts) // 8)
    ticks = [
        ((left + right) / 2 if whole and step == 1 else left, _said(edge) + ("+" if label.endswith("more") else ""))
        for index, ((left, right), edge, label) in enumerate(zip(places, edges, labels, strict=False))
        if index % every == 0 or (label.endswith("more") and len(counts) - 1 - (index // every) * every >= every)
    ]
    return _drawn(counts, places, labels, ticks, description)


def aspect_bars(histogram: LogHistogram) -> Markup:
    middles, counts = histogram["log2_middles"], histogram["counts"]
    step = middles[1] - middles[0]
    across = svg.Scale(middles[0] - step / 2, middles[-1] + step / 2, _LEFT, _WIDTH - _RIGHT)
    places = [(across(middle - step / 2), across(middle + step / 2)) for middle in middles]
    labels = [f"about {_ratio(middle)}" for middle in middles]
    ticks = [(across(middle), _ratio(middle)) for middle in middles if middle == int(middle)]
    return _drawn(counts, places, labels, ticks, "images by width over height")


def _ratio(log2: float) -> str:
    return f"{numerals.significant(2.0**log2, 2)}:1" if log2 >= 0 else f"1:{numerals.significant(2.0**-log2, 2)}"


def _drawn(
    counts: list[int],
    places: list[tuple[float, float]],
    labels: list[str],
    ticks: Iterable[tuple[float, str]],
    description: str,
) -> Markup:
    up = svg.Scale(0, max(max(counts), 1) * 1.04, _HEIGHT - _BOTTOM, _TOP)
    heights = [tick for tick in up.ticks(4) if tick == int(tick)]
    parts = []
    for tick, words in zip(heights, svg.tick_labels(heights), strict=True):
        parts.append(svg.line(_LEFT, up(tick), _WIDTH - _RIGHT, up(tick), "zero" if tick == 0 else "grid"))
        parts.append(svg.text(_LEFT - 6, up(tick) + 4, words, anchor="end", class_="tick"))
    for count, (left, right), label in zip(counts, places, labels, strict=True):
        title = svg.tag("title", f"{label}: {count:,}")
        if count:
            top, wide = min(up(count), up(0) - 1), min(right - left, 90.0)
            box = {"x": (left + right - wide) / 2, "y": top, "width": wide, "height": up(0) - top}
            parts.append(svg.tag("g", svg.tag("rect", title, class_="segment", **box), class_="arm-0"))
    parts += [svg.text(x, _HEIGHT - 9, words, anchor="middle", class_="tick") for x, words in ticks]
    return svg.drawing(_WIDTH, _HEIGHT, description, parts)
