"""Draw the figures of a report, by pure functions from data to inline SVG.

Colours are in the page's style sheet, so that drawings work on light pages, dark pages and paper. In charts of
differences, values further right are better. A word, a shape or a label repeats what a colour means.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from statistics import fmean
from types import MappingProxyType
from typing import Generic, TypeAlias, TypeVar

from markupsafe import Markup

from tintype.page.numerals import percent, share, significant
from tintype.page.svg import (
    CHARACTER_PX,
    Box,
    Point,
    Scale,
    apart,
    circle,
    drawing,
    kept_apart,
    line,
    padded,
    tag,
    text,
    ticks_of,
    written,
    x_axis,
)
from tintype.seams import ANY_VALUE, Range
from tintype.study.results import Curve, Interval, MetricInfo

PART_COLOURS = 9
"""Number of colours in the style sheet for the components of a training step."""
_FIGURE_PX = 430
_TEXT_PX = 14
_LONGEST_NAME_PX = 150
_CUT = 3.0
"""Factor by which a panel extends beyond all ratios, so that ends of intervals are visible."""
_LARGEST_LOG = 50.0
"""Bound on the logarithm of a ratio, since an interval from two seeds can exceed the range of a float."""

Data = TypeVar("Data")


@dataclass(frozen=True)
class Series(Generic[Data]):
    """The data of an arm in a figure. `css` is the CSS class of the arm's colour."""

    name: str
    css: str
    data: Data


def scatter(
    clouds: Sequence[Series[list[Point]]],
    x_label: str,
    y_label: str,
    lower_is_better: bool,
    *,
    same_across: bool = False,
    possible: Range = ANY_VALUE,
    collapsed: Mapping[str, Sequence[Point]] = MappingProxyType({}),
) -> Markup:
    """Draw a point for each seed, connected to the mean of its arm. Higher is better.

    With `same_across`, further right is better too. `possible` is the range of the vertical metric. The `collapsed`
    runs by arm are drawn as crosses, and no mean includes them.
    """
    width, height, left, top = _FIGURE_PX, 320, 44, 26
    right, bottom = width - 12, height - 40
    ends = (right, left) if same_across and lower_is_better else (left, right)
    points = [point for cloud in clouds for point in (*cloud.data, *collapsed.get(cloud.name, ()))]
    x = Scale(*padded((x for x, _ in points), 0.16, possible if same_across else ANY_VALUE), *ends)
    y = _up_is_better(*padded((y for _, y in points), 0.12, possible), lower_is_better, top, bottom)
    placed = [Series(cloud.name, cloud.css, [(x(a), y(b)) for a, b in cloud.data]) for cloud in clouds]
    means = [(x(fmean(a for a, _ in cloud.data)), y(fmean(b for _, b in cloud.data))) for cloud in clouds]
    parts = [
        *x_axis(x, top, bottom),
        *_y_axis(ticks_of(y), left, right),
        text(left, 13, f"{y_label}, up is better", class_="quiet"),
        text(right, height - 6, x_label + (", right is better" if same_across else " →"), anchor="end", class_="quiet"),
        *(_cloud_marks(cloud, mean) for cloud, mean in zip(placed, means, strict=True)),
        *([text(right, 13, "× collapsed, left out", anchor="end", class_="quiet")] if any(collapsed.values()) else []),
        *(_cross(x(a), y(b), cloud.css) for cloud in clouds for a, b in collapsed.get(cloud.name, ())),
        *_cloud_names(placed, means, Box(left, top, width, bottom)),
    ]
    return drawing(width, height, f"{y_label} against {x_label}", parts)


@dataclass(frozen=True)
class GainAtCost:
    """An arm's gain as a fraction of the baseline's mean, and its step time divided by the baseline's."""

    cost: float
    gain: Interval
    dominated: bool


def gains_at_costs(label: str, arms: Sequence[Series[GainAtCost]]) -> Markup:
    """Draw gains with intervals over costs; the line is the Pareto front of the estimates.

    Dominated arms are drawn as crosses. An interval far beyond all gains is cut at the edge of the panel.
    """
    width, height, left, top = _FIGURE_PX, 320, 56, 26
    right, bottom = width - 12, height - 40
    gains = [0.0, *(arm.data.gain.value for arm in arms)]
    room = max(gains) - min(gains)
    least, most = (min(gains) - room, max(gains) + room) if room else (-math.inf, math.inf)
    ends = [min(max(end, least), most) for arm in arms for end in arm.data.gain.ends or ()]
    x = Scale(*padded((arm.data.cost for arm in arms), 0.16), left, right)
    y = Scale(*padded((*gains, *ends), 0.08), bottom, top)
    at = [(x(arm.data.cost), y(arm.data.gain.value)) for arm in arms]
    reached = [[min(max(end, y.low), y.high) for end in arm.data.gain.ends or ()] for arm in arms]
    parts = [
        *x_axis(x, top, bottom),
        *_y_axis([(y(tick), percent(tick, whole=True)) for tick in y.ticks(5)], left, right),
        text(left, 13, f"gain in {label}, up is better", class_="quiet"),
        text(right, height - 6, "step time over the baseline's →", anchor="end", class_="quiet"),
        *_front_line([place for arm, place in zip(arms, at, strict=True) if not arm.data.dominated], right),
    ]
    if any(arm.data.dominated for arm in arms):
        parts.append(text(right, 13, "× not on the front", anchor="end", class_="quiet"))
    clouds = [
        Series(arm.name, arm.css, [(px, y(end)) for end in of])
        for arm, (px, _), of in zip(arms, at, reached, strict=True)
    ]
    parts += _cloud_names(clouds, at, Box(left, top, width, bottom))
    for arm, place, whisker in zip(arms, at, reached, strict=True):
        marks = [line(place[0], y(whisker[0]), place[0], y(whisker[1]), "reach")] if whisker else []
        marks += [
            line(place[0] - 2.5, y(end), place[0] + 2.5, y(end), "reach")
            for end in whisker
            if end in (arm.data.gain.ends or ())
        ]
        strokes = [line(place[0] - 4, place[1] - side, place[0] + 4, place[1] + side, "curve") for side in (-4, 4)]
        marks += strokes if arm.data.dominated else [circle(*place, 5.5, "mean")]
        parts.append(tag("g", *marks, class_=arm.css))
    return drawing(width, height, f"Gain in {label} against the time of a step", parts)


def _front_line(places: Sequence[Point], right: float) -> Iterator[Markup]:
    """Draw the staircase line through the best estimate at each cost, from the cheapest to the right edge."""
    steps: list[Point] = []
    for place in sorted(places):
        if not steps or place[1] < steps[-1][1]:
            steps.append(place)
    for (x, y), (to, higher) in zip(steps, [*steps[1:], (right, steps[-1][1])] if steps else [], strict=True):
        yield line(x, y, to, y, "zero")
        yield line(to, y, to, higher, "zero")


def _up_is_better(
    low: float, high: float, lower_is_better: bool, top: float, bottom: float, log: bool = False
) -> Scale:
    return Scale(low, high, *((top, bottom) if lower_is_better else (bottom, top)), log)


def _cloud_marks(cloud: Series[list[Point]], mean: Point) -> Markup:
    threads = [line(*mean, *seed, "thread") for seed in cloud.data]
    seeds = [circle(*seed, 2.6, "seed") for seed in cloud.data]
    return tag("g", *threads, *seeds, circle(*mean, 5.5, "mean"), class_=cloud.css)


def _cross(x: float, y: float, css: str) -> Markup:
    return tag("g", *(line(x - 3, y - side, x + 3, y + side, "thread") for side in (-3, 3)), class_=css)


def _cloud_names(clouds: Sequence[Series[list[Point]]], means: Sequence[Point], room: Box) -> Iterator[Markup]:
    """Draw each name beside its mean, at the first position where it covers no other name, mean or seed."""
    marks = ((means, 6), ([seed for cloud in clouds for seed in cloud.data], 3))
    taken = [Box(x - reach, y - reach, x + reach, y + reach) for points, reach in marks for x, y in points]
    for cloud, (x, y) in zip(clouds, means, strict=True):
        places = list(_places(x, y, min(CHARACTER_PX * len(cloud.name), _LONGEST_NAME_PX)))
        free = (box for box in places if box.within(room) and not any(box.overlaps(other) for other in taken))
        box = next(free, places[0])
        taken.append(box)
        if abs(box.top + _TEXT_PX / 2 - y) > 1.5 * _TEXT_PX:
            yield tag("g", line(x, y, (box.left + box.right) / 2, box.top + 7, "thread"), class_=cloud.css)
        name = text(box.left, box.top + 11, cloud.name, class_="name halo", room_px=_LONGEST_NAME_PX)
        yield tag("g", name, class_=cloud.css)


def _places(x: float, y: float, width: float) -> Iterator[Box]:
    for away in range(16):
        for side in (-1, 1) if away else (0,):
            top = y - _TEXT_PX / 2 + side * away * 8
            for left in (x + 9, x - 9 - width, x - width / 2):
                yield Box(left, top, left + width, top + _TEXT_PX)


def curves(label: str, traces: Sequence[Series[list[Curve]]], *, tail: bool = False) -> Markup | None:
    """Draw means over seeds with the range of seeds as a band; `tail` limits it to the second half of training."""
    edges = _bin_edges([step for each in traces for curve in each.data for step in curve.step if step > 0], tail)
    found = [Series(each.name, each.css, _banded(each.data, edges)) for each in traces]
    bands = [band for band in found if band.data]
    if not bands:
        return None
    width, height, left, top = _FIGURE_PX, 270, 40, 10
    right, bottom = width - 112, height - 40
    steps = [point[0] for band in bands for point in band.data]
    x = Scale(min(steps), max(max(steps), min(steps) + 1), left, right, log=not tail and min(steps) > 0)
    y = _value_scale([value for band in bands for point in band.data for value in point[2:]], bottom, top)
    ends = [Series(band.name, band.css, (x(band.data[-1][0]) + 2, y(band.data[-1][1]))) for band in bands]
    parts = [
        *x_axis(x, top, bottom),
        *_y_axis(ticks_of(y), left, right),
        text(right, height - 6, "step →", anchor="end", class_="quiet"),
        *(_band_marks(band, x, y) for band in bands),
        *_end_names(ends, right + 16, top, bottom),
    ]
    return drawing(width, height, f"{label} over training", parts, data_over="step")


def quality(label: str, arms: Sequence[Series[Band]], x_label: str) -> Markup:
    """Draw scores during training, with a dot for each mean over seeds, and with the range of seeds as a band."""
    width, height, left, top = _FIGURE_PX, 270, 40, 10
    right, bottom = width - 112, height - 40
    x = Scale(*padded((point[0] for band in arms for point in band.data), 0.03), left, right)
    y = _value_scale([value for band in arms for point in band.data for value in point[2:]], bottom, top)
    ends = [Series(band.name, band.css, (x(band.data[-1][0]) + 2, y(band.data[-1][1]))) for band in arms]
    dots = [
        tag("g", *(circle(x(at), y(mean), 3, "mean") for at, mean, *_ in band.data), class_=band.css) for band in arms
    ]
    parts = [
        *x_axis(x, top, bottom),
        *_y_axis(ticks_of(y), left, right),
        text(right, height - 6, f"{x_label} →", anchor="end", class_="quiet"),
        *(_band_marks(band, x, y) for band in arms),
        *dots,
        *_end_names(ends, right + 16, top, bottom),
    ]
    return drawing(width, height, f"{label} over training, by {x_label}", parts, data_over=x_label)


def _value_scale(values: Sequence[float], bottom: float, top: float) -> Scale:
    if min(values) > 0 and max(values) > 4 * min(values):
        return Scale(min(values) * 0.94, max(values) * 1.06, bottom, top, log=True)
    return Scale(*padded(values), bottom, top)


def _bin_edges(steps: Sequence[int], tail: bool) -> list[float]:
    """Return equal bins for the tail; otherwise bins that grow with the step, since a loss falls fast at first."""
    if len(set(steps)) < 2:
        return []
    first, last = float(min(steps)), float(max(steps))
    if tail:
        first = (first + last) / 2
        return [first + (last - first) * index / 20 for index in range(21)]
    return [first * (last / first) ** (index / 56) for index in range(57)]


Band: TypeAlias = list[tuple[float, float, float, float]]
"""Tuples (step or seconds, mean, lowest, highest) over seeds."""


def _banded(of_seeds: Sequence[Curve], edges: Sequence[float]) -> Band:
    """Average each seed's curve in each bin that has a finite value, then compute mean and range over the seeds."""
    averages: dict[int, list[Point]] = {}
    for curve in of_seeds if edges else ():
        pairs = sorted(pair for pair in zip(curve.step, curve.value, strict=False) if math.isfinite(pair[1]))
        within = [pair for pair in pairs if edges[0] <= pair[0] <= edges[-1]]
        for index, inside in groupby(within, lambda pair: min(bisect_right(edges, pair[0]) - 1, len(edges) - 2)):
            steps, values = zip(*inside, strict=True)
            averages.setdefault(index, []).append((fmean(steps), fmean(values)))
    found = [zip(*of_bin, strict=True) for _, of_bin in sorted(averages.items())]
    return [(fmean(steps), fmean(values), min(values), max(values)) for steps, values in found]


def _band_marks(band: Series[Band], x: Scale, y: Scale) -> Markup:
    middle, lower, upper = ([(x(point[0]), y(point[at])) for point in band.data] for at in (1, 2, 3))
    return tag(
        "g",
        tag("polygon", points=written([*upper, *reversed(lower)]), class_="band"),
        tag("polyline", points=written(middle), class_="curve"),
        class_=band.css,
        data_name=band.name,
        data_points=" ".join(",".join(f"{value:.4g}" for value in point) for point in band.data),
    )


def _end_names(ends: Sequence[Series[Point]], name_x: float, top: float, bottom: float) -> Iterator[Markup]:
    """Draw the names of lines to the right of their ends, and connect each name to the end of its line."""
    heights = kept_apart([end.data[1] for end in ends], _TEXT_PX, top + 4, bottom - 4)
    for end, height in zip(ends, heights, strict=True):
        name = text(name_x, height + 4, end.name, class_="name", room_px=_FIGURE_PX - name_x)
        yield tag("g", line(*end.data, name_x - 3, height, "thread"), name, class_=end.css)


def against_tokens(
    metric: MetricInfo, lines: Sequence[Series[dict[str, Interval]]], tokens: dict[str, int], *, percents: bool
) -> Markup | None:
    """Draw ratios to the baseline over the number of tokens, with intervals. Both scales are logarithmic.

    An interval that extends far beyond all ratios is cut at the edge of the panel.
    """
    shown = [each for each in lines if each.data]
    if not shown:
        return None
    width, height, left, top = _FIGURE_PX, 290, 56, 22
    right, bottom = width - 96, height - 52
    low, high = _ratio_range([effect for each in shown for effect in each.data.values()])
    y = _up_is_better(low, high, metric.direction == "lower", top, bottom, log=True)
    x = Scale(min(tokens.values()), max(tokens.values()), left + 26, right - 26, log=True)
    lasts = [(each, *list(each.data.items())[-1]) for each in shown]
    ends = [Series(each.name, each.css, (x(tokens[at]) + 16, y(_ratio(one.value)))) for each, at, one in lasts]
    ticks = [(y(tick), percent(tick - 1, whole=True) if percents else f"{significant(tick)}×") for tick in y.ticks(5)]
    parts = [
        text(left, 11, "up is better", class_="quiet"),
        *_y_axis(ticks, left, right),
        *_token_axis(x, tokens, top, bottom),
        text(right, height - 4, "tokens →", anchor="end", class_="quiet"),
        line(left, y(1), right, y(1), "zero"),
        *(_token_marks(each, tokens, x, y, 6 * (index - (len(shown) - 1) / 2)) for index, each in enumerate(shown)),
        *_end_names(ends, right + 14, top, bottom),
    ]
    return drawing(width, height, f"{metric.label} against the number of tokens, relative to the baseline", parts)


def _ratio(logarithm: float) -> float:
    return math.exp(min(max(logarithm, -_LARGEST_LOG), _LARGEST_LOG))


def _ratio_range(effects: Sequence[Interval]) -> Point:
    ratios = [1.0, *(_ratio(effect.value) for effect in effects)]
    furthest = min(ratios) / _CUT, max(ratios) * _CUT
    ends = [_ratio(end) for effect in effects for end in effect.ends or ()]
    low, high = padded(math.log(min(max(value, furthest[0]), furthest[1])) for value in (*ratios, *ends))
    return math.exp(low), math.exp(high)


def _token_marks(each: Series[dict[str, Interval]], tokens: dict[str, int], x: Scale, y: Scale, aside: float) -> Markup:
    """Draw a line; `aside` is an offset that separates the intervals of several arms."""
    places = [(x(tokens[resolution]) + aside, y(_ratio(one.value))) for resolution, one in each.data.items()]
    marks = [tag("polyline", points=written(places), class_="curve")]
    for (resolution, effect), (at, height) in zip(each.data.items(), places, strict=True):
        if ends := [_ratio(end) for end in effect.ends or ()]:
            reached = [min(max(end, y.low), y.high) for end in ends]
            marks.append(line(at, y(reached[0]), at, y(reached[1]), "reach"))
            marks += [line(at - 2.5, y(end), at + 2.5, y(end), "reach") for end in ends if end in reached]
        title = f"{each.name}: {significant(_ratio(effect.value))}× at {tokens[resolution]:,} tokens"
        marks.append(tag("circle", tag("title", title), cx=at, cy=height, r=4.2, class_="mean"))
    return tag("g", *marks, class_=each.css)


@dataclass(frozen=True)
class Combined:
    """The four arms of an interaction, with the values of seeds and the means, without and with the second part."""

    without_first: tuple[list[float], list[float]]
    with_first: tuple[list[float], list[float]]
    means_without: tuple[float, float]
    means_with: tuple[float, float]
    expected: float
    """The expected mean of the combination if the parts added up."""


def interaction(metric: MetricInfo, parts: tuple[str, str], css: str, data: Combined) -> Markup:
    """Draw the second part's effect without and with the first; the dashed line shows effects that add up."""
    width, height, left, top = _FIGURE_PX, 240, 52, 24
    right, bottom = width - 130, height - 24
    seeds = [value for of in (*data.without_first, *data.with_first) for value in of]
    y = _up_is_better(
        *padded([*seeds, *data.means_without, *data.means_with, data.expected], 0.1, metric.range),
        metric.direction == "lower",
        top,
        bottom,
    )
    ends = left + 0.16 * (right - left), left + 0.84 * (right - left)
    lines = [
        Series("without it", "arm-baseline", (data.without_first, data.means_without)),
        Series(f"with {parts[0]}", css, (data.with_first, data.means_with)),
    ]
    names = [Series(one.name, one.css, (ends[1] + 8, y(one.data[1][1]))) for one in lines]
    expected = line(ends[0], y(data.means_with[0]), ends[1], y(data.expected), "expected")
    marks = [
        text(left, 11, f"{metric.label}, up is better", class_="quiet"),
        *_y_axis(ticks_of(y), left, right),
        *(
            text(at, bottom + 17, words, anchor="middle", class_="tick", room_px=0.66 * (right - left))
            for at, words in zip(ends, ("without", f"with {parts[1]}"), strict=True)
        ),
        tag("g", expected, class_=css),
        *(_effect_line(*one.data, ends, y, one.css) for one in lines),
        *_end_names(names, right + 4, top, bottom),
    ]
    return drawing(width, height, f"{metric.label}: {parts[1]} without and with {parts[0]}", marks)


def _effect_line(
    seeds: tuple[list[float], list[float]], means: tuple[float, float], ends: Point, y: Scale, css: str
) -> Markup:
    dots = [circle(at, y(value), 2.2, "seed") for at, of in zip(ends, seeds, strict=True) for value in of]
    places = [(at, y(mean)) for at, mean in zip(ends, means, strict=True)]
    middle = [circle(*place, 4.6, "mean") for place in places]
    return tag("g", tag("polyline", points=written(places), class_="curve"), *dots, *middle, class_=css)


@dataclass(frozen=True)
class Swept:
    """The scores of an arm over the values of a setting, and the chosen value."""

    points: list[Point]
    chosen: float


def sweep(metric: MetricInfo, key: str, lines: Sequence[Series[Swept]]) -> Markup:
    """Draw the metric over the values of a tuned setting, one line per arm; a large dot marks the chosen value."""
    width, height, left, top = _FIGURE_PX, 270, 52, 22
    right, bottom = width - 112, height - 40
    values = sorted({value for each in lines for value, _ in each.data.points})
    scores = [score for each in lines for _, score in each.data.points]
    log = values[0] > 0 and values[-1] >= 4 * values[0]
    x = Scale(values[0], max(values[-1], values[0] * (1 + 1e-9)), left + 14, right - 14, log=log)
    y = _up_is_better(*padded(scores, 0.12, metric.range), metric.direction == "lower", top, bottom)
    ends = [Series(each.name, each.css, (x(each.data.points[-1][0]) + 8, y(each.data.points[-1][1]))) for each in lines]
    marks = [
        text(left, 11, f"{metric.label}, up is better", class_="quiet"),
        *_y_axis(ticks_of(y), left, right),
        *(line(x(value), top, x(value), bottom, "grid") for value in values),
        *(
            text(at, bottom + 15, name, anchor="middle", class_="tick")
            for at, name in apart([(x(value), significant(value)) for value in values])
        ),
        text(right, height - 6, f"{key} →", anchor="end", class_="quiet"),
        *(_sweep_marks(each, x, y) for each in lines),
        *_end_names(ends, right + 16, top, bottom),
    ]
    return drawing(width, height, f"{metric.label} over {key}", marks)


def _sweep_marks(each: Series[Swept], x: Scale, y: Scale) -> Markup:
    marks = [tag("polyline", points=written([(x(a), y(b)) for a, b in each.data.points]), class_="curve")]
    for value, score in each.data.points:
        title = tag("title", f"{each.name}: {significant(score)} at {significant(value)}")
        radius = 6.0 if value == each.data.chosen else 2.8
        marks.append(tag("circle", title, cx=x(value), cy=y(score), r=radius, class_="mean"))
    return tag("g", *marks, class_=each.css)


def parts(
    label: str, arms: Sequence[Series[dict[str, float]]], ceiling: dict[str, float], possible: Range = ANY_VALUE
) -> Markup:
    """Draw a row for each part, with a dot for each arm at its own height, and with a bar for real images."""
    width, row_px, top, left = _FIGURE_PX, 30, 6, 110
    names = list(dict.fromkeys(part for arm in arms for part in arm.data))
    bottom = top + row_px * len(names)
    shown = [value for arm in arms for value in arm.data.values()] + [ceiling[n] for n in names if n in ceiling]
    x = Scale(*padded(shown, possible=possible), left, width - 12)
    rows = [_part_row(name, arms, ceiling.get(name), x, top + row_px * (i + 0.5)) for i, name in enumerate(names)]
    marks = [*x_axis(x, top, bottom), *(mark for row in rows for mark in row)]
    return drawing(width, bottom + 20, f"{label} by part", marks)


def _part_row(
    part: str, arms: Sequence[Series[dict[str, float]]], ceiling: float | None, x: Scale, y: float
) -> Iterator[Markup]:
    yield text(x.start_px - 10, y + 4, part, anchor="end", class_="name", room_px=x.start_px - 14)
    yield line(x.start_px, y, x.end_px, y, "grid")
    if ceiling is not None and math.isfinite(ceiling):
        yield line(x(ceiling), y - 12, x(ceiling), y + 12, "ceiling")
    lane_px = min(6.0, 22 / len(arms))
    for index, arm in enumerate(arms):
        if part in arm.data:
            lane = y + (index - (len(arms) - 1) / 2) * lane_px
            tooltip = tag("title", f"{arm.name}: {significant(arm.data[part])}")
            dot = tag("circle", tooltip, cx=x(arm.data[part]), cy=lane, r=4.2, class_="mean")
            yield tag("g", dot, class_=arm.css)


def stacked(bars: Mapping[str, Mapping[str, float]], order: Sequence[str]) -> Markup:
    """Draw one bar for each arm, divided into the components in `order`; all bars have the same scale."""
    row_px, longest = 42, max(sum(segments.values()) for segments in bars.values())
    px_per_unit = (_FIGURE_PX - 2) / longest
    rows = [_bar_marks(*bar, order, px_per_unit, row_px * index) for index, bar in enumerate(bars.items())]
    return drawing(_FIGURE_PX, row_px * len(bars), "Where the time goes", rows)


def _bar_marks(
    name: str, segments: Mapping[str, float], order: Sequence[str], px_per_unit: float, top: float
) -> Markup:
    marks, x = [text(0, top + 13, name, class_="name", room_px=_FIGURE_PX)], 0.0
    for index, part in enumerate(order):
        width, colour = segments.get(part, 0.0) * px_per_unit, f"part-{index % PART_COLOURS}"
        written = share(segments.get(part, 0.0) / sum(segments.values()))
        tooltip = tag("title", f"{part}: {written}")
        marks.append(tag("rect", tooltip, x=x, y=top + 19, width=width, height=17, class_=f"segment {colour}"))
        if width > CHARACTER_PX * len(written) + 4:
            marks.append(text(x + width / 2, top + 31.5, written, anchor="middle", class_=f"on-{colour}"))
        x += width
    return tag("g", *marks)


def _token_axis(scale: Scale, tokens: dict[str, int], top: float, bottom: float) -> Iterator[Markup]:
    yield from (line(scale(count), top, scale(count), bottom, "grid") for count in tokens.values())
    for at, label in apart([(scale(count), f"{count:,}\n{name}") for name, count in tokens.items()]):
        count, name = label.split("\n")
        yield text(at, bottom + 15, count, anchor="middle", class_="tick")
        yield text(at, bottom + 29, name, anchor="middle", class_="quiet")


def _y_axis(ticks: Sequence[tuple[float, str]], left: float, right: float) -> Iterator[Markup]:
    for at, label in ticks:
        yield line(left, at, right, at, "grid")
        yield text(left - 7, at + 4, label, anchor="end", class_="tick")
