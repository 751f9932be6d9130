"""Forest plots as SVG: each arm is a row with its interval, runs and detectable effect. Better is on the right.

Information is never shown by colour alone, since a word, a shape or a label repeats it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from markupsafe import Markup

from tintype.page.svg import CHARACTER_PX, Scale, circle, drawing, line, padded, tag, text, written, x_axis

if TYPE_CHECKING:  # importing it loads torch, which pages do not need
    from tintype.seams import Range

_PANEL_PX = 360
_TIP_PX = 6.0
"""Length of the tip that shows that a band or an interval continues beyond the axis."""


class Measured(Protocol):
    """The properties of a metric that a forest plot needs."""

    @property
    def label(self) -> str: ...
    @property
    def direction(self) -> str: ...
    @property
    def range(self) -> Range: ...


@dataclass(frozen=True)
class Effect:
    """The comparison of one arm with the baseline on one metric. The comparison is the content of one row."""

    difference: float
    """The arm's mean minus the baseline's mean."""
    low: float | None
    high: float | None
    detectable: float | None
    verdict: str
    baseline_mean: float
    runs: Sequence[float]
    """Each run's value minus the baseline's mean."""
    collapsed: Sequence[float] = ()
    """Each collapsed run's value minus the baseline's mean. The difference does not include these runs."""
    words: str = ""
    """The difference with its interval as text."""


def effect_scale(metric: Measured, effects: Collection[Effect]) -> Scale:
    """Return one scale for all effects on a metric. Better values are on the right.

    The scale covers means and seeds. Intervals extend each side by at most the same length, if the metric allows.
    """
    shown = [value for one in effects for value in (one.difference, *one.runs, *one.collapsed)]
    data = [value for value in shown if math.isfinite(value)]
    low, high = min([0.0, *data]), max([0.0, *data])
    room = high - low or math.inf
    ends = [end for one in effects for end in (*_interval_ends(one), *_band(one)) if math.isfinite(end)]
    means, (least, most) = [one.baseline_mean for one in effects], metric.range
    start = max(low - room, min(ends, default=low), -math.inf if least is None else least - max(means))
    stop = min(high + room, max(ends, default=high), math.inf if most is None else most - min(means))
    low, high = padded([min(low, start), max(high, stop)])
    return Scale(*((high, low) if metric.direction == "lower" else (low, high)), 8, _PANEL_PX - 8)


def _interval_ends(effect: Effect) -> list[float]:
    return [] if effect.low is None or effect.high is None else [effect.low, effect.high]


def _band(effect: Effect) -> tuple[float, ...]:
    """Return the range of differences that are too small to be detected; empty if it is unknown."""
    return () if effect.detectable is None else (-effect.detectable, effect.detectable)


def forest(metric: Measured, effects: Mapping[str, Effect]) -> Markup:
    """Draw differences with intervals, one row per arm. Draw the band of undetectable differences behind them."""
    row_px, top = 44, 22
    bottom = top + row_px * len(effects)
    scale = effect_scale(metric, effects.values())
    parts = [
        text(_PANEL_PX - 8, 11, "better →", anchor="end", class_="quiet"),
        text(8, 11, "← worse", class_="quiet"),
        *x_axis(scale, top, bottom),
        line(scale(0), top, scale(0), bottom, "zero"),
        *(_forest_row(*named, scale, top + row_px * index) for index, named in enumerate(effects.items())),
    ]
    return drawing(_PANEL_PX, bottom + 20, f"{metric.label}: differences from the baseline", parts)


def _forest_row(name: str, effect: Effect, scale: Scale, top: float) -> Markup:
    y = top + 30
    marks = [
        text(8, top + 14, name, class_="name", room_px=_PANEL_PX - 24 - CHARACTER_PX * len(effect.words)),
        text(_PANEL_PX - 8, top + 14, effect.words, anchor="end", class_="value halo"),
    ]
    if band := _band(effect):
        marks.append(_band_mark(band, scale, y))
    if ends := _interval_ends(effect):
        marks += _interval_marks(ends, scale, y)
    marks += [circle(scale(one), y, 2.2, "seed") for one in effect.runs if math.isfinite(one)]
    marks += [_cross(scale(one), y) for one in effect.collapsed if math.isfinite(one)]
    if math.isfinite(effect.difference):
        marks.append(circle(scale(effect.difference), y, 4.6, "mean"))
    return tag("g", *marks, class_=verdict_class(effect.verdict))


def _cross(x: float, y: float) -> Markup:
    """Draw the mark of a collapsed run."""
    lines = (line(x - 3, y - 3, x + 3, y + 3, "seed"), line(x - 3, y + 3, x + 3, y - 3, "seed"))
    return tag("g", tag("title", "collapsed run, not in the mean"), *lines)


def _band_mark(band: Sequence[float], scale: Scale, y: float) -> Markup:
    """Draw a band within the axis. An end beyond the axis is shown by a tip."""
    (left, cut_left), (right, cut_right) = _ends_px(band, scale)
    top, bottom = y - 7, y + 7
    tip_left, tip_right = [(left - _TIP_PX, y)] * cut_left, [(right + _TIP_PX, y)] * cut_right
    corners = [(left, top), (right, top), *tip_right, (right, bottom), (left, bottom), *tip_left]
    return tag("polygon", points=written(corners), class_="undetectable" + " beyond" * (cut_left or cut_right))


def _interval_marks(low_high: Sequence[float], scale: Scale, y: float) -> Iterator[Markup]:
    """Draw an interval with bars at its ends. An end beyond the axis is an arrow."""
    ends = _ends_px(low_high, scale)
    yield line(ends[0][0], y, ends[1][0], y, "interval")
    for (at, cut), inward in zip(ends, (1, -1), strict=True):
        if cut:
            arrow = [(at + inward * 5, y - 4), (at - inward * 2, y), (at + inward * 5, y + 4)]
            yield tag("polyline", points=written(arrow), class_="interval beyond")
        else:
            yield line(at, y - 3.5, at, y + 3.5, "interval")


def _ends_px(ends: Sequence[float], scale: Scale) -> list[tuple[float, bool]]:
    """Return, for both ends, the coordinate within the axis and whether it is clipped. The left end comes first."""
    first, last = sorted((scale.low, scale.high))
    return sorted((scale(min(max(end, first), last)), not first <= end <= last) for end in ends)


def verdict_class(verdict: str) -> str:
    """Return the CSS class of a verdict, without a count that may follow. It is `v-diverged` for "diverged 2 of 3"."""
    return "v-" + re.split(r"\d", verdict)[0].strip().replace(" ", "-")
