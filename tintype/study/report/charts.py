"""Figures of a report: pure functions from data to inline SVG.

Colours come from the page's style sheet, so that one drawing serves light, dark and paper. In every chart of
differences right is better, and every colour is doubled by a word, a shape or a label.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TypeVar

from markupsafe import Markup

from tintype.page.numerals import fixed, interval, percent, share, significant
from tintype.page.svg import (
    CHARACTER_PX,
    Box,
    Scale,
    circle,
    drawing,
    kept_apart,
    line,
    padded,
    tag,
    text,
    tick_labels,
)
from tintype.seams import ANY_VALUE, Range
from tintype.study.results import Curve

PART_COLOURS = 9
"""Number of colours that the style sheet has for the parts of a step."""
_PANEL_PX = 360
_FIGURE_PX = 430
_TEXT_PX = 14
_LONGEST_NAME_PX = 150
_CUT = 3.0
"""Factor by which a panel reaches beyond all ratios for the ends of their intervals."""
_TIP_PX = 6.0
"""Length of the point at the end of a band or an interval that continues beyond the axis."""


@dataclass(frozen=True)
class Effect:
    """An arm's difference from the baseline on one metric."""

    name: str
    verdict: str
    difference: float
    low: float | None
    high: float | None
    detectable: float | None
    seeds: Sequence[float]

    @property
    def interval(self) -> tuple[float, float] | None:
        return None if self.low is None or self.high is None else (self.low, self.high)

    @property
    def band(self) -> tuple[float, float] | None:
        """Return the range of differences that are too small to be detected."""
        return None if self.detectable is None else (-self.detectable, self.detectable)


def effect_scale(effects: Sequence[Effect], lower_is_better: bool, width: float, possible: Range = ANY_VALUE) -> Scale:
    """Return one scale for all effects on a metric, with better to the right.

    The data set it: zero, the means and the seeds. Intervals and bands get at most as much room again on each side, and
    none beyond the differences that are `possible`.
    """
    data = [value for effect in effects for value in (effect.difference, *effect.seeds) if math.isfinite(value)]
    low, high = min([0.0, *data]), max([0.0, *data])
    room = high - low or math.inf
    ends = [end for effect in effects for pair in (effect.interval, effect.band) if pair for end in pair]
    ends = [end for end in ends if math.isfinite(end)]
    least, most = possible
    start = max(low - room, min(ends, default=low), -math.inf if least is None else least)
    stop = min(high + room, max(ends, default=high), math.inf if most is None else most)
    low, high = padded([min(low, start), max(high, stop)])
    return Scale(high, low, 8, width - 8) if lower_is_better else Scale(low, high, 8, width - 8)


def forest(
    label: str, effects: Sequence[Effect], decimals: int, lower_is_better: bool, possible: Range = ANY_VALUE
) -> Markup:
    """Draw differences with intervals, one row for each arm, over the band of differences too small to be detected."""
    row_px, top = 44, 22
    bottom = top + row_px * len(effects)
    scale = effect_scale(effects, lower_is_better, _PANEL_PX, possible)
    rows = [_forest_row(effect, scale, top + row_px * index, decimals) for index, effect in enumerate(effects)]
    parts = [
        text(_PANEL_PX - 8, 11, "better →", anchor="end", class_="quiet"),
        text(8, 11, "← worse", class_="quiet"),
        *_x_axis(scale, top, bottom),
        line(scale(0), top, scale(0), bottom, "zero"),
        *rows,
    ]
    return drawing(_PANEL_PX, bottom + 20, f"{label}: differences from the baseline", parts)


def _forest_row(effect: Effect, scale: Scale, top: float, decimals: int) -> Markup:
    written = f"{fixed(effect.difference, decimals, signed=True)} {interval(effect.low, effect.high, decimals)}".strip()
    room = _PANEL_PX - 24 - CHARACTER_PX * len(written)
    return tag(
        "g",
        text(8, top + 14, effect.name, class_="name", room_px=room),
        text(_PANEL_PX - 8, top + 14, written, anchor="end", class_="value halo"),
        *_effect_marks(effect, scale, top + 30, 7),
        class_=verdict_class(effect.verdict),
    )


def _effect_marks(effect: Effect, scale: Scale, y: float, half_height: float) -> Iterator[Markup]:
    if effect.band:
        yield _band_mark(*effect.band, scale, y, half_height)
    if effect.interval:
        yield from _interval_marks(*effect.interval, scale, y)
    yield from (circle(scale(seed), y, 2.2, "seed") for seed in effect.seeds if math.isfinite(seed))
    if math.isfinite(effect.difference):
        yield circle(scale(effect.difference), y, 4.6, "mean")


def _band_mark(low: float, high: float, scale: Scale, y: float, half_height: float) -> Markup:
    """Draw a band within the axis; an end that continues beyond is a point."""
    (left, cut_left), (right, cut_right) = _ends_px(low, high, scale)
    top, bottom = y - half_height, y + half_height
    tip_left, tip_right = [(left - _TIP_PX, y)] * cut_left, [(right + _TIP_PX, y)] * cut_right
    corners = [(left, top), (right, top), *tip_right, (right, bottom), (left, bottom), *tip_left]
    return tag(
        "polygon", points=_written(corners), class_="undetectable beyond" if tip_left or tip_right else "undetectable"
    )


def _interval_marks(low: float, high: float, scale: Scale, y: float) -> Iterator[Markup]:
    """Draw a whisker with bars at its ends; an arrow where an end lies beyond the axis."""
    ends = _ends_px(low, high, scale)
    yield line(ends[0][0], y, ends[1][0], y, "interval")
    for (at, cut), inward in zip(ends, (1, -1), strict=True):
        if cut:
            arrow = [(at + inward * 5, y - 4), (at - inward * 2, y), (at + inward * 5, y + 4)]
            yield tag("polyline", points=_written(arrow), class_="interval beyond")
        else:
            yield line(at, y - 3.5, at, y + 3.5, "interval")


def _ends_px(low: float, high: float, scale: Scale) -> list[tuple[float, bool]]:
    """Return (coordinate, whether it is cut) of both ends within the axis, the left one first."""
    axis = sorted((scale.low, scale.high))
    ends = [(min(max(end, axis[0]), axis[1]), not axis[0] <= end <= axis[1]) for end in (low, high)]
    return sorted((scale(end), cut) for end, cut in ends)


def verdict_class(verdict: str) -> str:
    """Return the style sheet's class of a verdict, without the numbers that may follow: `v-diverged` of 2 of 3."""
    return "v-" + re.split(r"\d", verdict)[0].strip().replace(" ", "-")


@dataclass(frozen=True)
class Cloud:
    """An arm's seeds as points. `css` is the class that carries the arm's colour."""

    name: str
    css: str
    points: Sequence[tuple[float, float]]

    @property
    def mean(self) -> tuple[float, float]:
        return fmean(x for x, _ in self.points), fmean(y for _, y in self.points)


def scatter(
    clouds: Sequence[Cloud],
    x_label: str,
    y_label: str,
    lower_is_better: bool,
    *,
    same_across: bool = False,
    possible: Range = ANY_VALUE,
) -> Markup:
    """Draw the points of seeds, joined to the mean of their arm. Up is better; right too where axes are the `same`.

    `possible` is the range of the metric that goes up.
    """
    width, height, left, top = _FIGURE_PX, 320, 44, 26
    right, bottom = width - 12, height - 40
    ends = (right, left) if same_across and lower_is_better else (left, right)
    x_possible = possible if same_across else ANY_VALUE
    x = Scale(*padded((x for cloud in clouds for x, _ in cloud.points), 0.16, x_possible), *ends)
    low, high = padded((y for cloud in clouds for _, y in cloud.points), 0.12, possible)
    y = Scale(low, high, top, bottom) if lower_is_better else Scale(low, high, bottom, top)
    parts = [
        *_x_axis(x, top, bottom),
        *_y_axis(y, left, right),
        text(left, 13, f"{y_label}, up is better", class_="quiet"),
        text(right, height - 6, x_label + (", right is better" if same_across else " →"), anchor="end", class_="quiet"),
        *(_cloud_marks(cloud, x, y) for cloud in clouds),
        *_cloud_names(clouds, x, y, Box(left, top, width, bottom)),
    ]
    return drawing(width, height, f"{y_label} against {x_label}", parts)


def _cloud_marks(cloud: Cloud, x: Scale, y: Scale) -> Markup:
    mean_x, mean_y = x(cloud.mean[0]), y(cloud.mean[1])
    threads = [line(mean_x, mean_y, x(a), y(b), "thread") for a, b in cloud.points]
    seeds = [circle(x(a), y(b), 2.6, "seed") for a, b in cloud.points]
    return tag("g", *threads, *seeds, circle(mean_x, mean_y, 5.5, "mean"), class_=cloud.css)


def _cloud_names(clouds: Sequence[Cloud], x: Scale, y: Scale, room: Box) -> Iterator[Markup]:
    """Draw each name beside its mean, at the first place that covers no other name, mean or seed."""
    taken = [_around(x(cloud.mean[0]), y(cloud.mean[1]), 6) for cloud in clouds]
    taken += [_around(x(a), y(b), 3) for cloud in clouds for a, b in cloud.points]
    for cloud in clouds:
        name_x, name_y = x(cloud.mean[0]), y(cloud.mean[1])
        places = list(_places(name_x, name_y, min(CHARACTER_PX * len(cloud.name), _LONGEST_NAME_PX)))
        free = [box for box in places if box.within(room) and not any(box.overlaps(other) for other in taken)]
        box = free[0] if free else places[0]
        taken.append(box)
        if abs(box.top + _TEXT_PX / 2 - name_y) > 1.5 * _TEXT_PX:
            yield tag("g", line(name_x, name_y, (box.left + box.right) / 2, box.top + 7, "thread"), class_=cloud.css)
        name = text(box.left, box.top + 11, cloud.name, class_="name halo", room_px=_LONGEST_NAME_PX)
        yield tag("g", name, class_=cloud.css)


def _around(x: float, y: float, reach: float) -> Box:
    return Box(x - reach, y - reach, x + reach, y + reach)


def _places(x: float, y: float, width: float) -> Iterator[Box]:
    for away in range(16):
        for side in (-1, 1) if away else (0,):
            top = y - _TEXT_PX / 2 + side * away * 8
            for left in (x + 9, x - 9 - width, x - width / 2):
                yield Box(left, top, left + width, top + _TEXT_PX)


@dataclass(frozen=True)
class Traces:
    """One arm's curves of the same quantity, one for each seed."""

    name: str
    css: str
    curves: Sequence[Curve]


@dataclass(frozen=True)
class _Band:
    traces: Traces
    points: Sequence[tuple[float, float, float, float]]
    """(step, mean, lowest, highest) over seeds."""


def curves(label: str, traces: Sequence[Traces], *, tail: bool = False) -> Markup | None:
    """Draw means over seeds with the range of seeds as a band; `tail` shows the second half of training only."""
    edges = _bin_edges(traces, tail)
    bands = [_Band(each, _banded(each.curves, edges)) for each in traces] if edges else []
    bands = [band for band in bands if band.points]
    if not bands:
        return None
    width, height, left, top = _FIGURE_PX, 270, 40, 10
    right, bottom = width - 112, height - 40
    steps = [point[0] for band in bands for point in band.points]
    x = Scale(min(steps), max(max(steps), min(steps) + 1), left, right, log=not tail and min(steps) > 0)
    y = _value_scale([value for band in bands for point in band.points for value in point[2:]], bottom, top)
    ends = [_End(b.traces.name, b.traces.css, x(b.points[-1][0]) + 2, y(b.points[-1][1])) for b in bands]
    parts = [
        *_x_axis(x, top, bottom),
        *_y_axis(y, left, right),
        text(right, height - 6, "step →", anchor="end", class_="quiet"),
        *(_band_marks(band, x, y) for band in bands),
        *_end_names(ends, right + 16, top, bottom),
    ]
    return drawing(width, height, f"{label} over training", parts)


def _value_scale(values: Sequence[float], bottom: float, top: float) -> Scale:
    if min(values) > 0 and max(values) > 4 * min(values):
        return Scale(min(values) * 0.94, max(values) * 1.06, bottom, top, log=True)
    return Scale(*padded(values), bottom, top)


def _bin_edges(traces: Sequence[Traces], tail: bool) -> list[float]:
    """Return equal bins for the tail; else bins that grow with the step, as a loss falls fast and then slowly."""
    steps = [step for each in traces for curve in each.curves for step in curve.step if step > 0]
    if len(set(steps)) < 2:
        return []
    first, last = float(min(steps)), float(max(steps))
    if tail:
        first = (first + last) / 2
        return [first + (last - first) * index / 20 for index in range(21)]
    return [first * (last / first) ** (index / 56) for index in range(57)]


def _banded(of_seeds: Sequence[Curve], edges: Sequence[float]) -> list[tuple[float, float, float, float]]:
    averaged = [_bin_averages(curve, edges) for curve in of_seeds]
    points = []
    for index in range(len(edges) - 1):
        found = [average[index] for average in averaged if index in average]
        if found:
            values = [value for _, value in found]
            points.append((fmean(step for step, _ in found), fmean(values), min(values), max(values)))
    return points


def _bin_averages(curve: Curve, edges: Sequence[float]) -> dict[int, tuple[float, float]]:
    """Return mean step and value of each bin that has a finite value."""
    inside: dict[int, list[tuple[int, float]]] = {}
    for step, value in zip(curve.step, curve.value, strict=False):
        if edges[0] <= step <= edges[-1] and math.isfinite(value):
            index = min(bisect_right(edges, step) - 1, len(edges) - 2)
            inside.setdefault(index, []).append((step, value))
    return {index: (fmean(s for s, _ in pairs), fmean(v for _, v in pairs)) for index, pairs in inside.items()}


def _band_marks(band: _Band, x: Scale, y: Scale) -> Markup:
    lower = [(x(step), y(low)) for step, _, low, _ in band.points]
    upper = [(x(step), y(high)) for step, _, _, high in band.points]
    middle = [(x(step), y(mean)) for step, mean, _, _ in band.points]
    return tag(
        "g",
        tag("polygon", points=_written([*upper, *reversed(lower)]), class_="band"),
        tag("polyline", points=_written(middle), class_="curve"),
        class_=band.traces.css,
    )


def _written(points: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)


def _end_names(ends: Sequence[_End], name_x: float, top: float, bottom: float) -> Iterator[Markup]:
    """Draw the names of lines to the right of their ends, each joined to its end by a thread."""
    heights = kept_apart([end.y for end in ends], _TEXT_PX, top + 4, bottom - 4)
    for end, height in zip(ends, heights, strict=True):
        name = text(name_x, height + 4, end.name, class_="name", room_px=_FIGURE_PX - name_x)
        yield tag("g", line(end.x, end.y, name_x - 3, height, "thread"), name, class_=end.css)


@dataclass(frozen=True)
class _End:
    name: str
    css: str
    x: float
    y: float


@dataclass(frozen=True)
class AtTokens:
    """An arm over the baseline, at the number of tokens of one resolution."""

    tokens: int
    ratio: float
    low: float | None
    high: float | None


@dataclass(frozen=True)
class TokenLine:
    name: str
    css: str
    points: Sequence[AtTokens]


def against_tokens(
    label: str, lines: Sequence[TokenLine], resolutions: dict[str, int], *, lower_is_better: bool, percents: bool
) -> Markup | None:
    """Draw ratios to the baseline over the number of tokens, with intervals; up is better. Both scales are logarithmic.

    An interval that reaches far beyond all ratios is cut at the panel's edge and has no end there.
    """
    shown = [each for each in lines if each.points]
    if not shown:
        return None
    width, height, left, top = _FIGURE_PX, 290, 56, 22
    right, bottom = width - 96, height - 52
    y = _ratio_scale([point for each in shown for point in each.points], bottom, top, lower_is_better)
    counts = list(resolutions.values())
    x = Scale(min(counts), max(counts), left + 26, right - 26, log=True)
    ends = [_End(e.name, e.css, x(e.points[-1].tokens) + 16, y(e.points[-1].ratio)) for e in shown]
    parts = [
        text(left, 11, "up is better", class_="quiet"),
        *_ratio_axis(y, left, right, percents),
        *_token_axis(x, resolutions, top, bottom),
        text(right, height - 4, "tokens →", anchor="end", class_="quiet"),
        line(left, y(1), right, y(1), "zero"),
        *(_token_marks(each, x, y, 6 * (index - (len(shown) - 1) / 2)) for index, each in enumerate(shown)),
        *_end_names(ends, right + 14, top, bottom),
    ]
    return drawing(width, height, f"{label} against the number of tokens, relative to the baseline", parts)


def _ratio_scale(points: Sequence[AtTokens], bottom: float, top: float, lower_is_better: bool) -> Scale:
    ratios = [1.0, *(point.ratio for point in points)]
    furthest = min(ratios) / _CUT, max(ratios) * _CUT
    ends = [end for point in points for end in (point.low, point.high) if end is not None]
    logs = [math.log(min(max(value, furthest[0]), furthest[1])) for value in (*ratios, *ends)]
    low, high = (math.exp(end) for end in padded(logs))
    return Scale(low, high, top, bottom, log=True) if lower_is_better else Scale(low, high, bottom, top, log=True)


def _ratio_axis(scale: Scale, left: float, right: float, percents: bool) -> Iterator[Markup]:
    for tick in scale.ticks(5):
        label = percent(tick - 1, whole=True) if percents else f"{significant(tick)}×"
        yield line(left, scale(tick), right, scale(tick), "grid")
        yield text(left - 7, scale(tick) + 4, label, anchor="end", class_="tick")


def _token_marks(each: TokenLine, x: Scale, y: Scale, aside: float) -> Markup:
    """Draw a line; `aside` keeps the intervals of several arms apart."""
    places = [(x(point.tokens) + aside, y(point.ratio)) for point in each.points]
    marks = [tag("polyline", points=_written(places), class_="curve")]
    for point, (at, height) in zip(each.points, places, strict=True):
        if point.low is not None and point.high is not None:
            ends = [min(max(end, y.low), y.high) for end in (point.low, point.high)]
            marks.append(line(at, y(ends[0]), at, y(ends[1]), "reach"))
            whole = [end for end, reached in zip((point.low, point.high), ends, strict=True) if end == reached]
            marks += [line(at - 2.5, y(end), at + 2.5, y(end), "reach") for end in whole]
        tooltip = tag("title", f"{each.name}: {significant(point.ratio)}× at {point.tokens:,} tokens")
        marks.append(tag("circle", tooltip, cx=at, cy=height, r=4.2, class_="mean"))
    return tag("g", *marks, class_=each.css)


@dataclass(frozen=True)
class PartValues:
    """One arm's value of each part of a metric."""

    name: str
    css: str
    values: dict[str, float]


def parts(label: str, arms: Sequence[PartValues], ceiling: dict[str, float], possible: Range = ANY_VALUE) -> Markup:
    """Draw a row for each part, a dot for each arm in a lane of its own, and a bar for real images."""
    width, row_px, top, left = _FIGURE_PX, 30, 6, 110
    names = list(dict.fromkeys(part for arm in arms for part in arm.values))
    bottom = top + row_px * len(names)
    shown = [value for arm in arms for value in arm.values.values()] + [ceiling[n] for n in names if n in ceiling]
    x = Scale(*padded(shown, possible=possible), left, width - 12)
    rows = [_part_row(name, arms, ceiling.get(name), x, top + row_px * (i + 0.5)) for i, name in enumerate(names)]
    marks = [*_x_axis(x, top, bottom), *(mark for row in rows for mark in row)]
    return drawing(width, bottom + 20, f"{label} by part", marks)


def _part_row(part: str, arms: Sequence[PartValues], ceiling: float | None, x: Scale, y: float) -> Iterator[Markup]:
    yield text(x.start_px - 10, y + 4, part, anchor="end", class_="name", room_px=x.start_px - 14)
    yield line(x.start_px, y, x.end_px, y, "grid")
    if ceiling is not None and math.isfinite(ceiling):
        yield line(x(ceiling), y - 12, x(ceiling), y + 12, "ceiling")
    lane_px = min(6.0, 22 / len(arms))
    for index, arm in enumerate(arms):
        if part in arm.values:
            lane = y + (index - (len(arms) - 1) / 2) * lane_px
            tooltip = tag("title", f"{arm.name}: {significant(arm.values[part])}")
            dot = tag("circle", tooltip, cx=x(arm.values[part]), cy=lane, r=4.2, class_="mean")
            yield tag("g", dot, class_=arm.css)


@dataclass(frozen=True)
class Bar:
    name: str
    segments: dict[str, float]

    @property
    def total(self) -> float:
        return sum(self.segments.values())


def stacked(bars: Sequence[Bar], order: Sequence[str]) -> Markup:
    """Draw one bar for each arm, divided into the parts of `order`; bars share one scale."""
    row_px, longest = 42, max(bar.total for bar in bars)
    rows = [_bar_marks(bar, order, (_FIGURE_PX - 2) / longest, row_px * index) for index, bar in enumerate(bars)]
    return drawing(_FIGURE_PX, row_px * len(bars), "Where the time goes", rows)


def _bar_marks(bar: Bar, order: Sequence[str], px_per_unit: float, top: float) -> Markup:
    marks, x = [text(0, top + 13, bar.name, class_="name", room_px=_FIGURE_PX)], 0.0
    for index, part in enumerate(order):
        width = bar.segments.get(part, 0.0) * px_per_unit
        written = share(bar.segments.get(part, 0.0) / bar.total)
        tooltip = tag("title", f"{part}: {written}")
        marks.append(
            tag("rect", tooltip, x=x, y=top + 19, width=width, height=17, class_=f"segment part-{index % PART_COLOURS}")
        )
        if width > CHARACTER_PX * len(written) + 4:
            on = f"on-part-{index % PART_COLOURS}"
            marks.append(text(x + width / 2, top + 31.5, written, anchor="middle", class_=on))
        x += width
    return tag("g", *marks)


def _x_axis(scale: Scale, top: float, bottom: float) -> Iterator[Markup]:
    for at, (label,) in _apart([(at, (label,)) for at, label in _ticks(scale)]):
        yield line(at, top, at, bottom, "grid")
        yield text(at, bottom + 15, label, anchor="middle", class_="tick")


def _token_axis(scale: Scale, resolutions: dict[str, int], top: float, bottom: float) -> Iterator[Markup]:
    yield from (line(scale(count), top, scale(count), bottom, "grid") for count in resolutions.values())
    for at, (name, label) in _apart([(scale(count), (name, f"{count:,}")) for name, count in resolutions.items()]):
        yield text(at, bottom + 15, label, anchor="middle", class_="tick")
        yield text(at, bottom + 29, name, anchor="middle", class_="quiet")


_Labels = TypeVar("_Labels", bound=tuple[str, ...])


def _apart(labelled: Sequence[tuple[float, _Labels]]) -> Iterator[tuple[float, _Labels]]:
    """Leave out labels that would touch the one before."""
    end = -math.inf
    for at, labels in labelled:
        half = CHARACTER_PX * max(map(len, labels)) / 2
        if at - half >= end:
            yield at, labels
            end = at + half + CHARACTER_PX


def _y_axis(scale: Scale, left: float, right: float) -> Iterator[Markup]:
    for at, label in _ticks(scale):
        yield line(left, at, right, at, "grid")
        yield text(left - 7, at + 4, label, anchor="end", class_="tick")


def _ticks(scale: Scale) -> list[tuple[float, str]]:
    """Return (coordinate, label), sorted by coordinate."""
    low, high = sorted((scale.low, scale.high))
    ticks = Scale(low, high, 0, 1, scale.log).ticks(5)
    return sorted(zip(map(scale, ticks), tick_labels(ticks), strict=True))
