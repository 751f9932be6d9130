"""What a study's results say, before any layout: the order of the arms, the answer in words, and what to warn of."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from statistics import fmean, median, stdev
from typing import Any, Literal

from tintype.metrics.throughput import tokenizer_words
from tintype.study.prompts import MAIN, comparable_conditions, kind_words, one_kind_note, reads_other_captions
from tintype.study.report.numerals import NO_BREAK, UNKNOWN, decimals_showing, fixed, interval, percent
from tintype.study.results import Arm, Comparison, MetricInfo, Results, Run, TokenizerInfo, Trend, Verdict
from tintype.study.spaces import ANOTHER_SPACE
from tintype.study.trends import NOT_POSITIVE
from tintype.train.clock import PARTS

PIXELS = "pixels"
_SENSELESS = 20.0
NOT_COMPARABLE: Literal["not comparable"] = "not comparable"
GLYPHS: dict[Verdict, str] = {
    "better": "✓",
    "worse": "✗",
    "not shown": "○",
    "identical": "=",
    "no spread": "≡",
    "sketch": "◌",
    "incomplete": "…",
    "failed": "!",
    "diverged": "!",
}


def baseline_of(results: Results) -> Arm:
    return next(arm for arm in results.arms if arm.role == "baseline")


def resolution_title(results: Results) -> str:
    """The resolution of results at one of several, with its tokens; empty where there is one only."""
    baseline = baseline_of(results)
    return f"{baseline.resolution} ({baseline.tokens:,} tokens)" if baseline.resolution else ""


def token_counts(results: Results) -> dict[str, int]:
    """Tokens of each of several resolutions, fewest first."""
    return {arm.resolution: arm.tokens for arm in results.arms if arm.role == "baseline" and arm.tokens is not None}


def compared_arms(results: Results) -> list[Arm]:
    return [arm for arm in results.arms if arm.role != "baseline"]


def titled(arm: Arm) -> str:
    """The arm's name, with its role where the name does not tell."""
    return arm.name if arm.role in ("arm", arm.name) else f"{arm.name} ({arm.role})"


def primary_metrics(results: Results) -> list[MetricInfo]:
    return [metric for metric in results.metrics if metric.primary] or results.metrics[:1]


def improvement(metric: MetricInfo, difference: float) -> float:
    """The difference, signed so that more is better."""
    return difference if metric.direction == "higher" else -difference


def ranked_arms(results: Results) -> list[Arm]:
    """Largest improvement of the first primary metric first; arms without that comparison last."""

    def effect(arm: Arm) -> float:
        for metric in primary_metrics(results)[:1]:
            comparison = arm.comparisons.get(metric.name)
            if comparison is not None and math.isfinite(comparison.difference):
                return improvement(metric, comparison.difference)
        return -math.inf

    return sorted(compared_arms(results), key=effect, reverse=True)


def metric_values(arm: Arm, metric: str) -> list[float]:
    """One for each seed that has it."""
    values = (run.metrics.get(metric) for run in arm.runs)
    return [value for value in values if value is not None and math.isfinite(value)]


def mean_of(values: Iterable[float]) -> float | None:
    known = list(values)
    return fmean(known) if known else None


def spread_of(values: list[float]) -> float | None:
    """Standard deviation over seeds; None where one seed is all there is."""
    return stdev(values) if len(values) > 1 else None


def relative(comparison: Comparison) -> float | None:
    return comparison.difference / abs(comparison.baseline_mean) if comparison.baseline_mean else None


def interval_words(results: Results, arm: Arm, comparison: Comparison) -> str:
    """Which interval it is and over which seeds; empty where there is none."""
    if comparison.low is None:
        return ""
    name = comparison.interval or ("Welch" if arm.role == "control" else "Student")
    kind = "unpaired" if arm.role == "control" else "paired"
    return f"{100 * results.confidence:g}% {name} interval, {len(comparison.differences)} {kind} seeds"


def test_words(arm: Arm, comparison: Comparison) -> str:
    """Which test the p is from; empty where there is none."""
    if comparison.p is None:
        return ""
    return comparison.test or ("Welch" if arm.role == "control" else "paired Student")


def metric_decimals(results: Results, metric: str) -> int:
    """One number of decimals for all of a metric's values, so that they can be read down a column."""
    compared = [arm.comparisons[metric] for arm in compared_arms(results) if metric in arm.comparisons]
    reaches = [(c.high - c.low) / 2 for c in compared if c.low is not None and c.high is not None and c.high > c.low]
    if reaches:
        return decimals_showing(median(reaches))
    mean = mean_of(metric_values(baseline_of(results), metric))
    return decimals_showing(abs(mean) / 10 if mean else 0)


def lost_runs(results: Results) -> list[tuple[Arm, Run]]:
    return [(arm, run) for arm in results.arms for run in arm.runs if run.state != "done"]


def differing_controls(results: Results) -> list[tuple[Arm, list[MetricInfo]]]:
    """Control arms that look better or worse than the baseline, though nothing but the seeds was changed."""
    found = []
    for arm in _with_role(results, "control"):
        metrics = [metric for metric in results.metrics if _verdict(arm, metric) in ("better", "worse")]
        if metrics:
            found.append((arm, metrics))
    return found


def caption_arms(results: Results) -> list[Arm]:
    """Those that were trained on other captions than the baseline."""
    return [arm for arm in results.arms if reads_other_captions(change.key for change in arm.changes)]


def one_kind_of_prompt(results: Results) -> str:
    """The warning of a study of captions that asked for one kind of prompt; else ''."""
    names = [arm.name for arm in caption_arms(results)]
    return one_kind_note(names, results.protocol, [metric.name for metric in results.metrics])


def metrics_by_prompts(results: Results) -> list[list[tuple[str, MetricInfo]]]:
    """In a study of captions, (prompts, metric) of each metric that was taken on several kinds of prompts."""
    if not caption_arms(results):
        return []
    known = {metric.name: metric for metric in results.metrics}
    others = comparable_conditions(results.protocol)
    groups = []
    for metric in results.metrics:
        under = ((f"{metric.name}_{name}", kind) for name, kind in others.items())
        groups.append(
            [(kind_words(MAIN), metric), *((kind_words(kind), known[name]) for name, kind in under if name in known)]
        )
    return [group for group in groups if len(group) > 1]


def answer(results: Results) -> list[str]:
    """The study's answer: at each resolution a sentence for each primary metric, then what the tokens change."""
    if not results.resolutions:
        return _answer_at_one(results)
    views = results.by_resolution()
    verdicts = [
        f"At {where or 'every resolution'}, {sentence}" for where, sentence in _said_at_each(views, _verdict_sentences)
    ]
    closing = _said_at_each(views, _closing_sentences)
    return [
        *verdicts,
        *_trend_sentences(results),
        *(f"At {where}: {sentence}" if where else sentence for where, sentence in closing),
    ]


def _said_at_each(views: list[Results], say: Callable[[Results], list[str]]) -> list[tuple[str, str]]:
    """(resolutions, sentence), each sentence once; no resolutions are named where it is said of all."""
    said: dict[str, list[str]] = {}
    for view in views:
        for sentence in say(view):
            said.setdefault(sentence, []).append(resolution_title(view))
    return [("" if len(where) == len(views) else " and ".join(where), text) for text, where in said.items()]


def _answer_at_one(results: Results) -> list[str]:
    """One sentence for each primary metric and one for the control."""
    every = (*_verdict_sentences(results), *_closing_sentences(results))
    return [sentence[0].upper() + sentence[1:] for sentence in every]


def _verdict_sentences(results: Results) -> list[str]:
    arms = _with_role(results, "arm")
    if not arms:
        return ["The study has no arm to compare with the baseline."]
    return [_sentence(results, arms, metric) for metric in primary_metrics(results)]


def _closing_sentences(results: Results) -> list[str]:
    arms = _with_role(results, "arm")
    return [*_interval_sentences(results, arms), *_control_sentences(results)] if arms else []


def _sentence(results: Results, arms: list[Arm], metric: MetricInfo) -> str:
    if results.sketch:
        shown = "; ".join(_effect(results, arm, metric) for arm in arms if metric.name in arm.comparisons)
        apart = "".join(f" {clause[0].upper()}{clause[1:]}." for clause in _apart_clauses(arms, metric))
        return f"{metric.label} ({metric.direction} is better) differs by: {shown or 'nothing measured'}.{apart}"
    groups = {verdict: [arm for arm in arms if _verdict(arm, metric) == verdict] for verdict in GLYPHS}
    clauses = []
    for verdict in ("better", "worse"):
        if group := groups[verdict]:
            effects = "; ".join(_effect(results, arm, metric) for arm in group)
            clauses.append(f"{len(group)} {_is(group)} {verdict} ({effects})")
    if group := groups["not shown"]:
        clauses.append(f"{len(group)} {_is(group)} not shown to differ ({_names(group)})")
    if group := groups["identical"]:
        clauses.append(f"{len(group)} {_is(group)} identical at every seed ({_names(group)})")
    if group := groups["no spread"]:
        effects = "; ".join(_effect(results, arm, metric) for arm in group)
        clauses.append(
            f"{len(group)} {'differs' if len(group) == 1 else 'differ'} by the same at every seed, so that "
            f"the spread is not measurable ({effects})"
        )
    if group := groups["incomplete"]:
        clauses.append(f"{len(group)} {_is(group)} incomplete ({_names(group)})")
    if group := groups["failed"] + groups["diverged"]:
        lost = "; ".join(f"{arm.name}: {arm.comparisons[metric.name].words}" for arm in group)
        clauses.append(f"{len(group)} lost runs ({lost})")
    clauses += _apart_clauses(arms, metric)
    counted = f"of {len(arms)} arms" if len(arms) > 1 else "of the one arm"
    return f"{metric.label} ({metric.direction} is better): {counted}, {_listed(clauses)}."


def _apart_clauses(arms: list[Arm], metric: MetricInfo) -> list[str]:
    """What is not compared, by the first words of the reason."""
    reasons: dict[str, list[Arm]] = {}
    for arm in arms:
        if metric.name in arm.incomparable:
            reasons.setdefault(short_reason(arm, metric.name), []).append(arm)
    return [f"{len(some)} {_is(some)} {NOT_COMPARABLE} ({_names(some)}: {why})" for why, some in reasons.items()]


def short_reason(arm: Arm, metric: str) -> str:
    """Why it is not compared, in two words; the rest of the reason says more."""
    return arm.incomparable[metric].partition(":")[0]


def left_out(results: Results, metric: str) -> str:
    """Names the arms that a figure of several arms cannot show on one scale; empty where there are none."""
    apart = [arm for arm in results.arms if metric in arm.incomparable]
    return f"Left out: {_names(apart)} ({short_reason(apart[0], metric)})." if apart else ""


def apart_notes(results: Results) -> list[str]:
    """A sentence for each metric and reason for which arms are not compared."""
    arms: dict[tuple[str, str], list[Arm]] = {}
    for metric in results.metrics:
        for arm in compared_arms(results):
            if metric.name in arm.incomparable:
                arms.setdefault((metric.label, arm.incomparable[metric.name]), []).append(arm)
    return [f"Not compared: {label} of {_names(some)} ({reason})." for (label, reason), some in arms.items()]


def _effect(results: Results, arm: Arm, metric: MetricInfo) -> str:
    comparison, decimals = arm.comparisons[metric.name], metric_decimals(results, metric.name)
    if not comparison.differences:
        return f"{arm.name}: {comparison.words}"
    difference = fixed(comparison.difference, decimals, signed=True)
    reach = interval(comparison.low, comparison.high, decimals)
    return f"{arm.name}: {difference}" + (NO_BREAK + reach if reach else "")


def _interval_sentences(results: Results, arms: list[Arm]) -> list[str]:
    """What the brackets are. Arms that lost runs have fewer seeds, and then each kind is named."""
    names = {metric.name for metric in primary_metrics(results)}
    kinds = [
        interval_words(results, arm, one) for arm in arms for name, one in arm.comparisons.items() if name in names
    ]
    shown = list(dict.fromkeys(words for words in kinds if words))
    return [f"In brackets: {'; or '.join(shown)}."] if shown else []


def _control_sentences(results: Results) -> list[str]:
    controls = _with_role(results, "control")
    if results.sketch:
        return []
    if not controls:
        return [
            "No control was run, so nothing here shows how often this study would see a difference that is not one."
        ]
    if differing_controls(results):
        return ["The control, which is the baseline with other seeds, differs: it should not."]
    verdicts = [_verdict(arm, metric) for arm in controls for metric in results.metrics]
    if lost := next((one for one in ("diverged", "failed", "incomplete") if one in verdicts), ""):
        return [f"The control, which is the baseline with other seeds, {'' if lost == 'diverged' else 'is '}{lost}."]
    where = "any metric whose spread is measurable" if "no spread" in verdicts else "any metric"
    return [f"The control, which is the baseline with other seeds, shows no difference on {where}, as it should."]


def _verdict(arm: Arm, metric: MetricInfo) -> Verdict | Literal["not comparable"]:
    if metric.name in arm.incomparable:
        return NOT_COMPARABLE
    comparison = arm.comparisons.get(metric.name)
    return comparison.verdict if comparison else "incomplete"


def _with_role(results: Results, role: str) -> list[Arm]:
    return [arm for arm in results.arms if arm.role == role]


def _names(arms: list[Arm]) -> str:
    return ", ".join(arm.name for arm in arms)


def _is(arms: list[Arm]) -> str:
    return "is" if len(arms) == 1 else "are"


def _listed(clauses: list[str]) -> str:
    return " and ".join([", ".join(clauses[:-1]), clauses[-1]]) if len(clauses) > 1 else "".join(clauses)


def compared_trends(results: Results) -> list[tuple[Trend, MetricInfo]]:
    """By metric; without the control's, which has no pairs to be compared."""
    controls = {arm.name for arm in _with_role(results, "control")}
    return [
        (trend, metric)
        for metric in results.metrics
        for trend in results.trends
        if trend.metric == metric.name and trend.arm not in controls
    ]


def trend_verdict(trend: Trend) -> Verdict | Literal["not defined"]:
    if trend.comparison:
        return trend.comparison.verdict
    return "not defined" if trend.undefined.startswith((NOT_POSITIVE, ANOTHER_SPACE)) else "incomplete"


def trend_words(trend: Trend, metric: MetricInfo) -> str:
    """What an arm does with more tokens, or the verdict. Whether it helps or hurts at all is by the means alone."""
    comparison = trend.comparison
    if comparison is None:
        return trend_verdict(trend)
    if comparison.verdict not in ("better", "worse"):
        return comparison.words
    at_fewest, at_most = (improvement(metric, one) for one in (comparison.baseline_mean, comparison.mean))
    if comparison.verdict == "better":
        return "helps more" if at_most > 0 else "hurts less"
    return "helps less" if at_fewest > 0 else "hurts more"


def log_percent(logarithm: float | None) -> str:
    """A logarithm of a ratio as a signed percentage; one beyond all sense as a dash."""
    return percent(None if logarithm is None or logarithm > _SENSELESS else math.expm1(logarithm))


def log_interval(low: float | None, high: float | None) -> str:
    return "" if low is None or high is None else f"[{log_percent(low)}, {log_percent(high)}]"


def effects_at_ends(trend: Trend) -> tuple[str, str]:
    """The relative effect at the fewest and at the most tokens, by the seeds that the comparison has."""
    one = trend.comparison
    return (log_percent(one.baseline_mean), log_percent(one.mean)) if one else (UNKNOWN, UNKNOWN)


def _trend_sentences(results: Results) -> Iterator[str]:
    counts = list(token_counts(results).values())
    compared = compared_trends(results)
    for metric in results.metrics:
        trends = [trend for trend, info in compared if info == metric]
        if trends:
            clauses = _listed(list(_trend_clauses(trends, metric)))
            about = f"effects on {metric.label} ({metric.direction} is better)"
            yield f"From {counts[0]:,} to {counts[-1]:,} tokens, {about}: {clauses}."


def _trend_clauses(trends: list[Trend], metric: MetricInfo) -> Iterator[str]:
    """Arms whose effect changes, or seems to in a sketch, with both effects; then the others by name."""
    for trend in trends:
        if trend_verdict(trend) in ("better", "worse", "sketch"):
            first, last = effects_at_ends(trend)
            words = "" if trend_verdict(trend) == "sketch" else f" {trend_words(trend, metric)} with more tokens"
            yield f"{trend.arm}{words} ({first} → {last})"
    said = {
        "not shown": "not shown to change",
        "identical": "identical",
        "no spread": "without a measurable spread",
        "incomplete": "incomplete",
        "failed": "without runs that failed",
        "diverged": "without runs that diverged",
        "not defined": "without a relative effect",
    }
    for verdict, words in said.items():
        names = [trend.arm for trend in trends if trend_verdict(trend) == verdict]
        if names:
            yield f"{len(names)} {'is' if len(names) == 1 else 'are'} {words} ({', '.join(names)})"


def distinct_arms(results: Results) -> list[tuple[Arm, str]]:
    """Each compared arm once, with the resolutions that it is said of where it changes other keys elsewhere."""
    found: dict[str, list[Arm]] = {}
    for arm in ranked_arms(results.by_resolution()[0]):
        found[arm.name] = [other for other in results.arms if other.name == arm.name]
    cards = []
    for arms in found.values():
        groups: list[list[Arm]] = []
        for arm in arms:
            same = next((group for group in groups if group[0].changes == arm.changes), None)
            groups.append([arm]) if same is None else same.append(arm)
        cards += [(group[0], ", ".join(one.resolution for one in group) if groups[1:] else "") for group in groups]
    return cards


TIME_PARTS = (*PARTS, "other")
_LEAST_SHARE = 0.0005
"""What would be written as 0.0 % is left out: some parts of a step are timed and do nothing."""


def time_parts(results: Results) -> list[str]:
    """The parts that took any time worth a figure, in the order in which a step goes through them."""
    taken = {part for arm in results.arms for part, share in time_shares(arm).items() if share > _LEAST_SHARE}
    return [*(part for part in TIME_PARTS if part in taken), *sorted(taken.difference(TIME_PARTS))]


def time_shares(arm: Arm) -> dict[str, float]:
    """Of an arm's training time, by part and averaged over its runs; empty where no run was timed."""
    runs = [run.time_split for run in arm.runs if sum(run.time_split.values()) > 0]
    found = dict.fromkeys(part for split in runs for part in split)
    return {part: fmean(split.get(part, 0.0) / sum(split.values()) for split in runs) for part in found}


def time_words(arm: Arm) -> str:
    """What takes more of a step than it should; empty where nothing does."""
    tuned = any(run.tokenizer is not None and run.tokenizer.tuned for run in arm.runs)
    return tokenizer_words(time_shares(arm).get("tokenizer"), tuned)


@dataclass(frozen=True)
class LatentsRow:
    """One tokenizer of a study, the arms that have it, and its latents: each channel's numbers averaged over runs."""

    tokenizer: TokenizerInfo
    arms: list[Arm]
    images: list[int]
    """Of each run, without repetition."""
    mean_C: list[float]
    std_C: list[float]

    @property
    def ratio(self) -> float:
        """Numbers of a picture over those of its latents."""
        return 3 * self.tokenizer.stride_px**2 / self.tokenizer.channels

    @property
    def kind_words(self) -> str:
        """A tokenizer that is trained is described as it began."""
        return f"{self.tokenizer.kind}, before it is trained" if self.tokenizer.tuned else self.tokenizer.kind

    @property
    def mean(self) -> float | None:
        return mean_of(self.mean_C)

    @property
    def std(self) -> float | None:
        """Of all latents together: what varies between the means of channels is a part of it."""
        middle = self.mean
        if middle is None:
            return None
        return math.sqrt(fmean(s * s + (m - middle) ** 2 for m, s in zip(self.mean_C, self.std_C, strict=True)))

    def words(self, kind: Literal["mean", "std"]) -> str:
        """The number of all latents, and its range over channels."""
        whole, channels = (self.mean, self.mean_C) if kind == "mean" else (self.std, self.std_C)
        if whole is None:
            return UNKNOWN
        return f"{fixed(whole, 2)} ({fixed(min(channels), 2)} to {fixed(max(channels), 2)})"


def latents_rows(results: Results) -> list[LatentsRow]:
    """A row for each tokenizer in the order of the arms; none where all of the study work on pixels."""
    found: dict[str, list[tuple[Arm, TokenizerInfo]]] = {}
    for arm in results.arms:
        for tokenizer in (run.tokenizer for run in arm.runs if run.tokenizer is not None):
            key = json.dumps([tokenizer.settings, tokenizer.identity], sort_keys=True)
            found.setdefault(key, []).append((arm, tokenizer))
    rows = [_latents_row(some) for some in found.values()]
    return rows if any(row.tokenizer.kind != PIXELS for row in rows) else []


def _latents_row(runs: list[tuple[Arm, TokenizerInfo]]) -> LatentsRow:
    measured = [one for _, one in runs if one.images]
    return LatentsRow(
        tokenizer=runs[0][1],
        arms=list({arm.label: arm for arm, _ in runs}.values()),
        images=sorted({one.images for one in measured}),
        mean_C=[fmean(numbers) for numbers in zip(*(one.mean for one in measured), strict=True)],
        std_C=[fmean(numbers) for numbers in zip(*(one.std for one in measured), strict=True)],
    )


def environment(results: Results) -> dict[str, list[str]]:
    """What the runs ran on: every distinct value of every key."""
    found: dict[str, dict[str, None]] = {}
    for arm in results.arms:
        for run in arm.runs:
            for key, value in run.environment.items():
                found.setdefault(key, {})[plain(value)] = None
    return {key: list(values) for key, values in found.items()}


def events(results: Results) -> list[tuple[Arm, Run, dict[str, Any]]]:
    return [(arm, run, event) for arm in results.arms for run in arm.runs for event in run.events]


def event_details(event: dict[str, Any]) -> str:
    told_elsewhere = ("event", "step", "time")
    return ", ".join(f"{key}: {plain(value)}" for key, value in event.items() if key not in told_elsewhere)


def part_means(arm: Arm, metric: str) -> dict[str, float]:
    """Each part of a metric, averaged over seeds."""
    values: dict[str, list[float]] = {}
    for run in arm.runs:
        for part, value in run.details.get(metric, {}).items():
            if math.isfinite(value):
                values.setdefault(part, []).append(value)
    return {part: fmean(of_seeds) for part, of_seeds in values.items()}


def plain(value: Any) -> str:
    """A setting's value in one line."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
