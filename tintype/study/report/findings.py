"""Format facts of a study's results as text, for the page and the Markdown."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Collection
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Literal

from tintype.page import numerals
from tintype.page.numerals import UNKNOWN, fixed, percent
from tintype.runtime.clock import PARTS
from tintype.study.notes import listed, outcome_words
from tintype.study.numbers import (
    FOUND,
    baseline_of,
    collapsed_in,
    compared_trends,
    mean_of,
    metric_decimals,
    primary_metrics,
    ranked_arms,
    relative,
    short_reason,
    spread_of,
    time_shares,
    trend_verdict,
    with_role,
)
from tintype.study.results import (
    Arm,
    Comparison,
    Interval,
    Outcome,
    Run,
    StudyResults,
    TokenizerInfo,
)
from tintype.study.rows import TOO_FEW_SEEDS, glyph

PIXELS = "pixels"
_LARGEST_LOG = 20.0
"""Largest logarithm of a ratio in the text; larger logarithms are replaced by this value."""
SHOWN_BESIDE = ("means", "stopped", "costly_part")
"""Notes that a report shows next to their subject, and not in its list of notes."""
BETWEEN_LEAD = (
    "Pairs of arms that the study declares to compare. A difference is the first arm minus the second; better and "
    "worse are of the first. These comparisons share the study's error with those against the baseline."
)
BETWEEN_HEADS = ("Arms", "Metric", "Verdict", "First", "Second", "Difference")
FACTORS_LEAD = (
    "A main effect is that of a factor, averaged over all pairs of arms that differ in it alone. An interaction is "
    "what a combination gains beyond the sum of what its parts gain alone; distances and losses are compared as "
    "logarithms, so there the ratios of the parts multiply."
)
FACTOR_MEANINGS = {
    "adds up": "the interaction is within the margin",
    "overlaps": "the combination gains less than its parts together",
    "cancels": "so much less that it is no better than the best of them alone, or than the baseline",
    "reinforces": "it gains more than its parts together",
}
VERDICT_PHRASES = {
    "same": "the same",
    "measured": "measured, not tested",
    "no spread": "without a verdict (no spread)",
    "sketch": "without a verdict (one seed)",
}
"""Wording of verdicts in a sentence that begins with an arm, if the verdict's own word does not fit."""
_MEANINGS = {
    "better": "better",
    "worse": "worse",
    "same": "same (within the margin)",
    "undecided": "undecided",
    "unstable": "unstable (some runs collapsed)",
    "measured": "measured, not tested",
    "identical": "identical",
    "no spread": "no spread (the same difference at every seed)",
}


_CURVE_LABELS = {
    "flow": "loss of the objective",
    "loss": "loss with all its terms",
    "lr": "learning rate",
    "images_per_s": "images/s",
    "saving_s": "seconds of saving",
}


def verdict_key(results: StudyResults) -> str:
    """Return the signs of the verdicts that occur in the study, with their meanings."""
    given = {one.verdict for of in results.compared for one in of.comparisons.values()}
    return ", ".join(f"{glyph(verdict)} {words}" for verdict, words in _MEANINGS.items() if verdict in given)


def factors_key(results: StudyResults) -> str:
    """Explain the verdicts on interactions that occur in the study."""
    found = {one.verdict for one in results.factors}
    return "; ".join(f"{glyph(word)} {word}: {FACTOR_MEANINGS[word]}" for word in FACTOR_MEANINGS if word in found)


def figure_key(results: StudyResults) -> str:
    """Explain the marks in figures of differences, where all marks in a row belong to one comparison."""
    if results.sketch:
        return "Right is better. The dot is the run of the one seed minus the baseline's."
    alike = {arm.role for metric in results.metrics for arm in results.like_baseline(metric.name)}
    controlled = "control" in alike
    rows = [row for arm in results.arms for row in arm.comparisons.values()]
    said = [
        "Right is better. Small dots are runs and the large dot is the arm's mean, both minus the baseline's mean"
        + (" (over its own runs and the control's)." if controlled else "."),
        "The control is compared with the baseline's own runs." if controlled else "",
        f"The whisker is the {100 * results.confidence:g}% interval of the mean, simultaneous for all comparisons.",
        "The grey band is what the study cannot detect: a true difference at its edge is found four times in five.",
        "× is a collapsed run, which the mean leaves out." if any(row.collapsed for row in rows) else "",
        "Where pairs of runs with one seed are used, an interval is narrower than its dots."
        if any(row.correlation for row in rows)
        else "",
    ]
    return " ".join(filter(None, said))


def speed_words(comparison: Comparison) -> str:
    """Format the throughput relative to the baseline's, with its spread over seeds or with its verdict."""
    change, spread = percent(relative(comparison)), spread_of(comparison.differences)
    if comparison.verdict == "measured" and spread is not None and comparison.baseline_mean:
        return f"{change} ± {percent(spread / comparison.baseline_mean).lstrip('+')}"
    return change if comparison.verdict in ("measured", "sketch") else f"{change} ({comparison.words})"


def step_words(results: StudyResults, arm: Arm) -> str:
    """Format an arm's step time alone and its ratio to the baseline's, measured only once; empty if unknown."""
    usual = baseline_of(results).step_s
    if arm.step_s is None or usual is None:
        return ""
    change = [] if arm.role == "baseline" else [f"{percent(arm.step_s / usual - 1)} time"]
    return "; ".join(filter(None, [f"step alone {step_time(arm.step_s)}", *change, memory_words(arm)]))


def step_time(seconds: float | None) -> str:
    if seconds is None:
        return UNKNOWN
    return f"{numerals.significant(seconds)} s" if seconds >= 1 else f"{numerals.significant(1000 * seconds)} ms"


def memory_words(arm: Arm) -> str:
    """Format an arm's peak memory on its GPU; empty if it was not measured."""
    return gigabytes(arm.alone.peak_bytes) if arm.alone and arm.alone.peak_bytes else ""


def gigabytes(count: int) -> str:
    """Format a number of bytes; None becomes a dash."""
    return f"{fixed(count / 1e9, 1)} GB" if count else UNKNOWN


def cost_rows(results: StudyResults) -> list[dict[str, Any]]:
    """Return memory and step time of each arm that was measured alone, with the step time divided by the baseline's."""
    found: list[dict[str, Any]] = []
    for view in results.by_resolution():
        usual = baseline_of(view).step_s
        for arm in view.arms:
            if arm.alone is not None:
                relative = None if usual is None or arm.step_s is None else arm.step_s / usual
                row = arm.alone.model_dump(exclude={"shape"})
                found.append({"arm": arm.name, "resolution": arm.resolution, **row, "relative": relative})
    return found


COST_HEADS = ("Step alone", "Relative", "Steps timed", "Peak memory", "Host memory")
MEMORY_NOTE = "Peak memory is the most that torch reserved on the device; host memory is that of the whole process."


def cost_cells(results: StudyResults, arm: Arm) -> list[str]:
    """Return an arm's measurements alone on a GPU, in the order of `COST_HEADS`."""
    usual, alone = baseline_of(results).step_s, arm.alone
    if alone is None:
        return [UNKNOWN] * len(COST_HEADS)
    relative = None if usual is None or alone.step_s is None or arm.role == "baseline" else alone.step_s / usual - 1
    memory = [gigabytes(alone.peak_bytes), gigabytes(alone.host_bytes)]
    return [step_time(alone.step_s), percent(relative), str(alone.steps or UNKNOWN), *memory]


def interval_words(results: StudyResults, comparison: Comparison) -> str:
    """Describe the kind of the interval; empty if there is no interval."""
    return "" if comparison.low is None else f"simultaneous {100 * results.confidence:g}% interval"


def left_out(results: StudyResults, metric: str) -> str:
    """List the arms that a figure leaves out because their scale differs; empty if there are none."""
    apart = [arm for arm in results.arms if metric in arm.incomparable]
    return f"Left out: {_names(apart)} ({short_reason(apart[0], metric)})." if apart else ""


def collapsed_left_out(results: StudyResults, *metrics: str) -> str:
    """List the runs that collapsed in any of the metrics, which a figure's means leave out; empty if there are none."""
    fell = {arm.name: seeds for arm in results.arms if (seeds := collapsed_in(results, arm, *metrics))}
    said = [f"{name} (seed {listed(list(map(str, sorted(seeds))))})" for name, seeds in fell.items()]
    return f"Collapsed runs, which no mean here counts: {', '.join(said)}." if said else ""


def primary_interval(results: StudyResults) -> str:
    """Describe the kinds of intervals of the arms' primary metrics; empty if there are none."""
    names = [metric.name for metric in primary_metrics(results)]
    rows = [arm.comparisons[name] for arm in with_role(results, "arm") for name in names if name in arm.comparisons]
    return next((words for row in rows if (words := interval_words(results, row))), "")


PROMPTS_LEAD = (
    "Some arms read other captions than the baseline, and a model does best on prompts like the captions that it was "
    "trained on. Each kind of prompt is compared with the baseline by itself."
)


def lead(results: StudyResults) -> str:
    """Explain the order of the arms, and the meaning of their numbers."""
    primary, interval = primary_metrics(results), primary_interval(results)
    order = f"Arms are sorted by {primary[0].label}, best first. " if primary else ""
    brackets = f"; in brackets, the {interval}" if interval else ""
    return f"{order}Numbers are differences from the baseline (arm minus baseline){brackets}."


REPLICATION_HEADS = ("Arm", "Metric", "Verdict", "First", "Fresh", "Pooled", "On fresh seeds")
_REPLICATION_LEAD = (
    "First: the study's difference from the baseline, corrected for selection where that is known. Fresh: the "
    "difference on seeds that the study never used, with its 90% interval: one-sided 95% for a claim whose sign was "
    "stated before. Pooled: the mean of both, weighted by their precision, with its 95% interval. A verdict of better "
    "or worse holds where the near end of the fresh interval is beyond zero, and is contradicted where its far end is "
    "short of half of the first estimate. A verdict of same holds within the margin, and is contradicted wholly "
    "outside. Otherwise it is open."
)
_EARLIER = (
    " An earlier version compared these fresh seeds: their intervals are wider than 90%, and there is no pooled "
    "estimate."
)


def replication_lead(results: StudyResults) -> str:
    rows = results.replication.rows if results.replication else []
    earlier = any(row.level is None and row.fresh is not None and row.fresh.ends is not None for row in rows)
    return _REPLICATION_LEAD + (_EARLIER if earlier else "")


def replication_rows(results: StudyResults) -> list[list[str]]:
    """Return the first, the fresh and the pooled estimate of each verdict as cells of a table."""
    labels = {metric.name: metric.label for metric in results.metrics}
    found = []
    for row in results.replication.rows if results.replication else ():
        decimals = metric_decimals(results, row.metric) if row.metric in labels else 3
        values = [_with_interval(one, decimals) for one in (row.first, row.fresh, row.pooled)]
        found.append([row.arm, labels.get(row.metric, row.metric), row.verdict, *values, outcome_words(row)])
    return found


def _with_interval(one: Interval | None, otherwise: int) -> str:
    if one is None:
        return UNKNOWN
    decimals = numerals.decimals_within(one.low, one.high, otherwise)
    return f"{fixed(one.value, decimals, signed=True)} {numerals.interval(one.low, one.high, decimals)}".strip()


_OUTCOMES: dict[Outcome, tuple[str, str]] = {
    "holds": ("holds", "hold"),
    "open": ("is open", "are open"),
    "contradicted": ("is contradicted", "are contradicted"),
    "incomplete": ("is incomplete", "are incomplete"),
}


def _names(arms: list[Arm]) -> str:
    return ", ".join(arm.name for arm in arms)


def log_percent(logarithm: float | None) -> str:
    """Format a logarithm of a ratio as a signed percentage."""
    return percent(None if logarithm is None else math.expm1(min(logarithm, _LARGEST_LOG)))


def log_interval(comparison: Comparison | None) -> str:
    ends = comparison.ends if comparison else None
    return f"[{log_percent(ends[0])}, {log_percent(ends[1])}]" if ends else ""


def log_detectable(comparison: Comparison | None) -> str:
    """Format the smallest detectable change; if it would double the effect, state that there are too few seeds."""
    if comparison is None:
        return UNKNOWN
    if comparison.p is None or comparison.verdict in FOUND or (comparison.detectable or math.inf) <= math.log(2):
        return log_percent(comparison.detectable)
    return TOO_FEW_SEEDS


def undefined_trends(results: StudyResults) -> list[str]:
    """Return the reason why some arms have no relative effect."""
    undefined = [one.undefined for one, _ in compared_trends(results) if trend_verdict(one) == "not defined"]
    return list(dict.fromkeys(undefined))


def effects_at_ends(one: Comparison | None) -> tuple[str, str]:
    """Format the relative effect of a trend at the fewest and at the most tokens, over the seeds of the comparison."""
    return (log_percent(one.baseline_mean), log_percent(one.mean)) if one else (UNKNOWN, UNKNOWN)


def distinct_arms(results: StudyResults) -> list[tuple[Arm, str]]:
    """Return each compared arm once; if its changes differ between resolutions, once per resolution, with names."""
    cards = []
    for name in (arm.name for arm in ranked_arms(results.by_resolution()[0])):
        groups: dict[str, list[Arm]] = {}
        for arm in (arm for arm in results.arms if arm.name == name):
            groups.setdefault(repr(arm.changes), []).append(arm)
        several = len(groups) > 1
        cards += [(group[0], ", ".join(one.resolution for one in group) * several) for group in groups.values()]
    return cards


TIME_PARTS = (*PARTS, "other")
_LEAST_SHARE = 0.0005
"""Smaller fractions would be printed as 0.0 % and are left out, since some timed parts of a step do nothing."""


def time_parts(results: StudyResults) -> list[str]:
    """Return the timed parts, in the order of a training step."""
    taken = {part for arm in results.arms for part, share in time_shares(arm).items() if share > _LEAST_SHARE}
    return [*(part for part in TIME_PARTS if part in taken), *sorted(taken.difference(TIME_PARTS))]


@dataclass(frozen=True)
class LatentsRow:
    """A tokenizer of a study, the arms that use it, and the statistics of its latents, averaged over runs."""

    tokenizer: TokenizerInfo
    arms: list[Arm]
    images: list[int]
    """The numbers of images in the runs, without duplicates."""
    mean_C: list[float]
    std_C: list[float]

    @property
    def ratio(self) -> float:
        """Return the number of values in an image divided by the number of values in its latents."""
        return 3 * self.tokenizer.stride_px**2 / self.tokenizer.channels

    @property
    def kind_words(self) -> str:
        """Return the name of the tokenizer's kind; a trained tokenizer is described as it was before training."""
        return f"{self.tokenizer.kind}, before it is trained" if self.tokenizer.tuned else self.tokenizer.kind

    @property
    def mean(self) -> float | None:
        return mean_of(self.mean_C)

    @property
    def std(self) -> float | None:
        """Return the standard deviation over all latents together, including the spread of channel means."""
        middle = self.mean
        if middle is None:
            return None
        return math.sqrt(fmean(s * s + (m - middle) ** 2 for m, s in zip(self.mean_C, self.std_C, strict=True)))

    def words(self, kind: Literal["mean", "std"]) -> str:
        """Format the value over all latents, and its range over channels."""
        whole, channels = (self.mean, self.mean_C) if kind == "mean" else (self.std, self.std_C)
        if whole is None:
            return UNKNOWN
        return f"{fixed(whole, 2)} ({fixed(min(channels), 2)} to {fixed(max(channels), 2)})"


def latents_rows(results: StudyResults) -> list[LatentsRow]:
    """Return a row for each tokenizer in the order of the arms; empty if all arms work on pixels."""
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


def environment(results: StudyResults) -> dict[str, list[str]]:
    """Return every distinct value of every key of the runs' environment."""
    found: dict[str, dict[str, None]] = {}
    for run in (run for arm in results.arms for run in arm.runs):
        for key, value in run.environment.items():
            found.setdefault(key, {})[plain(value)] = None
    return {key: list(values) for key, values in found.items()}


def made_with(results: StudyResults) -> dict[str, str]:
    """Return the command, versions and devices; results of earlier versions lack some of these."""
    known = environment(results)
    facts = {
        "command": "\n".join(shlex.join(command.argv) for command in results.commands),
        "date": ", ".join(dict.fromkeys(command.date[:10] for command in results.commands)),
        **{key: "; ".join(known.get(key, [])) for key in ("tintype", "commit", "torch", "device")},
    }
    return {key: words for key, words in facts.items() if words or key == "command"}


def repeatability(results: StudyResults) -> str:
    """State which results can be repeated bit for bit with the same plan; empty if the device is unknown."""
    found = environment(results)
    if "device" not in found:
        return ""
    threads = " or ".join(found.get("threads", ["an unknown number of"]))
    plural = "" if threads == "1" else "s"
    return (
        f"The runs used {' and '.join(found['device'])}, with {threads} CPU thread{plural} each. On one kind of CPU, "
        "the same plan, seed, number of threads and version of torch give bit-identical results. "
        f"{_on_a_gpu(results)}"
    )


def _on_a_gpu(results: StudyResults) -> str:
    """State which results on a GPU are bit-exact; runs of earlier versions do not record this."""
    if any("not_exact" not in run.environment for arm in results.arms for run in arm.runs if run.environment):
        return "On a GPU, the same seed may give a slightly different run."
    reasons = {arm.label: why for arm in results.arms if (why := inexact(arm))}
    if not reasons:
        return "On a GPU, runs with run.deterministic ask for the same, by deterministic algorithms only."
    shared = next(iter(reasons.values()))
    if len(reasons) == len(results.arms) > 1 and all(why == shared for why in reasons.values()):
        return f"On a GPU, the same seed may give a slightly different run of every arm ({', '.join(shared)})."
    arms = "; ".join(f"{label} ({', '.join(why)})" for label, why in reasons.items())
    return f"On a GPU, the same seed may give a slightly different run of these arms: {arms}."


def inexact(arm: Arm) -> list[str]:
    """Return the reasons why a rerun of an arm with the same seed may not be bit-identical."""
    found: dict[str, None] = {}
    for run in arm.runs:
        stated = run.environment.get("not_exact", [])
        found |= dict.fromkeys(map(str, stated if isinstance(stated, list) else [stated]))
        found |= dict.fromkeys(str(one.get("operation")) for one in run.events if one.get("event") == "not-exact")
    return list(found)


def events(results: StudyResults) -> list[tuple[Arm, Run, dict[str, object]]]:
    return [(arm, run, event) for arm in results.arms for run in arm.runs for event in run.events]


def event_details(event: dict[str, object]) -> str:
    shown_elsewhere = ("event", "step", "time")
    return ", ".join(f"{key}: {plain(value)}" for key, value in event.items() if key not in shown_elsewhere)


def part_means(arm: Arm, metric: str, without: Collection[int]) -> dict[str, float]:
    """Return each component of a metric, averaged over the seeds except those in `without`."""
    values: dict[str, list[float]] = {}
    for run in (run for run in arm.runs if run.seed not in without):
        for part, value in run.details.get(metric, {}).items():
            if math.isfinite(value):
                values.setdefault(part, []).append(value)
    return {part: fmean(of_seeds) for part, of_seeds in values.items()}


def curve_label(name: str, beside: Collection[str]) -> str:
    """Return the displayed name of a logged quantity, which distinguishes the total loss from the objective's loss."""
    if name == "loss" and "flow" not in beside:
        return name
    return _CURVE_LABELS.get(name, name.replace("_", " "))


def plain(value: object) -> str:
    """Format a setting's value on one line."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
