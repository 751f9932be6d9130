"""The report as one HTML file that needs nothing else: style, figures and images are inside it, and no script.

Names, captions, errors and events come from outside. They reach the page through Jinja's autoescape or through
`svg.tag`, which escapes as well.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from markupsafe import Markup

from tintype.data.image_file import BadImageError, open_image, read_file
from tintype.page import numerals
from tintype.page.template import image_uri, template
from tintype.seams import ANY_VALUE
from tintype.study.report import charts, findings
from tintype.study.report.view import Column, View, columns_of
from tintype.study.results import SPEED, Arm, MetricInfo, RelativeEffect, Run, StudyResults

_LARGEST_PREVIEW_PX = 320
_ARM_COLOURS = 8
_ARXIV = re.compile(r"arXiv:(\d{4}\.\d{4,5}(?:v\d+)?|[a-z-]+(?:\.[A-Z]{2})?/\d{7})\b")


def to_html(results: StudyResults, folder: Path) -> str:
    """Return the page. `folder` is where the paths of the samples start."""
    colours = arm_colours(results)
    page = template(
        "tintype.study.report",
        "report.html.j2",
        plain=findings.plain,
        glyph=findings.glyph,
        verdict_class=charts.verdict_class,
    )
    return page.render(
        results=results,
        findings=findings,
        several=bool(results.resolutions),
        confidence=f"{100 * results.confidence:g} %",
        colours=colours,
        part_colours=charts.PART_COLOURS,
        views=[_HtmlView(one, columns, folder, colours) for one, columns in columns_of(results)],
        token_figures=_token_figures(results, colours),
        speed_name=SPEED,
        link=_link,
    )


@dataclass(frozen=True)
class _HtmlView(View):
    """The results at one resolution, with their figures and samples."""

    folder: Path
    colours: dict[str, str]

    def forest(self, column: Column) -> Markup | None:
        """Draw the differences of all arms on a metric."""
        name, (least, most) = column.info.name, column.info.range
        arms = [arm for arm in self.arms if name in arm.comparisons]
        if not arms:
            return None
        compared = [(findings.titled(arm), arm.comparisons[name]) for arm in arms]
        effects = [
            charts.Effect(title, one.verdict, one.difference, one.low, one.high, one.detectable, one.differences)
            for title, one in compared
        ]
        means = [one.baseline_mean for _, one in compared]
        possible = (None if least is None else least - max(means), None if most is None else most - min(means))
        lower = column.info.direction == "lower"
        return charts.forest(column.info.label, effects, column.decimals, lower, possible)

    @cached_property
    def speed_figure(self) -> Markup | None:
        speed = self.speed.info if self.speed else None
        quality = next((metric for metric in findings.primary_metrics(self.results) if metric != speed), None)
        if speed is None or quality is None or not (clouds := self._clouds(speed, quality)):
            return None
        lower = quality.direction == "lower"
        return charts.scatter(clouds, speed.label, quality.label, lower, possible=quality.range)

    def prompts_figure(self, group: list[tuple[str, Column]]) -> Markup | None:
        """Draw the first two kinds of prompts against each other, for a primary metric."""
        (first, x), (second, y) = ((prompts, column.info) for prompts, column in group[:2])
        if not (x.primary or y.primary) or not (clouds := self._clouds(x, y)):
            return None
        labels = (f"{x.label} on {first}", f"on {second}")
        return charts.scatter(clouds, *labels, x.direction == "lower", same_across=True, possible=x.range)

    def _clouds(self, x: MetricInfo, y: MetricInfo) -> list[charts.Cloud]:
        return [
            charts.Cloud(arm.name, self.colours[arm.name], points)
            for arm in self.results.arms
            if not {x.name, y.name} & set(arm.incomparable) and (points := list(_points(arm, x.name, y.name)))
        ]

    @cached_property
    def curve_figures(self) -> list[tuple[str, Markup]]:
        """Return (caption, figure): the objective's loss twice, whole and its end, then what else was logged."""
        found = []
        names = list(dict.fromkeys(name for arm in self.results.arms for run in arm.runs for name in run.curves))
        for name in sorted(names, key=lambda name: name != "flow"):
            traces = [
                charts.Traces(arm.name, self.colours[arm.name], [r.curves[name] for r in arm.runs if name in r.curves])
                for arm in self.results.arms
            ]
            label = {"flow": "loss of the objective"}.get(name, name.replace("_", " "))
            captions = {label: False, f"{label}, second half": True} if name == "flow" else {label: False}
            drawn = [(caption, charts.curves(label, traces, tail=tail)) for caption, tail in captions.items()]
            found += [(caption, figure) for caption, figure in drawn if figure is not None]
        return found

    @cached_property
    def part_figures(self) -> list[_Parts]:
        known = {metric.name: metric for metric in self.results.metrics}
        names = dict.fromkeys(name for arm in self.results.arms for run in arm.runs for name in run.details)
        found = [self._parts(name, known.get(name)) for name in names]
        return [parts for parts in found if parts is not None]

    def _parts(self, name: str, info: MetricInfo | None) -> _Parts | None:
        compared = [arm for arm in self.results.arms if name not in arm.incomparable]
        arms = [charts.PartValues(a.name, self.colours[a.name], findings.part_means(a, name)) for a in compared]
        parts = list(dict.fromkeys(part for arm in arms for part in arm.values))
        if not parts:
            return None
        reference = self.results.reference.get(name, {})
        label, possible = (info.label, info.range) if info else (name, ANY_VALUE)
        decimals = numerals.decimals_showing(max(abs(value) for arm in arms for value in arm.values.values()) / 10)
        figure = charts.parts(label, arms, reference, possible)
        return _Parts(label, figure, arms, reference, parts, decimals, findings.left_out(self.results, name))

    @cached_property
    def time_shares(self) -> list[tuple[Arm, dict[str, float]]]:
        return [(arm, shares) for arm in self.everyone if (shares := findings.time_shares(arm))]

    @cached_property
    def time_figure(self) -> Markup | None:
        bars = [charts.Bar(arm.name, shares) for arm, shares in self.time_shares]
        return charts.stacked(bars, findings.time_parts(self.results)) if bars else None

    @cached_property
    def samples(self) -> dict[str, _Samples]:
        return {arm.name: self._samples(arm) for arm in self.results.arms}

    def _samples(self, arm: Arm) -> _Samples:
        run: Run | None = next((run for run in arm.runs if run.previews), None)
        return _Samples(f"seed {run.seed}" if run else "no run", self._images(run.previews if run else []))

    @cached_property
    def real_samples(self) -> list[_Image]:
        return self._images(self.results.real_previews)

    def _images(self, paths: list[str]) -> list[_Image]:
        """Return one image for each prompt."""
        count = len(self.results.prompts)
        shown = [_image(self.folder, path) for path in paths[:count]]
        return shown + [_Image(None)] * (count - len(shown))

    @property
    def sampled(self) -> bool:
        return any(image.uri for samples in self.samples.values() for image in samples.images)


def arm_colours(results: StudyResults) -> dict[str, str]:
    """Return the style sheet's class for each arm, by the study's order: an arm has one colour in all figures."""
    named = dict.fromkeys(arm.name for arm in results.arms if arm.role == "arm")
    colours = {name: f"arm-{index % _ARM_COLOURS}" for index, name in enumerate(named)}
    return {arm.name: colours.get(arm.name, f"arm-{arm.role}") for arm in results.arms}


def _token_figures(results: StudyResults, colours: dict[str, str]) -> list[tuple[MetricInfo, Markup]]:
    """Draw the arms against the number of tokens, for each metric that is compared between resolutions."""
    names = {trend.metric for trend in results.trends}
    figures = [(info, _token_figure(results, info, colours)) for info in results.metrics if info.name in names]
    return [(info, figure) for info, figure in figures if figure is not None]


def _token_figure(results: StudyResults, info: MetricInfo, colours: dict[str, str]) -> Markup | None:
    resolutions = findings.token_counts(results)
    lines = [
        charts.TokenLine(
            trend.arm,
            colours[trend.arm],
            [_at_tokens(resolutions[one.resolution], one) for one in trend.effects],
        )
        for trend in results.trends
        if trend.metric == info.name
    ]
    lower, speed = info.direction == "lower", info.name == SPEED
    return charts.against_tokens(info.label, lines, resolutions, lower_is_better=lower, percents=not speed)


def _at_tokens(tokens: int, effect: RelativeEffect) -> charts.AtTokens:
    low, high = (None if end is None else _ratio(end) for end in (effect.low, effect.high))
    return charts.AtTokens(tokens, _ratio(effect.value), low, high)


def _ratio(logarithm: float) -> float:
    """Return the ratio, bounded: an interval of two seeds can reach beyond what a float holds."""
    return math.exp(min(max(logarithm, -50.0), 50.0))


def _points(arm: Arm, x: str, y: str) -> Iterator[tuple[float, float]]:
    for run in arm.runs:
        point = run.metrics.get(x, math.nan), run.metrics.get(y, math.nan)
        if all(map(math.isfinite, point)):
            yield point


@dataclass(frozen=True)
class _Image:
    uri: str | None
    """None where the file is missing or is no image."""
    small: bool = True


@dataclass(frozen=True)
class _Samples:
    """An arm's samples, one for each prompt."""

    source: str
    images: list[_Image]


def _image(folder: Path, path: str) -> _Image:
    """Return an image as a data URI. It is decoded and encoded anew, so nothing but an image gets into the page."""
    try:
        with open_image(read_file(folder / path), path) as file:
            image = file.convert("RGB")
    except (OSError, BadImageError):
        return _Image(None)
    small = max(image.size) <= _LARGEST_PREVIEW_PX / 2
    return _Image(image_uri(image, _LARGEST_PREVIEW_PX, optimize=True), small)


@dataclass(frozen=True)
class _Parts:
    label: str
    figure: Markup
    arms: list[charts.PartValues]
    reference: dict[str, float]
    names: list[str]
    decimals: int
    left_out: str
    """Arms that are not shown, and why; empty where all are."""


def _link(paper: str) -> str | None:
    found = _ARXIV.search(paper)
    return f"https://arxiv.org/abs/{found[1]}" if found else None
