"""Write the report as one self-contained HTML file, which contains style, figures and images.

The page can be read without scripts. Its content security policy allows one script by hash, for a slider and curve
values. Names, captions, errors and events come from outside, so Jinja's autoescape or `svg.tag` escapes them.
"""

from __future__ import annotations

import base64
import json
import math
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from markupsafe import Markup

from tintype.data.image_file import BadImageError, open_image, read_file
from tintype.evaluation.results import WrongWords
from tintype.page import numerals
from tintype.page.forest import forest, verdict_class
from tintype.page.svg import Point
from tintype.page.template import image_uri, inline_script, template
from tintype.seams import ANY_VALUE
from tintype.study import numbers
from tintype.study.notes import costly_part, notes_of
from tintype.study.numbers import collapsed_in, metric_values, primary_metrics, time_shares, titled, token_counts
from tintype.study.picked import LEAD as PICKED_LEAD
from tintype.study.report import along, charts, copies, findings, priority, tuning
from tintype.study.report.charts import Series
from tintype.study.report.view import TRUST_BIAS, TRUST_HEADS, Column, View, parts_of
from tintype.study.results import SPEED, Arm, Interval, MetricInfo, Run, StudyResults
from tintype.study.rows import effect_of, glyph
from tintype.study.trust import is_biased, lead

_LARGEST_PREVIEW_PX = 320
_LARGEST_EARLY_PX = 160
_MOST_EARLY = 6
"""Maximum number of earlier steps with images on a page; the limit keeps the page small."""
SCRIPTS = ("page/marks.js", "study/report/report.js")
_ARM_COLOURS = 8
_NONE_KEPT: Mapping[str, bytes] = MappingProxyType({})
_ARXIV = re.compile(r"arXiv:(\d{4}\.\d{4,5}(?:v\d+)?|[a-z-]+(?:\.[A-Z]{2})?/\d{7})\b")


def to_html(results: StudyResults, folder: Path, kept: Mapping[str, bytes] = _NONE_KEPT) -> str:
    """Return the page. Paths of samples are relative to `folder`; `kept` has the samples whose files were deleted."""
    colours = arm_colours(results)
    script, policy = inline_script(*SCRIPTS)
    filters = {"plain": findings.plain, "glyph": glyph, "verdict_class": verdict_class}
    return template("tintype.study.report", "report.html.j2", **filters).render(
        results=results,
        findings=findings,
        numbers=numbers,
        notes=notes_of(results),
        costly_part=costly_part,
        along=along,
        several=results.several,
        confidence=f"{100 * results.confidence:g} %",
        colours=colours,
        part_colours=charts.PART_COLOURS,
        views=[HtmlView(*parts, folder, kept, colours) for parts in parts_of(results)],
        priority=priority,
        priority_tables=[(one, _gain_figure(one, colours)) for one in priority.tables(results)],
        token_figures=list(_token_figures(results, colours)),
        tuning=tuning,
        sweep_figures=list(_sweep_figures(results, colours)),
        speed_name=SPEED,
        trust_lead=lead(results),
        trust_heads=[*TRUST_HEADS, *([TRUST_BIAS] if is_biased(results) else [])],
        biased=is_biased(results),
        link=paper_link,
        copies=copies,
        copy_rows=copies.rows(results),
        copy_pairs=[(one, _image(folder, one.pair.image, kept)) for one in copies.pairs(results)],
        picked=[(one, _image(folder, one.image, kept)) for one in results.picked],
        picked_lead=PICKED_LEAD,
        script=script,
        script_policy=policy,
    )


class _Image(NamedTuple):
    uri: str | None
    """The image; None if the file is missing or is not an image."""
    small: bool = True
    at: Mapping[int, str] = MappingProxyType({})
    """The same sample at earlier steps, as data URIs by step."""
    wrong: Mapping[int, list[WrongWords]] = MappingProxyType({})
    """Words of the prompt that the sample does not match, by step; unchecked steps have no entry."""

    @property
    def last_wrong(self) -> list[WrongWords] | None:
        return self.wrong[max(self.wrong)] if self.wrong else None

    @property
    def at_json(self) -> str:
        return json.dumps(dict(self.at))

    @property
    def wrong_json(self) -> str:
        return json.dumps({step: [(one.start, one.end, one.words) for one in of] for step, of in self.wrong.items()})


class _Parts(NamedTuple):
    label: str
    figure: Markup
    arms: list[Series[dict[str, float]]]
    reference: dict[str, float]
    names: list[str]
    decimals: int
    left_out: str
    """Hidden arms with the reason, and runs that no mean includes; empty if all arms are shown."""


@dataclass(frozen=True)
class HtmlView(View):
    """The results at one resolution, together with their figures and samples."""

    folder: Path
    kept: Mapping[str, bytes]
    colours: dict[str, str]

    def forest(self, column: Column) -> Markup:
        rows = {titled(arm): (arm, row) for arm in self.arms if (row := column.rows.get(arm.name))}
        return forest(column.info, {name: effect_of(self.results, *of) for name, of in rows.items()})

    def interaction_figures(self) -> Iterator[tuple[str, Markup]]:
        """Yield (pair, figure) of each interaction."""
        arms = {"" if arm.role == "baseline" else arm.name: arm for arm in self.results.arms}
        for row in self.rows_on("interaction"):
            effect, info = row.effect, row.metric
            if effect is not None and effect.expected is not None:
                both, first, second, base = effect.means
                seeds = {one.arm: metric_values(arms[one.arm], info.name) for one in effect.means}
                data = charts.Combined(
                    (seeds[base.arm], seeds[second.arm]),
                    (seeds[first.arm], seeds[both.arm]),
                    (base.value, second.value),
                    (first.value, both.value),
                    effect.expected,
                )
                yield effect.name, charts.interaction(info, (first.arm, second.arm), self.colours[first.arm], data)

    @cached_property
    def speed_figure(self) -> Markup | None:
        speed = self.speed.info if self.speed else None
        quality = next((metric for metric in primary_metrics(self.results) if metric != speed), None)
        if speed is None or quality is None or not (clouds := self._clouds(speed, quality)):
            return None
        lower, collapsed, label = quality.direction == "lower", self._collapsed_points(speed, quality), speed.label
        if self.results.timed_alone:
            steps_s = {arm.name: 1 / arm.step_s for arm in self.results.arms if arm.step_s}
            clouds = [replace(one, data=[(steps_s[one.name], y) for _, y in one.data]) for one in clouds]
            collapsed = {name: [(steps_s[name], y) for _, y in points] for name, points in collapsed.items()}
            label = "steps a second, alone on the device"
        return charts.scatter(clouds, label, quality.label, lower, possible=quality.range, collapsed=collapsed)

    def prompts_figure(self, group: list[tuple[str, Column]]) -> Markup | None:
        """Draw the scores on the first two kinds of prompts against each other, for a primary metric."""
        (first, x), (second, y) = ((prompts, column.info) for prompts, column in group[:2])
        if not (x.primary or y.primary) or not (clouds := self._clouds(x, y)):
            return None
        labels, collapsed = (f"{x.label} on {first}", f"on {second}"), self._collapsed_points(x, y)
        lower = x.direction == "lower"
        return charts.scatter(clouds, *labels, lower, same_across=True, possible=x.range, collapsed=collapsed)

    def _clouds(self, x: MetricInfo, y: MetricInfo) -> list[Series[list[Point]]]:
        """Return the runs of each arm, without collapsed runs."""
        compared = [arm for arm in self.results.arms if not {x.name, y.name} & set(arm.incomparable)]
        known = [_points(arm, x, y, {run.seed for run in arm.runs} - self._collapsed(arm, x, y)) for arm in compared]
        return [self._series(arm, points) for arm, points in zip(compared, known, strict=True) if points]

    def _collapsed(self, arm: Arm, x: MetricInfo, y: MetricInfo) -> set[int]:
        return collapsed_in(self.results, arm, x.name, y.name)

    def _collapsed_points(self, x: MetricInfo, y: MetricInfo) -> dict[str, list[Point]]:
        return {arm.name: _points(arm, x, y, self._collapsed(arm, x, y)) for arm in self.results.arms}

    def _series(self, arm: Arm, data: charts.Data) -> Series[charts.Data]:
        return Series(arm.name, self.colours[arm.name], data)

    @cached_property
    def curve_figures(self) -> list[tuple[str, Markup]]:
        """Return (caption, figure) of each logged curve; the objective's loss comes first, also as its second half."""
        found = []
        names = list(dict.fromkeys(name for arm in self.results.arms for run in arm.runs for name in run.curves))
        for name in sorted(names, key=lambda name: name != "flow"):
            arms = self.results.arms
            traces = [self._series(arm, [run.curves[name] for run in arm.runs if name in run.curves]) for arm in arms]
            label = findings.curve_label(name, names)
            captions = {label: False, f"{label}, second half": True} if name == "flow" else {label: False}
            drawn = [(caption, charts.curves(label, traces, tail=tail)) for caption, tail in captions.items()]
            found += [(caption, figure) for caption, figure in drawn if figure is not None]
        return found

    def along_figures(self, metric: MetricInfo) -> list[tuple[str, Markup]]:
        """Return (caption, figure) of a metric during training, over steps and over seconds."""
        arms = [arm for arm in self.results.arms if metric.name not in arm.incomparable]
        found = []
        for place, over_seconds in (("steps", False), ("training seconds", True)):
            bands = [
                self._series(arm, along.band(self.results, arm, metric.name, over_seconds=over_seconds)) for arm in arms
            ]
            found.append((f"over {place}", charts.quality(metric.label, [one for one in bands if one.data], place)))
        return found

    @cached_property
    def part_figures(self) -> list[_Parts]:
        names = dict.fromkeys(name for arm in self.results.arms for run in arm.runs for name in run.details)
        return [parts for parts in map(self._parts, names) if parts is not None]

    def _parts(self, name: str) -> _Parts | None:
        compared = [arm for arm in self.results.arms if name not in arm.incomparable]
        collapsed = {arm.name: self.results.collapsed(arm, name) for arm in compared}
        arms = [self._series(arm, findings.part_means(arm, name, collapsed[arm.name])) for arm in compared]
        parts = list(dict.fromkeys(part for arm in arms for part in arm.data))
        if not parts:
            return None
        reference = self.results.resolution.reference.get(name, {})
        info = next((metric for metric in self.results.metrics if metric.name == name), None)
        label, possible = (info.label, info.range) if info else (name, ANY_VALUE)
        decimals = numerals.decimals_showing(max(abs(value) for arm in arms for value in arm.data.values()) / 10)
        figure = charts.parts(label, arms, reference, possible)
        left_out = [findings.left_out(self.results, name), findings.collapsed_left_out(self.results, name)]
        return _Parts(label, figure, arms, reference, parts, decimals, " ".join(filter(None, left_out)))

    @cached_property
    def time_shares(self) -> list[tuple[Arm, dict[str, float]]]:
        return [(arm, shares) for arm in self.everyone if (shares := time_shares(arm))]

    @cached_property
    def time_figure(self) -> Markup | None:
        bars = {arm.name: shares for arm, shares in self.time_shares}
        return charts.stacked(bars, findings.time_parts(self.results)) if bars else None

    @cached_property
    def samples(self) -> dict[str, tuple[str, list[_Image]]]:
        """Return (run, one image for each prompt), by arm."""
        first = {arm.name: arm.sampled_run for arm in self.results.arms}
        return {
            name: (f"seed {run.seed}" if run else "no run", self._samples(run) if run else self._images([]))
            for name, run in first.items()
        }

    @cached_property
    def steps(self) -> list[int]:
        """Return the steps of the slider, including the last step; empty if no earlier step has images."""
        runs = [run for arm in self.results.arms if (run := arm.sampled_run)]
        early = sorted({one.step for run in runs for one in run.along[:-1] if one.previews})
        if not early or not any(image.at for _, images in self.samples.values() for image in images):
            return []
        return [*_spread(early), max(run.along[-1].step for run in runs if run.along)]

    def _samples(self, run: Run) -> list[_Image]:
        """Return the samples of a run at its last and earlier steps, with the words that each sample does not match."""
        images, last = self._images(run.previews), run.along[-1].step if run.along else 0
        early = [one for one in run.along[:-1] if one.previews]
        early = [one for one in early if one.step in _spread([other.step for other in early])]
        found = []
        for index, image in enumerate(images):
            at = {
                one.step: _early(self.folder, one.previews[index], self.kept)
                for one in early
                if index < len(one.previews)
            }
            wrong = {one.step: one.wrong[index] for one in early if index < len(one.wrong)}
            wrong |= {last: run.wrong[index]} if index < len(run.wrong) else {}
            found.append(image._replace(at={step: uri for step, uri in at.items() if uri}, wrong=wrong))
        return found

    @cached_property
    def real_samples(self) -> list[_Image]:
        return self._images(self.results.resolution.real_previews)

    def _images(self, paths: list[str]) -> list[_Image]:
        count = len(self.results.resolution.prompts)
        shown = [_image(self.folder, path, self.kept) for path in paths[:count]]
        return shown + [_Image(None)] * (count - len(shown))

    @property
    def is_read(self) -> bool:
        """Return whether the samples were checked against the words of their prompts."""
        return any(image.wrong for _, images in self.samples.values() for image in images)

    @property
    def sampled(self) -> bool:
        return any(image.uri for _, images in self.samples.values() for image in images)


def _points(arm: Arm, x: MetricInfo, y: MetricInfo, seeds: Collection[int]) -> list[Point]:
    """Return pairs of values of the runs with these seeds, for runs that have both values."""
    runs = [run.metrics for run in arm.runs if run.seed in seeds]
    points = [(metrics.get(x.name, math.nan), metrics.get(y.name, math.nan)) for metrics in runs]
    return [point for point in points if all(map(math.isfinite, point))]


def arm_colours(results: StudyResults) -> dict[str, str]:
    """Return the CSS class of each arm in the study's order, so that an arm has the same colour in all figures."""
    named = dict.fromkeys(arm.name for arm in results.arms if arm.role == "arm")
    colours = {name: f"arm-{index % _ARM_COLOURS}" for index, name in enumerate(named)}
    return {arm.name: colours.get(arm.name, f"arm-{arm.role}") for arm in results.arms}


def _gain_figure(table: priority.Table, colours: dict[str, str]) -> Markup:
    """Draw gain over cost for the baseline and for the arms with both values."""
    of_baseline = Interval(value=0.0)
    return charts.gains_at_costs(
        table.metric.label,
        [
            Series(row.arm, colours[row.arm], charts.GainAtCost(row.cost, gain, bool(row.dominated_by)))
            for row in table.rows
            if (gain := of_baseline if table.arm(row).role == "baseline" else row.gain) is not None
            and row.cost is not None
        ],
    )


def _token_figures(results: StudyResults, colours: dict[str, str]) -> Iterator[tuple[MetricInfo, Markup]]:
    """Draw the arms over the number of tokens, for each metric that is compared between resolutions."""
    for info in results.metrics:
        trends = [trend for trend in results.trends if trend.metric == info.name]
        lines = [Series(trend.arm, colours[trend.arm], trend.effects) for trend in trends]
        figure = charts.against_tokens(info, lines, token_counts(results), percents=info.name != SPEED)
        if figure is not None:
            yield info, figure


def _sweep_figures(results: StudyResults, colours: dict[str, str]) -> Iterator[Markup]:
    """Draw the scores over the values of each tuned setting, with one figure for each resolution."""
    if (tuned := results.tuning) is None:
        return
    metric = tuning.tuned_metric(results, tuned)
    for key in tuned.sweeps[0].points[0].values:
        found = tuning.lines(results, tuned, key)
        series = [
            Series(tuning.label(one.sweep), colours[one.sweep.arm], charts.Swept(one.points, one.chosen))
            for one in found
        ]
        if series:
            yield charts.sweep(metric, key, series)


def _image(folder: Path, path: str, kept: Mapping[str, bytes] = _NONE_KEPT) -> _Image:
    """Return an image as a data URI, encoded again so that nothing but an image gets into the page."""
    try:
        content = kept[path] if path in kept else read_file(folder / path)
        with open_image(content, path) as file:
            image = file.convert("RGB")
    except (OSError, BadImageError):
        return _Image(None)
    small = max(image.size) <= _LARGEST_PREVIEW_PX / 2
    return _Image(image_uri(image, _LARGEST_PREVIEW_PX, optimize=True), small)


def _early(folder: Path, path: str, kept: Mapping[str, bytes]) -> str:
    """Return a small data URI of an earlier step's image, or ''. A kept image is copied, to lose no quality."""
    try:
        content = kept[path] if path in kept else read_file(folder / path)
        with open_image(content, path) as file:
            if path in kept and file.format == "WEBP":
                return f"data:image/webp;base64,{base64.b64encode(content).decode('ascii')}"
            image = file.convert("RGB")
    except (OSError, BadImageError):
        return ""
    return image_uri(image, _LARGEST_EARLY_PX, "webp", quality=70, method=6)


def _spread(steps: list[int]) -> list[int]:
    """Return a subset of the steps that fits on a page, evenly chosen."""
    if len(steps) <= _MOST_EARLY:
        return steps
    return [steps[round(index * (len(steps) - 1) / (_MOST_EARLY - 1))] for index in range(_MOST_EARLY)]


def paper_link(paper: str) -> str | None:
    """Return the URL of a paper on arXiv; None for other papers."""
    found = _ARXIV.search(paper)
    return f"https://arxiv.org/abs/{found[1]}" if found else None
