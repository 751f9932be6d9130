"""The report as one HTML file that needs nothing else: style, figures and images are inside it, and no script.

Names, captions, errors and events come from outside. They reach the page through Jinja's autoescape or through
`svg.tag`, which escapes as well.
"""

from __future__ import annotations

import base64
import io
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined, Template
from markupsafe import Markup

from tintype.data.image_file import BadImageError, open_image, read_file
from tintype.page import numerals
from tintype.seams import ANY_VALUE
from tintype.study.report import charts, findings
from tintype.study.results import SPEED, Arm, Comparison, MetricInfo, Results, Run, Trend

_LARGEST_PREVIEW_PX = 320
_ARM_COLOURS = 8
_ARXIV = re.compile(r"arXiv:(\d{4}\.\d{4,5}(?:v\d+)?|[a-z-]+(?:\.[A-Z]{2})?/\d{7})\b")


def to_html(results: Results, folder: Path) -> str:
    """`folder` is where the paths of the samples start."""
    style = (files("tintype.page") / "style.css").read_text(encoding="utf-8")
    return _template().render(style=Markup(style), **_page(results, folder))


@cache
def _template() -> Template:
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters.update(
        share=numerals.share,
        fixed=numerals.fixed,
        significant=numerals.significant,
        duration=numerals.duration,
        count=numerals.count,
        plain=findings.plain,
        glyph=findings.glyph,
        verdict_class=charts.verdict_class,
    )
    return environment.from_string(_part_of_the_page("template.html.j2"))


def _part_of_the_page(name: str) -> str:
    return (files("tintype.study.report") / name).read_text(encoding="utf-8")


def _page(results: Results, folder: Path) -> dict[str, Any]:
    colours = arm_colours(results)
    views = [_view(view, folder, colours) for view in results.by_resolution()]
    return {
        "results": results,
        "facts": list(_facts(results)),
        "made_with": findings.made_with(results),
        "intervals": findings.interval_kinds(results),
        "notes": findings.notes(results),
        "controls": findings.differing_controls(results),
        "lost": findings.lost_runs(results),
        "one_kind_of_prompt": findings.one_kind_of_prompt(results),
        "run_count": sum(len(arm.runs) for arm in results.arms),
        "confidence": f"{100 * results.confidence:g} %",
        "colours": colours,
        "several": bool(results.resolutions),
        "views": views,
        "sampled": any(image.uri for view in views for samples in view["samples"].values() for image in samples.images),
        "tokens": _tokens(results, colours),
        "part_colours": charts.PART_COLOURS,
        "latents": findings.latents_rows(results),
        "cards": findings.distinct_arms(results),
        "papers": {arm.name: [(paper, _link(paper)) for paper in arm.papers] for arm in results.arms},
        "environment": findings.environment(results),
        "repeatability": findings.repeatability(results),
        "events": [(arm, run, event, findings.event_details(event)) for arm, run, event in findings.events(results)],
    }


def _view(results: Results, folder: Path, colours: dict[str, str]) -> dict[str, Any]:
    """What the page shows of one resolution."""
    metrics = [_column(results, metric) for metric in results.metrics]
    primary = {metric.name for metric in findings.primary_metrics(results)}
    ranked, baseline = findings.ranked_arms(results), findings.baseline_of(results)
    return {
        "resolution": baseline.resolution,
        "token_count": baseline.tokens,
        "plan": results.plan,
        "metrics": metrics,
        "primary": [column for column in metrics if column.info.name in primary],
        "others": [column for column in metrics if column.info.name not in primary],
        "speed": next((column for column in metrics if column.info.name == SPEED), None),
        "tests": {arm.name: findings.test_words(results, arm) for arm in ranked},
        "by_prompts": _by_prompts(results, metrics, colours),
        "listed": results.arms,
        "arms": ranked,
        "everyone": [baseline, *ranked],
        "speed_figure": _speed_figure(results, colours),
        "curve_figures": list(_curve_figures(results, colours)),
        "prompts": results.prompts,
        "samples": {arm.name: _samples(results.prompts, _first_with_previews(arm), folder) for arm in results.arms},
        "real_samples": [_image(folder, results.real_previews, index) for index in range(len(results.prompts))],
        "part_figures": list(_part_figures(results, colours)),
        "costs": [_cost(arm) for arm in [baseline, *ranked]],
        "time_parts": findings.time_parts(results),
        "time_shares": [(arm, shares) for arm in [baseline, *ranked] if (shares := findings.time_shares(arm))],
        "time_figure": _time_figure(results),
        "time_words": {arm.name: findings.time_words(arm) for arm in results.arms},
    }


@dataclass(frozen=True)
class _ByPrompts:
    """One metric under each kind of prompts."""

    columns: list[tuple[str, _Column]]
    figure: Markup | None
    """The first two kinds against each other, of a primary metric."""


def _by_prompts(results: Results, columns: list[_Column], colours: dict[str, str]) -> list[_ByPrompts]:
    named = {column.info.name: column for column in columns}
    found = []
    for group in findings.metrics_by_prompts(results):
        beside = [(prompts, named[metric.name]) for prompts, metric in group]
        found.append(_ByPrompts(beside, _prompts_figure(results, group, colours)))
    return found


def _prompts_figure(results: Results, group: list[tuple[str, MetricInfo]], colours: dict[str, str]) -> Markup | None:
    (first, x), (second, y) = group[:2]
    clouds = [
        charts.Cloud(arm.name, colours[arm.name], points)
        for arm in results.arms
        if not {x.name, y.name} & set(arm.incomparable) and (points := list(_points(arm, x.name, y.name)))
    ]
    if not clouds or not (x.primary or y.primary):
        return None
    labels = (f"{x.label} on {first}", f"on {second}")
    return charts.scatter(clouds, *labels, x.direction == "lower", same_across=True, possible=x.range)


def arm_colours(results: Results) -> dict[str, str]:
    """The style sheet's class for each arm. The study's order decides, so an arm keeps its colour in every figure."""
    named = dict.fromkeys(arm.name for arm in results.arms if arm.role == "arm")
    colours = {name: f"arm-{index % _ARM_COLOURS}" for index, name in enumerate(named)}
    return {arm.name: colours.get(arm.name, f"arm-{arm.role}") for arm in results.arms}


def _facts(results: Results) -> Iterator[tuple[str, str]]:
    """(number, what it counts), for the head of the page."""
    runs = [run for arm in results.arms for run in arm.runs]
    arms = [arm.role for arm in results.by_resolution()[0].arms]
    yield str(arms.count("arm")), "arm against a baseline" if arms.count("arm") == 1 else "arms against a baseline"
    if "control" in arms:
        yield str(arms.count("control")), "control"
    if results.resolutions:
        yield str(len(results.resolutions)), "resolutions"
    yield str(len(results.seeds)), "seeds each" if len(results.seeds) > 1 else "seed each"
    yield str(sum(run.state == "done" for run in runs)), "runs done"
    yield numerals.duration(sum(run.train_s for run in runs)), "of training"


@dataclass(frozen=True)
class _Cell:
    """One metric of one arm, in writing."""

    verdict: str
    words: str
    mean: str
    difference: str
    interval: str
    relative: str
    p: str
    p_adjusted: str
    detectable: str
    too_few_seeds: bool
    sampling: str
    """The part of the difference's error that more images would remove."""
    values: str
    """Of each seed."""


@dataclass(frozen=True)
class _Column:
    """One metric: the baseline's values, each arm's cell, and the forest plot of all arms."""

    info: MetricInfo
    baseline_mean: str
    baseline_spread: str
    baseline_values: str
    real: str | None
    """The same measurement on real images, where there is one."""
    cells: dict[str, _Cell]
    forest: Markup | None
    apart: dict[str, _Apart]
    """Arms that are not compared."""


@dataclass(frozen=True)
class _Apart:
    mean: str
    short: str
    reason: str


def _column(results: Results, metric: MetricInfo) -> _Column:
    baseline = findings.baseline_of(results)
    decimals = findings.metric_decimals(results, metric.name)
    compared = [arm for arm in findings.ranked_arms(results) if metric.name in arm.comparisons]
    values = findings.metric_values(baseline, metric.name)
    spread = findings.spread_of(values)
    real = results.reference.get(metric.name, {}).get("overall")
    return _Column(
        info=metric,
        real=None if real is None else numerals.fixed(real, decimals),
        baseline_mean=numerals.fixed(findings.mean_of(values), decimals),
        baseline_spread="" if spread is None else f"± {numerals.fixed(spread, decimals)}",
        baseline_values=_seed_values(baseline, metric, decimals),
        cells={arm.name: _cell(arm, metric, decimals) for arm in compared},
        forest=_forest(metric, compared, decimals) if compared else None,
        apart={arm.name: _apart(arm, metric, decimals) for arm in results.arms if metric.name in arm.incomparable},
    )


def _forest(metric: MetricInfo, arms: list[Arm], decimals: int) -> Markup:
    effects = [_effect(arm, arm.comparisons[metric.name]) for arm in arms]
    means = [arm.comparisons[metric.name].baseline_mean for arm in arms]
    least, most = metric.range
    possible = (None if least is None else least - max(means), None if most is None else most - min(means))
    return charts.forest(metric.label, effects, decimals, metric.direction == "lower", possible)


def _apart(arm: Arm, metric: MetricInfo, decimals: int) -> _Apart:
    return _Apart(
        mean=numerals.fixed(findings.mean_of(findings.metric_values(arm, metric.name)), decimals),
        short=findings.short_reason(arm, metric.name),
        reason=arm.incomparable[metric.name],
    )


def _cell(arm: Arm, metric: MetricInfo, decimals: int) -> _Cell:
    comparison = arm.comparisons[metric.name]
    return _Cell(
        verdict=comparison.verdict,
        words=comparison.words,
        mean=numerals.fixed(comparison.mean, decimals),
        difference=numerals.fixed(comparison.difference, decimals, signed=True),
        interval=numerals.interval(comparison.low, comparison.high, decimals),
        relative=numerals.percent(findings.relative(comparison)),
        p=numerals.probability(comparison.p),
        p_adjusted=numerals.probability(comparison.p_adjusted),
        detectable=findings.detectable_words(metric, comparison, decimals),
        too_few_seeds=findings.too_few_seeds(metric, comparison),
        sampling=numerals.fixed(comparison.sampling_error, decimals),
        values=_seed_values(arm, metric, decimals),
    )


def _seed_values(arm: Arm, metric: MetricInfo, decimals: int) -> str:
    return " · ".join(numerals.fixed(run.metrics.get(metric.name), decimals) for run in arm.runs)


def _effect(arm: Arm, comparison: Comparison) -> charts.Effect:
    return charts.Effect(
        name=findings.titled(arm),
        verdict=comparison.verdict,
        difference=comparison.difference,
        low=comparison.low,
        high=comparison.high,
        detectable=comparison.detectable,
        seeds=comparison.differences,
    )


@dataclass(frozen=True)
class _TrendRow:
    """What more tokens do to one arm's effect on one metric, in writing."""

    trend: Trend
    metric: MetricInfo
    verdict: str
    words: str
    at_fewest: str
    at_most: str
    change: str
    interval: str
    p_adjusted: str
    detectable: str


@dataclass(frozen=True)
class _Tokens:
    """The arms against the number of tokens."""

    counts: list[int]
    figures: list[tuple[MetricInfo, Markup]]
    rows: list[_TrendRow]
    undefined: list[str]
    """Why some have no relative effect."""


def _tokens(results: Results, colours: dict[str, str]) -> _Tokens | None:
    if not results.resolutions:
        return None
    infos = [metric for metric in results.metrics if any(trend.metric == metric.name for trend in results.trends)]
    compared = findings.compared_trends(results)
    figures = [(info, _token_figure(results, info, colours)) for info in infos]
    return _Tokens(
        counts=list(findings.token_counts(results).values()),
        figures=[(info, figure) for info, figure in figures if figure is not None],
        rows=[_trend_row(trend, info) for trend, info in compared],
        undefined=list(
            dict.fromkeys(one.undefined for one, _ in compared if findings.trend_verdict(one) == "not defined")
        ),
    )


def _token_figure(results: Results, info: MetricInfo, colours: dict[str, str]) -> Markup | None:
    resolutions = findings.token_counts(results)
    lines = [
        charts.TokenLine(
            trend.arm,
            colours[trend.arm],
            [
                charts.AtTokens(
                    resolutions[one.resolution],
                    _ratio(one.value),
                    None if one.low is None else _ratio(one.low),
                    None if one.high is None else _ratio(one.high),
                )
                for one in trend.effects
            ],
        )
        for trend in results.trends
        if trend.metric == info.name
    ]
    lower, speed = info.direction == "lower", info.name == SPEED
    return charts.against_tokens(info.label, lines, resolutions, lower_is_better=lower, percents=not speed)


def _ratio(logarithm: float) -> float:
    """An interval of two seeds can reach beyond what a float holds; no figure shows that much of it."""
    return math.exp(min(max(logarithm, -50.0), 50.0))


def _trend_row(trend: Trend, metric: MetricInfo) -> _TrendRow:
    verdict, one = findings.trend_verdict(trend), trend.comparison
    at_fewest, at_most = findings.effects_at_ends(trend)
    return _TrendRow(
        trend=trend,
        metric=metric,
        verdict=verdict,
        words=findings.trend_words(trend, metric),
        at_fewest=at_fewest,
        at_most=at_most,
        change=findings.log_percent(one.difference) if one else numerals.UNKNOWN,
        interval=findings.log_interval(one.low, one.high) if one else "",
        p_adjusted=numerals.probability(one.p_adjusted if one else None),
        detectable=findings.log_detectable(one) if one else numerals.UNKNOWN,
    )


def _speed_figure(results: Results, colours: dict[str, str]) -> Markup | None:
    speed = next((metric for metric in results.metrics if metric.name == SPEED), None)
    quality = next((metric for metric in findings.primary_metrics(results) if metric != speed), None)
    if speed is None or quality is None:
        return None
    clouds = [
        charts.Cloud(arm.name, colours[arm.name], points)
        for arm in results.arms
        if quality.name not in arm.incomparable and (points := list(_points(arm, speed.name, quality.name)))
    ]
    lower = quality.direction == "lower"
    return charts.scatter(clouds, speed.label, quality.label, lower, possible=quality.range) if clouds else None


def _points(arm: Arm, x: str, y: str) -> Iterator[tuple[float, float]]:
    for run in arm.runs:
        point = run.metrics.get(x, math.nan), run.metrics.get(y, math.nan)
        if all(map(math.isfinite, point)):
            yield point


def _curve_figures(results: Results, colours: dict[str, str]) -> Iterator[tuple[str, Markup]]:
    """(caption, figure): the objective's loss twice, whole and its end, then whatever else was logged."""
    names = list(dict.fromkeys(name for arm in results.arms for run in arm.runs for name in run.curves))
    for name in sorted(names, key=lambda name: name != "flow"):
        traces = [
            charts.Traces(arm.name, colours[arm.name], [run.curves[name] for run in arm.runs if name in run.curves])
            for arm in results.arms
        ]
        label = {"flow": "loss of the objective"}.get(name, name.replace("_", " "))
        views = [(label, False), (f"{label}, second half", True)] if name == "flow" else [(label, False)]
        for caption, tail in views:
            figure = charts.curves(label, traces, tail=tail)
            if figure is not None:
                yield caption, figure


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


def _samples(prompts: list[str], run: Run | None, folder: Path) -> _Samples:
    previews = run.previews if run else []
    images = [_image(folder, previews, index) for index in range(len(prompts))]
    return _Samples(f"seed {run.seed}" if run else "no run", images)


def _first_with_previews(arm: Arm) -> Run | None:
    return next((run for run in arm.runs if run.previews), None)


def _image(folder: Path, paths: list[str], index: int) -> _Image:
    """Return an image as a data URI. It is decoded and encoded anew, so nothing but an image gets into the page."""
    if index >= len(paths):
        return _Image(None)
    try:
        with open_image(read_file(folder / paths[index]), paths[index]) as file:
            image = file.convert("RGB")
    except (OSError, BadImageError):
        return _Image(None)
    small = max(image.size) <= _LARGEST_PREVIEW_PX / 2
    image.thumbnail((_LARGEST_PREVIEW_PX, _LARGEST_PREVIEW_PX))
    content = io.BytesIO()
    image.save(content, "PNG", optimize=True)
    return _Image("data:image/png;base64," + base64.b64encode(content.getvalue()).decode("ascii"), small)


@dataclass(frozen=True)
class _Parts:
    label: str
    figure: Markup
    arms: list[charts.PartValues]
    reference: dict[str, float]
    names: list[str]
    decimals: int
    left_out: str
    """Which arms are not shown, and why; empty where all are."""


def _part_figures(results: Results, colours: dict[str, str]) -> Iterator[_Parts]:
    known = {metric.name: metric for metric in results.metrics}
    names = dict.fromkeys(name for arm in results.arms for run in arm.runs for name in run.details)
    for name in names:
        compared = [arm for arm in results.arms if name not in arm.incomparable]
        arms = [charts.PartValues(a.name, colours[a.name], findings.part_means(a, name)) for a in compared]
        info, reference = known.get(name), results.reference.get(name, {})
        label, possible = (info.label, info.range) if info else (name, ANY_VALUE)
        parts = list(dict.fromkeys(part for arm in arms for part in arm.values))
        if parts:
            largest = max(abs(value) for arm in arms for value in arm.values.values())
            decimals = numerals.decimals_showing(largest / 10)
            figure = charts.parts(label, arms, reference, possible)
            yield _Parts(label, figure, arms, reference, parts, decimals, findings.left_out(results, name))


@dataclass(frozen=True)
class _Cost:
    arm: Arm
    parameters: int
    train_s: float
    evaluate_s: float
    images_per_s: float | None


def _cost(arm: Arm) -> _Cost | None:
    """Means over the runs that were done; None where none was."""
    done = [run for run in arm.runs if run.state == "done"]
    if not done:
        return None
    return _Cost(
        arm=arm,
        parameters=max(run.parameters for run in done),
        train_s=sum(run.train_s for run in done) / len(done),
        evaluate_s=sum(run.evaluate_s for run in done) / len(done),
        images_per_s=findings.mean_of(findings.metric_values(arm, SPEED)),
    )


def _time_figure(results: Results) -> Markup | None:
    parts = findings.time_parts(results)
    arms = [findings.baseline_of(results), *findings.ranked_arms(results)]
    bars = [charts.Bar(arm.name, shares) for arm in arms if (shares := findings.time_shares(arm))]
    return charts.stacked(bars, parts) if bars else None


def _link(paper: str) -> str | None:
    found = _ARXIV.search(paper)
    return f"https://arxiv.org/abs/{found[1]}" if found else None
