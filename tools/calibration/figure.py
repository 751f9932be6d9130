"""The figure of a calibration: results of simulated studies beside the nominal values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from tintype.page.svg import Scale, circle, line, tag, text

_STYLE = """
text { font: 12px system-ui, "Segoe UI", Roboto, "Liberation Sans", sans-serif; fill: #1c1e21; }
.quiet, .tick { fill: #5b6067; } .head { font-weight: 650; font-size: 14px; } .group { font-weight: 600; }
.grid { stroke: #e9e7e1; } .goal { stroke: #1c1e21; stroke-dasharray: 4 3; } .allowed { fill: #e9e7e1; }
.k0 { fill: #00706f; } .k1 { fill: #fbfaf7; stroke: #b8430f; stroke-width: 1.8; }
"""
_WIDTH, _LEFT, _RIGHT = 760, 210, 730
_ROW_PX, _HEAD_PX, _FOOT_PX = 17, 62, 44


@dataclass(frozen=True)
class _Row:
    name: str
    group: str
    values: Sequence[float]
    """One colour for each kind of mark."""


@dataclass(frozen=True)
class _Panel:
    title: str
    axis: str
    kinds: Sequence[str]
    rows: Sequence[_Row]
    low: float
    high: float
    step: float
    goal: float
    allowed: tuple[float, float]
    """The band in which a correct share would be observed."""

    @property
    def height(self) -> float:
        return _HEAD_PX + _ROW_PX * (len(self.rows) + len({row.group for row in self.rows})) + _FOOT_PX


def draw(found: Mapping[str, Any]) -> str:
    """A whole SVG file on a light background."""
    panels = [_false_verdicts(found), _power(found)]
    parts: list[Markup] = []
    top = 0.0
    for panel in panels:
        parts += _panel(panel, top)
        top += panel.height
    described = tag("title", "Calibration: false verdicts and power in simulated studies")
    background = tag("rect", x=0, y=0, width=_WIDTH, height=top, fill="#fbfaf7")
    return tag(
        "svg",
        described,
        tag("style", Markup(_STYLE)),
        background,
        *parts,
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {_WIDTH} {top:g}",
        width=_WIDTH,
        height=top,
        role="img",
    )


def _false_verdicts(found: Mapping[str, Any]) -> _Panel:
    rows = [
        _Row(f"{one['seeds']} seeds", one["shape"], (100 * one["either"], 100 * one["primary"]))
        for one in found["false_verdicts"]
        if one["pairing"] == 0.4
    ]
    return _Panel(
        f"False verdicts where nothing was changed ({found['studies']:,} studies each)",
        "share of studies with any false verdict, % (grey: 5% and three standard errors)",
        ("whole study", "primary metrics"),
        rows,
        0,
        20,
        5,
        5,
        (0, 5 + 100 * found["tolerance"]["0.05"]),
    )


def _power(found: Mapping[str, Any]) -> _Panel:
    reach = 100 * found["tolerance"]["0.8"]
    rows = [
        _Row(f"{one['seeds']} seeds, pairing {one['pairing']:g}", one["shape"], (100 * one["found"],))
        for one in found["power"]
    ]
    title = "Planted changes of the size that the study states as smallest detectable"
    return _Panel(
        title,
        "share found, % (grey: 80% and three standard errors)",
        ("found",),
        rows,
        60,
        100,
        10,
        80,
        (80 - reach, 80 + reach),
    )


def _panel(panel: _Panel, top: float) -> Iterator[Markup]:
    x = Scale(panel.low, panel.high, _LEFT, _RIGHT)
    first, bottom = top + _HEAD_PX, top + panel.height - _FOOT_PX
    yield text(12, top + 24, panel.title, class_="head")
    yield from _legend(panel.kinds, top + 44)
    low, high = x(max(panel.allowed[0], panel.low)), x(panel.allowed[1])
    yield tag("rect", x=low, y=first, width=high - low, height=bottom - first, class_="allowed")
    for index in range(round((panel.high - panel.low) / panel.step) + 1):
        at = panel.low + index * panel.step
        yield line(x(at), first, x(at), bottom, "grid")
        yield text(x(at), bottom + 15, f"{at:g}", anchor="middle", class_="tick")
    yield line(x(panel.goal), first - 4, x(panel.goal), bottom, "goal")
    yield text(_RIGHT, bottom + 31, panel.axis, anchor="end", class_="quiet")
    yield from _rows(panel, x, first)


def _legend(kinds: Sequence[str], y: float) -> Iterator[Markup]:
    at = float(_LEFT)
    for index, kind in enumerate(kinds):
        yield _mark(at, y - 4, index)
        yield text(at + 10, y, kind, class_="quiet")
        at += 30 + 6.2 * len(kind)


def _rows(panel: _Panel, x: Scale, top: float) -> Iterator[Markup]:
    y, group = top, ""
    for row in panel.rows:
        if row.group != group:
            group, y = row.group, y + _ROW_PX
            yield text(12, y - 3, group, class_="group")
        y += _ROW_PX
        yield text(_LEFT - 12, y - 4, row.name, anchor="end", class_="quiet")
        for index, value in enumerate(row.values):
            mark = _mark(x(min(max(value, panel.low), panel.high)), y - 8, index)
            yield tag("g", tag("title", f"{panel.kinds[index]}: {value:.1f}%"), mark)


def _mark(x: float, y: float, kind: int) -> Markup:
    """Draw a disc or a ring, so that the figure does not depend on colour."""
    return circle(x, y, 4.5, f"k{kind}")
