"""Parts of charts, such as escaped SVG tags, scales, ticks, and labels that do not overlap."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, TypeAlias

from markupsafe import Markup, escape

if TYPE_CHECKING:  # importing it loads torch, which pages do not need
    from tintype.seams import Range

Point: TypeAlias = tuple[float, float]
CHARACTER_PX = 6.3
"""Estimated width of a character in a chart. The actual width depends on the reader's font."""


def tag(name: str, *children: str, **attributes: str | float | None) -> Markup:
    """Return an SVG element; children that are not Markup are escaped.

    The argument `class_` is the attribute class, and `text_anchor` is text-anchor.
    """
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{_value(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    return Markup(f"<{name}{written}>{join(children)}</{name}>")


def join(parts: Iterable[str]) -> Markup:
    return Markup("".join(escape(part) for part in parts))


def _value(value: str | float) -> str:
    """Return an escaped attribute value as a plain string, for speed: charts have thousands of elements."""
    return escape(value) if isinstance(value, str) else f"{value:.1f}".removesuffix(".0")


def drawing(width: float, height: float, description: str, parts: Iterable[str], **attributes: str) -> Markup:
    room = f"0 0 {width:g} {height:g}"
    return tag("svg", tag("title", description), *parts, class_="chart", viewBox=room, role="img", **attributes)


def text(x: float, y: float, words: str, *, anchor: str = "start", class_: str = "", room_px: float = 1e9) -> Markup:
    """Return a line of text, truncated to the available width. The tooltip of a truncated line has the full text."""
    most = max(3, int(min(room_px, 1e6) / CHARACTER_PX))
    shown = words if len(words) <= most else words[: most - 1].rstrip() + "…"
    tooltip = [tag("title", words)] if shown != words else []
    return tag("text", shown, *tooltip, x=x, y=y, text_anchor=anchor, class_=class_ or None)


def line(x1: float, y1: float, x2: float, y2: float, class_: str) -> Markup:
    return tag("line", x1=x1, y1=y1, x2=x2, y2=y2, class_=class_)


def circle(x: float, y: float, radius: float, class_: str) -> Markup:
    """Return a circle, in a quarter of the time that `tag` needs. Charts have a circle for each run."""
    return Markup(f'<circle cx="{_value(x)}" cy="{_value(y)}" r="{_value(radius)}" class="{class_}"></circle>')


@dataclass(frozen=True)
class Scale:
    """A map from values to coordinates. The direction of the coordinates may be reversed."""

    low: float
    high: float
    start_px: float
    end_px: float
    log: bool = False

    def __call__(self, value: float) -> float:
        low, high, at = self.low, self.high, value
        if self.log:
            low, high, at = math.log(low), math.log(high), math.log(value)
        return self.start_px + (at - low) / (high - low) * (self.end_px - self.start_px)

    def ticks(self, about: int) -> list[float]:
        return log_ticks(self.low, self.high, about) if self.log else linear_ticks(self.low, self.high, about)


def padded(values: Iterable[float], share: float = 0.06, possible: Range = (None, None)) -> tuple[float, float]:
    """Return the range of the values, never empty, with margins that end at the `possible` bounds."""
    finite = [value for value in values if math.isfinite(value)] or [0.0, 1.0]
    low, high = min(finite), max(finite)
    air = (high - low) * share or abs(low) * share or 1.0
    least, most = possible
    start = low - air if least is None else min(low, max(low - air, least))
    end = high + air if most is None else max(high, min(high + air, most))
    return (start, end) if end > start else (low - air, high + air)


def linear_ticks(low: float, high: float, about: int) -> list[float]:
    """Return round values within the range, with steps of 1, 2 or 5 times a power of ten."""
    rough = (high - low) / max(1, about)
    power = 10 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * (1 - 1e-9))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [index * step for index in range(first, last + 1)]


def log_ticks(low: float, high: float, about: int) -> list[float]:
    """Return powers of ten; if too few, also 3 times each power, or 2 and 5 times each, or else linear ticks."""
    exponents = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for factors in ((1,), (1, 3), (1, 2, 5)):
        ticks = [factor * 10.0**exponent for exponent in exponents for factor in factors]
        inside = [tick for tick in ticks if low <= tick <= high]
        if len(inside) >= min(about, 3):
            return inside
    return [tick for tick in linear_ticks(low, high, about) if tick > 0]


def tick_labels(ticks: Sequence[float]) -> list[str]:
    """Format ticks with enough decimals to distinguish neighbours. Thousands and millions are shortened."""
    largest = max((abs(tick) for tick in ticks), default=0)
    size, unit = next(((s, u) for s, u in ((1e6, "M"), (1e3, "k")) if largest >= 10 * s), (1.0, ""))
    return [(f"{tick / size:.6g}".replace("-", "−") + unit) if tick else "0" for tick in ticks]


def ticks_of(scale: Scale) -> list[tuple[float, str]]:
    """Return (coordinate, label) of each tick, sorted by coordinate."""
    low, high = sorted((scale.low, scale.high))
    ticks = Scale(low, high, 0, 1, scale.log).ticks(5)
    return sorted(zip(map(scale, ticks), tick_labels(ticks), strict=True))


def x_axis(scale: Scale, top: float, bottom: float) -> Iterator[Markup]:
    for at, label in apart(ticks_of(scale)):
        yield line(at, top, at, bottom, "grid")
        yield text(at, bottom + 15, label, anchor="middle", class_="tick")


def apart(labelled: Sequence[tuple[float, str]]) -> Iterator[tuple[float, str]]:
    """Yield the labels, except those that would touch the previous label."""
    end = -math.inf
    for at, label in labelled:
        half = CHARACTER_PX * max(map(len, label.split("\n"))) / 2
        if at - half >= end:
            yield at, label
            end = at + half + CHARACTER_PX


def written(points: Sequence[Point]) -> str:
    """Return points in the format of the attribute of a polyline or polygon."""
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)


def kept_apart(wanted: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Return positions near the wanted ones, in the same order, and at least `gap` apart if there is room."""
    gap = min(gap, (high - low) / max(1, len(wanted) - 1))
    order = sorted(range(len(wanted)), key=lambda index: wanted[index])
    placed = [min(max(position, low), high) for position in wanted]
    for before, after in pairwise(order):
        placed[after] = max(placed[after], placed[before] + gap)
    limit = high
    for index in reversed(order):
        placed[index] = min(placed[index], limit)
        limit = placed[index] - gap
    return placed


@dataclass(frozen=True)
class Box:
    left: float
    top: float
    right: float
    bottom: float

    def overlaps(self, other: Box) -> bool:
        across = self.left < other.right and other.left < self.right
        return across and self.top < other.bottom and other.top < self.bottom

    def within(self, other: Box) -> bool:
        across = other.left <= self.left and self.right <= other.right
        return across and other.top <= self.top and self.bottom <= other.bottom
