"""The report in Markdown: the same findings without figures, for a pull request or a terminal."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from tintype.page import numerals
from tintype.study.report import findings
from tintype.study.results import SPEED, Arm, Comparison, MetricInfo, Results, Trend

_MEANINGFUL = re.compile(r"([\\|`*]|\](?=[(\[]))")


def to_markdown(results: Results) -> str:
    sections = [
        _head(results),
        *([_by_prompts(results, groups)] if (groups := findings.metrics_by_prompts(results)) else []),
        *([_tokens(results)] if results.resolutions else []),
        *(_metric_section(results, metric) for metric in results.metrics),
        *([_times(results)] if any(map(findings.time_shares, results.arms)) else []),
        _changes(results),
        *([_tokenizers(rows)] if (rows := findings.latents_rows(results)) else []),
        _definitions(results),
        _environment(results),
        _events(results),
    ]
    return "\n\n".join("\n".join(section) for section in sections) + "\n"


def escaped(words: str) -> str:
    """Text that stays text, on one line, in a table's cell as elsewhere."""
    one_line = " ".join(words.split())
    return _MEANINGFUL.sub(r"\\\1", one_line).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """The cells are escaped here; they must not be before."""
    yield _row(heads)
    yield "|" + " --- |" * len(heads)
    yield from (_row(row) for row in rows)


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(escaped(cell) for cell in cells) + " |"


def _head(results: Results) -> Iterator[str]:
    yield f"# {escaped(results.name)}\n"
    yield f"{escaped(results.question)}\n"
    yield from (f"> **{escaped(warning)}**\n" for warning in _warnings(results))
    yield from _answer(results)


def _answer(results: Results) -> Iterator[str]:
    """The arms, best first, with their verdicts; then what made them."""
    primary = findings.primary_metrics(results)
    kinds = findings.interval_kinds(results)
    order = f"Best first by {primary[0].label}. " if primary else ""
    brackets = f", in brackets the {'; or '.join(kinds)}" if kinds else ""
    yield escaped(f"{order}Numbers are differences from the baseline{brackets}.") + "\n"
    rows = [
        [
            *_where(arm),
            findings.titled(arm),
            *(_mean_or_verdict(results, arm, metric) for metric in primary),
            _speed_cost(arm),
            _summary(arm),
        ]
        for view in results.by_resolution()
        for arm in (findings.baseline_of(view), *findings.ranked_arms(view))
    ]
    heads = [*_where_heads(results), "Arm", *(_headed(metric) for metric in primary), "Speed", "What it does"]
    yield from _table(heads, rows)
    yield ""
    yield from (f"- {escaped(note)}" for note in findings.notes(results))
    yield ""
    made = findings.made_with(results)
    yield from _table(
        ["Made with", ""], ([key, words.replace("\n", "; then ") or "not recorded"] for key, words in made.items())
    )


def _mean_or_verdict(results: Results, arm: Arm, metric: MetricInfo) -> str:
    decimals = findings.metric_decimals(results, metric.name)
    if arm.role == "baseline":
        return _mean_and_spread(arm, metric, decimals)
    comparison = arm.comparisons.get(metric.name)
    few = comparison is not None and findings.too_few_seeds(metric, comparison)
    return _short(results, arm, metric) + (f" ({findings.TOO_FEW_SEEDS} to see a change)" if few else "")


def _speed_cost(arm: Arm) -> str:
    """The speed of the baseline, and of an arm relative to it."""
    if arm.role == "baseline":
        mean = findings.mean_of(findings.metric_values(arm, SPEED))
        return "" if mean is None else f"{numerals.significant(mean, 4)} images/s"
    comparison = arm.comparisons.get(SPEED)
    return f"{numerals.percent(findings.relative(comparison))} ({comparison.words})" if comparison else ""


def _warnings(results: Results) -> Iterator[str]:
    if results.sketch:
        yield "Sketch: one seed, so no spread, no interval, no verdict."
    if findings.differing_controls(results):
        yield "The control differs: treat this study's verdicts with suspicion."
    if note := findings.one_kind_of_prompt(results):
        yield f"{note}."
    for arm, run in findings.lost_runs(results):
        yield f"Run {run.state}: {arm.label}, seed {run.seed}" + (f" – {run.error}" if run.error else "")


def _by_prompts(results: Results, groups: Sequence[Sequence[tuple[str, MetricInfo]]]) -> Iterator[str]:
    """Each kind of prompt beside the others, in a study whose arms read other captions."""
    yield "## By prompts\n"
    yield (
        "Some arms read other captions than the baseline, and a model does best on prompts like the captions that it "
        "learnt from. Each kind of prompt is compared with the baseline by itself.\n"
    )
    kinds = list(dict.fromkeys(prompts for group in groups for prompts, _ in group))
    rows = [
        [*_where(arm), group[0][1].label, findings.titled(arm), *_by_kind(results, arm, dict(group), kinds)]
        for group in groups
        for view in results.by_resolution()
        for arm in (findings.baseline_of(view), *findings.ranked_arms(view))
    ]
    yield from _table([*_where_heads(results), "Metric", "Arm", *kinds], rows)


def _by_kind(results: Results, arm: Arm, metrics: dict[str, MetricInfo], kinds: Sequence[str]) -> Iterator[str]:
    for kind in kinds:
        yield _mean_and_verdict(results, arm, metrics[kind]) if kind in metrics else ""


def _mean_and_verdict(results: Results, arm: Arm, metric: MetricInfo) -> str:
    decimals = findings.metric_decimals(results, metric.name)
    mean = numerals.fixed(findings.mean_of(findings.metric_values(arm, metric.name)), decimals)
    return mean if arm.role == "baseline" else f"{mean} ({_short(results, arm, metric)})"


def _summary(arm: Arm) -> str:
    return "; ".join(words for words in (arm.summary, findings.time_words(arm)) if words)


def _where(arm: Arm) -> list[str]:
    """The first cells of a row where the study has several resolutions."""
    return [arm.resolution, f"{arm.tokens:,}"] if arm.resolution else []


def _where_heads(results: Results) -> list[str]:
    return ["Resolution", "Tokens"] if results.resolutions else []


def _tokens(results: Results) -> Iterator[str]:
    counts = list(findings.token_counts(results).values())
    yield "## Against the number of tokens\n"
    yield (
        "Effects are arm over the baseline of the same resolution. The change is the effect at the most tokens over "
        "that at the fewest.\n"
    )
    rows = [_trend_row(trend, metric) for trend, metric in findings.compared_trends(results)]
    heads = ["Arm", "Metric", f"Effect at {counts[0]:,} tokens", f"At {counts[-1]:,} tokens", "Change", "p, corrected"]
    yield from _table([*heads, "With more tokens"], rows)


def _trend_row(trend: Trend, metric: MetricInfo) -> list[str]:
    one, verdict = trend.comparison, findings.trend_verdict(trend)
    change = f"{findings.log_percent(one.difference)} {findings.log_interval(one.low, one.high)}".strip() if one else ""
    words = findings.trend_words(trend, metric)
    reason = f": {trend.undefined}" if trend.undefined else ""
    glyph = findings.glyph(verdict)
    return [
        trend.arm,
        metric.label,
        *findings.effects_at_ends(trend),
        change,
        numerals.probability(one.p_adjusted if one else None),
        f"{glyph} {words}{reason}",
    ]


def _short(results: Results, arm: Arm, metric: MetricInfo) -> str:
    if metric.name in arm.incomparable:
        return f"{findings.NOT_COMPARABLE} ({findings.short_reason(arm, metric.name)})"
    comparison = arm.comparisons.get(metric.name)
    if comparison is None:
        return numerals.UNKNOWN
    decimals = findings.metric_decimals(results, metric.name)
    return _verdict(comparison) + (f": {_difference(comparison, decimals)}" if comparison.differences else "")


def _metric_section(results: Results, metric: MetricInfo) -> Iterator[str]:
    decimals = findings.metric_decimals(results, metric.name)
    rows = []
    for view in results.by_resolution():
        baseline = findings.baseline_of(view)
        rows.append([*_where(baseline), *_baseline_row(baseline, metric, decimals)])
        for arm in findings.ranked_arms(view):
            if metric.name in arm.incomparable:
                rows.append([*_where(arm), *_apart_row(arm, metric, decimals)])
            elif metric.name in arm.comparisons:
                rows.append([*_where(arm), *_metric_row(results, arm, metric, decimals)])
    yield f"### {escaped(_headed(metric))}\n"
    heads = ["Arm", "Mean", "Difference", "Interval", "Relative", "Verdict", "Finds ≥", "± sampling", "Seeds"]
    yield from _table([*_where_heads(results), *heads], rows)


def _times(results: Results) -> Iterator[str]:
    parts = findings.time_parts(results)
    yield "## Where training time goes\n"
    rows = [
        [*_where(arm), findings.titled(arm), *(numerals.share(shares.get(part, 0.0)) for part in parts)]
        for arm in results.arms
        if (shares := findings.time_shares(arm))
    ]
    yield from _table([*_where_heads(results), "Arm", *parts], rows)


def _mean_and_spread(arm: Arm, metric: MetricInfo, decimals: int) -> str:
    values = findings.metric_values(arm, metric.name)
    mean, spread = numerals.fixed(findings.mean_of(values), decimals), findings.spread_of(values)
    return mean if spread is None else f"{mean} ± {numerals.fixed(spread, decimals)}"


def _baseline_row(baseline: Arm, metric: MetricInfo, decimals: int) -> list[str]:
    first = _mean_and_spread(baseline, metric, decimals)
    return [findings.titled(baseline), first, "", "", "", "", "", "", _seeds(baseline, metric, decimals)]


def _apart_row(arm: Arm, metric: MetricInfo, decimals: int) -> list[str]:
    """The values of an arm that is not compared."""
    cells = _baseline_row(arm, metric, decimals)
    cells[5] = f"{findings.NOT_COMPARABLE}: {arm.incomparable[metric.name]}"
    return cells


def _metric_row(results: Results, arm: Arm, metric: MetricInfo, decimals: int) -> list[str]:
    comparison = arm.comparisons[metric.name]
    return [
        findings.titled(arm),
        numerals.fixed(comparison.mean, decimals),
        _difference(comparison, decimals),
        findings.interval_words(results, arm, comparison),
        numerals.percent(findings.relative(comparison)),
        _verdict(comparison),
        findings.detectable_words(metric, comparison, decimals),
        numerals.fixed(comparison.sampling_error, decimals),
        _seeds(arm, metric, decimals),
    ]


def _difference(comparison: Comparison, decimals: int) -> str:
    difference = numerals.fixed(comparison.difference, decimals, signed=True)
    return f"{difference} {numerals.interval(comparison.low, comparison.high, decimals)}".strip()


def _verdict(comparison: Comparison) -> str:
    return f"{findings.glyph(comparison.verdict)} {comparison.words}"


def _seeds(arm: Arm, metric: MetricInfo, decimals: int) -> str:
    return ", ".join(numerals.fixed(run.metrics.get(metric.name), decimals) for run in arm.runs)


def _headed(metric: MetricInfo) -> str:
    return f"{metric.label} ({metric.direction} is better)"


def _changes(results: Results) -> Iterator[str]:
    yield "## Arms\n"
    rows = []
    for arm, where in findings.distinct_arms(results):
        name = f"{findings.titled(arm)} @ {where}" if where else findings.titled(arm)
        sources = ", ".join([*arm.techniques, *arm.papers])
        for change in arm.changes:
            rows.append([name, change.key, findings.plain(change.before), findings.plain(change.after), sources])
        if not arm.changes:
            rows.append([name, "no change but the seeds", "", "", sources])
    yield from _table(["Arm", "Key", "Before", "After", "Techniques and papers"], rows)


def _tokenizers(rows: Sequence[findings.LatentsRow]) -> Iterator[str]:
    yield "## Tokenizers\n"
    yield "Latents of each run's first images, over all channels, in brackets from the lowest to the highest channel.\n"
    heads = ["Tokenizer", "Arms", "Channels", "Stride", "Compression", "Images", "Mean", "Deviation", "Identity"]
    yield from _table(heads, map(_tokenizer_row, rows))


def _tokenizer_row(row: findings.LatentsRow) -> list[str]:
    return [
        row.kind_words,
        ", ".join(arm.label for arm in row.arms),
        str(row.tokenizer.channels),
        f"{row.tokenizer.stride_px} px",
        f"{numerals.significant(row.ratio)}×",
        ", ".join(map(str, row.images)) or numerals.UNKNOWN,
        row.words("mean"),
        row.words("std"),
        row.tokenizer.identity[:12] or "none",
    ]


def _definitions(results: Results) -> Iterator[str]:
    yield "## Method\n"
    yield escaped(results.method) + "\n"
    if results.warnings:
        yield from (f"- {escaped(warning)}" for warning in results.warnings)
        yield ""
    if results.encoders:
        encoders = results.encoders.items()
        rows = ([f"{name} {encoder.identity[:12]}", encoder.definition] for name, encoder in encoders)
        yield from _table(["Encoder", "Definition"], rows)
        yield ""
    yield from _table(["Metric", "Definition"], ([_headed(metric), metric.definition] for metric in results.metrics))
    yield ""
    protocol = [*results.protocol.items(), ("seeds", results.seeds)]
    yield from _table(["Protocol", ""], ([key, findings.plain(value)] for key, value in protocol))


def _environment(results: Results) -> Iterator[str]:
    yield "## Environment\n"
    yield from _table(["What", "Value"], ([key, "; ".join(v)] for key, v in findings.environment(results).items()))
    if said := findings.repeatability(results):
        yield f"\n{said}"


def _events(results: Results) -> Iterator[str]:
    yield "## Events\n"
    found = findings.events(results)
    if not found:
        yield "No events."
        return
    rows = (
        [
            arm.label,
            str(run.seed),
            str(event.get("step", "")),
            str(event.get("event", "")),
            findings.event_details(event),
        ]
        for arm, run, event in found
    )
    yield from _table(["Arm", "Seed", "Step", "Event", "Details"], rows)
