"""Findings of a study before any layout: the order of the arms, what they show and cannot show, and warnings."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, geometric_mean, median, stdev
from typing import Any, Literal, get_args

from pydantic import BaseModel

from tintype.evaluation.prompts import is_caption
from tintype.metrics import validation
from tintype.metrics.throughput import tokenizer_words
from tintype.page import numerals
from tintype.page.numerals import UNKNOWN, decimals_showing, fixed, percent
from tintype.runtime.clock import PARTS
from tintype.study.contrasts import ANOTHER_SPACE
from tintype.study.crowded import crowded_words
from tintype.study.results import (
    SPEED,
    Arm,
    Between,
    Comparison,
    Interval,
    Loss,
    MetricInfo,
    Outcome,
    Replicated,
    Replication,
    Run,
    StudyResults,
    TokenizerInfo,
    Trend,
    arm_label,
)
from tintype.study.stats.estimate import MOST_SEEDS
from tintype.study.verdicts import NOT_POSITIVE

PIXELS = "pixels"
NOT_COMPARABLE = "not comparable"
MIXED = "mixed"
"""Said of an arm that is better on one primary metric and worse on another."""
TOO_FEW_SEEDS = "too few seeds"
_LARGEST_LOG = 20.0
"""Largest logarithm of a ratio that is written; larger ones are written as this one."""
_GLYPHS = {
    "better": "✓",
    "worse": "✗",
    "same": "≈",
    "undecided": "○",
    "unstable": "⚡",
    "adds up": "+",
    "overlaps": "∩",
    "cancels": "✗",
    "reinforces": "✓",
    "measured": "·",
    "identical": "=",
    "no spread": "≡",
    "sketch": "◌",
    "incomplete": "…",
    "not defined": "–",
    NOT_COMPARABLE: "–",
    MIXED: "±",
}
_FOUND = ("better", "worse")
_UNEVEN = 1.5
"""Ratio of the fastest to the slowest run of a plan from which speeds are not compared."""
_FEW_SEEDS = 5
"""Verdicts from fewer seeds are sketches."""
_DECIDED = (*_FOUND, "same", "unstable")
_LOST = get_args(Loss)


def glyph(verdict: str) -> str:
    """Return the sign beside a verdict's words; those without one of their own are marked all the same."""
    return _GLYPHS.get(verdict, "!")


def marked(comparison: Comparison) -> str:
    """Return the verdict with its sign."""
    return f"{glyph(comparison.verdict)} {comparison.words}"


VERDICT_PHRASES = {
    "same": "the same",
    "measured": "measured, not tested",
    "no spread": "without a verdict (no spread)",
    "sketch": "without a verdict (one seed)",
}
"""Verdicts in a sentence that begins with an arm, where the word itself does not do."""
_MEANINGS = {
    "better": "better",
    "worse": "worse",
    "same": "same (within the margin)",
    "undecided": "undecided",
    "unstable": "unstable (some runs fell off)",
    "measured": "measured, not tested",
    "identical": "identical",
    "no spread": "no spread (the same difference at every seed)",
}


def verdict_key(results: StudyResults) -> str:
    """Return the signs of the verdicts that the study has, with their meaning."""
    given = {one.verdict for of in results.compared for one in of.comparisons.values()}
    return ", ".join(f"{glyph(verdict)} {words}" for verdict, words in _MEANINGS.items() if verdict in given)


def verdict_notes(results: StudyResults) -> list[str]:
    """Say what a verdict does not mean, and what would decide; empty in a sketch."""
    notes = (
        *(one.words for one in contradictions(results)),
        _undecided_note(results),
        margin_note(results),
        _unstable_note(results),
        _later_falls_note(results),
        _apart_note(results),
    )
    return [note for note in notes if note]


def _undecided_note(results: StudyResults) -> str:
    names = {metric.name: metric.label for metric in primary_metrics(results)}
    needed = {
        label: {
            arm.label: arm.comparisons[name].seeds_needed
            for arm in _with_role(results, "arm")
            if name in arm.comparisons and arm.comparisons[name].verdict == "undecided"
        }
        for name, label in names.items()
    }
    known = [count for of_arms in needed.values() for count in of_arms.values()]
    if not any(known):
        return "Undecided: these seeds show neither a difference nor that there is none." if known else ""
    said = [f"in {label}, {_listed(_seed_counts(of_arms))}" for label, of_arms in needed.items() if of_arms]
    return f"Undecided. Seeds that would decide, if means and spreads stay as they are: {'; '.join(said)}."


@dataclass(frozen=True)
class Contradiction:
    """An arm that is better on some primary metrics, and worse on others."""

    arm: str
    """Its label, or that of two arms."""
    better: list[MetricInfo]
    worse: list[MetricInfo]

    @property
    def words(self) -> str:
        return f"{self.arm} is better in {_labels(self.better)}, but worse in {_labels(self.worse)}: {DECIDE}."


DECIDE = "decide by what you need"


def contradictions(results: StudyResults) -> list[Contradiction]:
    """Return the arms, and the pairs of arms, whose verdicts on the primary metrics contradict each other."""
    found = []
    compared: list[Arm | Between] = [*_with_role(results, "arm"), *results.between]
    for one in compared:
        rows = [(metric, one.comparisons.get(metric.name)) for metric in primary_metrics(results)]
        better, worse = ([metric for metric, row in rows if row and row.verdict == verdict] for verdict in _FOUND)
        if better and worse:
            found.append(Contradiction(one.label, better, worse))
    return found


def _labels(metrics: Sequence[MetricInfo]) -> str:
    return _listed([metric.label for metric in metrics])


def margin_note(results: StudyResults) -> str:
    """Name the margins that the seeds could not reach, and the seeds that it takes; empty where none is recorded."""
    said: dict[tuple[str, str], list[str]] = {}
    for metric in primary_metrics(results):
        rows = [arm.comparisons[metric.name] for arm in _with_role(results, "arm") if metric.name in arm.comparisons]
        undecided = [one for one in rows if one.verdict == "undecided"]
        needed = [one.margin_seeds or math.inf for one in undecided]
        if metric.margin and needed and (middle := median(needed)) > len(results.seeds):
            words = f"about {middle:,.0f}" if math.isfinite(middle) else f"more than {MOST_SEEDS:,}"
            wide = all(one.ends and one.margin and one.ends[1] - one.ends[0] > 2 * one.margin for one in undecided)
            how = "could not be reached" if wide else "is missed by many arms without a difference"
            said.setdefault((metric.margin, how), []).append(f"{words} in {metric.label}")
    return " ".join(
        f"The margin of {margin} {how} with {len(results.seeds)} seeds: it needs {_listed(words)}."
        for (margin, how), words in said.items()
    )


def _seed_counts(needed: Mapping[str, int | None]) -> list[str]:
    return [f"{f'{count:,}' if count else 'more than a thousand'} for {arm}" for arm, count in needed.items()]


def _unstable_note(results: StudyResults) -> str:
    said = []
    for arm in compared_arms(results):
        labels: dict[tuple[frozenset[int], int], list[str]] = {}
        for metric in results.metrics:
            row = arm.comparisons.get(metric.name)
            if row is not None and row.fallen:
                labels.setdefault((frozenset(row.fallen), len(row.differences)), []).append(metric.label)
        for (seeds, read), some in labels.items():
            said.append(f"{arm.label}: {_falls(arm, seeds, f'{read} runs', some, results)}")
    return f"Runs that fell off (the numbers are of the others): {'; '.join(said)}." if said else ""


def _later_falls_note(results: StudyResults) -> str:
    """Name the runs that fell off after the look that decided, and count all of an arm; empty where there are none."""
    said = []
    for arm in results.arms:
        labels: dict[frozenset[int], list[str]] = {}
        for metric in results.metrics:
            if seeds := _fallen_by_now(results, arm, metric):
                labels.setdefault(seeds, []).append(metric.label)
        for seeds, some in labels.items():
            said.append(f"{arm.label}: {_falls(arm, seeds, f'all {len(arm.runs)} runs', some, results)}")
    if not said:
        return ""
    return f"Runs fell off after the look that decided, and the verdict does not count them: {'; '.join(said)}."


def _fallen_by_now(results: StudyResults, arm: Arm, metric: MetricInfo) -> frozenset[int]:
    """Return the seeds of all runs of an arm that fell off, if some did after a look that decided."""
    if arm.role == "baseline":
        rows = [one.comparisons[metric.name] for one in _compared_in(results, metric)]
        later = {seed for row in rows for seed in row.baseline_fallen_later}
        known = {seed for row in rows for seed in row.baseline_fallen}
        own = {run.seed for run in arm.runs}
        return frozenset((later | known) & own if later & own else ())
    row = arm.comparisons.get(metric.name)
    return frozenset([*row.fallen, *row.fallen_later] if row and row.fallen_later else ())


def _falls(arm: Arm, seeds: Collection[int], whole: str, labels: list[str], results: StudyResults) -> str:
    """Count and name the runs of an arm that fell off, out of the `whole`, in metrics of these labels."""
    fallen = {seed for metric in results.metrics for seed in results.fallen(arm, metric.name)}
    healthy = [run for run in arm.runs if run.seed not in fallen and run.state == "done"]
    at = [_fall_words(run, healthy) for run in arm.runs if run.seed in seeds]
    return f"{len(seeds)} of {whole} in {_some(labels, results)} ({_listed(at)})"


def _fall_words(run: Run, healthy: list[Run]) -> str:
    """Name a run that fell off, and the step from which its loss stays above that of the arm's healthy runs.

    A loss that was measured once, at the end, cannot tell when the run fell.
    """
    for name in (validation.METRIC.name, "flow"):
        curves = [one.curves[name] for one in healthy if name in one.curves]
        if name not in run.curves or not curves or len(run.curves[name].step) < 2:
            continue
        if (step := run.curves[name].stays_above(curves)) is not None:
            return f"seed {run.seed} from step {step:,} on"
    return f"seed {run.seed}"


def _apart_note(results: StudyResults) -> str:
    labels: dict[str, list[str]] = {}
    for metric in results.metrics:
        for note in dict.fromkeys(arm.comparisons[metric.name].note for arm in _compared_in(results, metric)):
            labels.setdefault(note, []).append(metric.label)
    said = [f"in {_some(some, results)}, {note}" for note, some in labels.items() if note]
    return f"Note: {'; '.join(said)}." if said else ""


def _compared_in(results: StudyResults, metric: MetricInfo) -> list[Arm]:
    return [arm for arm in compared_arms(results) if metric.name in arm.comparisons]


def baseline_of(results: StudyResults) -> Arm:
    return next(arm for arm in results.arms if arm.role == "baseline")


def resolution_title(results: StudyResults) -> str:
    """Return the resolution with its tokens; empty in a study of one resolution."""
    baseline = baseline_of(results)
    return f"{baseline.resolution} ({baseline.tokens:,} tokens)" if baseline.resolution else ""


def token_counts(results: StudyResults) -> dict[str, int]:
    """Return the tokens of each of several resolutions, fewest first."""
    return {arm.resolution: arm.tokens for arm in results.arms if arm.role == "baseline" and arm.tokens is not None}


def compared_arms(results: StudyResults) -> list[Arm]:
    return [arm for arm in results.arms if arm.role != "baseline"]


def titled(arm: Arm) -> str:
    """Return the arm's name, with its role where the name does not say it."""
    return arm.name if arm.role in ("arm", arm.name) else f"{arm.name} ({arm.role})"


def primary_metrics(results: StudyResults) -> list[MetricInfo]:
    return [metric for metric in results.metrics if metric.primary] or results.metrics[:1]


def improvement(metric: MetricInfo, difference: float) -> float:
    """Return the difference, signed so that more is better."""
    return difference if metric.direction == "higher" else -difference


def ranked_arms(results: StudyResults) -> list[Arm]:
    """Return the arms with the largest improvement of the first primary metric first, then the control.

    Arms that lost runs of that metric come after those that are complete.
    """
    metric = primary_metrics(results)[0] if results.metrics else None

    def place(arm: Arm) -> tuple[bool, bool, float]:
        comparison = arm.comparisons.get(metric.name) if metric else None
        if metric is None or comparison is None or not math.isfinite(comparison.difference):
            return arm.role == "control", True, 0.0
        return arm.role == "control", comparison.verdict in _LOST, -improvement(metric, comparison.difference)

    return sorted(compared_arms(results), key=place)


def too_few_seeds(metric: MetricInfo, comparison: Comparison) -> bool:
    """Return whether these seeds could not show a change that the metric can have.

    That is where the smallest difference that they would find is larger than the baseline's own value or, for a metric
    between two bounds, than half of its range. An interval without zero refutes it, corrected for others or not; where
    runs were lost, the verdict says so instead.
    """
    if comparison.p is None or comparison.verdict in (*_DECIDED, *_LOST) or _excludes_zero(comparison):
        return False
    least, most = metric.range
    largest = abs(comparison.baseline_mean) if least is None or most is None else (most - least) / 2
    return comparison.detectable is None or not comparison.detectable <= largest


def _excludes_zero(comparison: Comparison) -> bool:
    return comparison.ends is not None and not comparison.ends[0] <= 0 <= comparison.ends[1]


def detectable_words(metric: MetricInfo, comparison: Comparison, decimals: int) -> str:
    """Return the smallest difference that the seeds would find, or that they are too few to find any."""
    return TOO_FEW_SEEDS if too_few_seeds(metric, comparison) else fixed(comparison.detectable, decimals)


def blind_note(results: StudyResults) -> str:
    """Say in which metrics no arm could have shown a change; empty where there are none."""
    blind = _blind(results, _with_role(results, "arm"))
    if not blind:
        return ""
    return (
        f"{len(results.seeds)} seeds are too few to see a change in {_some(blind, results)}: the smallest detectable "
        "difference is larger than the baseline's own value, or than half of the metric's range."
    )


def _blind(results: StudyResults, arms: list[Arm]) -> list[str]:
    """Return labels of the metrics in which none of the arms could have shown a change."""
    found = []
    for metric in results.metrics:
        known = [arm.comparisons[metric.name] for arm in arms if metric.name in arm.comparisons]
        if known and all(too_few_seeds(metric, comparison) for comparison in known):
            found.append(metric.label)
    return found


def _some(labels: list[str], results: StudyResults) -> str:
    """Name a few metrics; count many."""
    return _listed(labels) if len(labels) <= 2 else f"{len(labels)} of {len(results.metrics)} metrics"


def metric_values(arm: Arm, metric: str, without: Collection[int] = ()) -> list[float]:
    """Return the value of each seed that has one, but for those `without`."""
    values = (run.metrics.get(metric) for run in arm.runs if run.seed not in without)
    return [value for value in values if value is not None and math.isfinite(value)]


def mean_of(values: Iterable[float], log: bool = False) -> float | None:
    """Return the mean, the geometric one where values are compared as logarithms; None of no values."""
    known = list(values)
    if log and all(value > 0 for value in known):
        return geometric_mean(known) if known else None
    return fmean(known) if known else None


def is_log(results: StudyResults, metric: str) -> bool:
    """Return whether values of a metric are compared as logarithms."""
    rows = [arm.comparisons[metric] for arm in results.arms if metric in arm.comparisons]
    return any(row.scale == "log" for row in rows)


def compared_mean(results: StudyResults, arm: Arm, metric: str) -> float | None:
    """Return an arm's mean as it was compared, at one resolution; where it was not, a mean of the same kind."""
    row = arm.comparisons.get(metric)
    if row is not None:
        return row.mean
    if arm.role == "baseline" and (mean := results.baseline_mean(metric)) is not None:
        return mean
    return mean_of(metric_values(arm, metric, results.fallen(arm, metric)), is_log(results, metric))


def mean_note(results: StudyResults) -> str:
    """Say which mean is shown where it is not the plain one of an arm's runs; empty where all are plain."""
    views = results.by_resolution()
    log = any(is_log(view, metric.name) for view in views for metric in results.metrics)
    scales = {row.scale for arm in results.arms for row in arm.comparisons.values()}
    both = any(len(view.like_baseline(metric.name)) > 1 for view in views for metric in results.metrics)
    said = [
        "Means of distances and losses are geometric, as they are compared as logarithms." if log else "",
        "Means of shares, KID and MMD are taken on the scale on which they are compared."
        if scales & {"logit", "asinh"}
        else "",
        "The baseline's mean is over its own runs and the control's, as the arms are compared with both."
        if both
        else "",
    ]
    return " ".join(filter(None, said))


def spread_of(values: list[float]) -> float | None:
    """Return the seed spread, a standard deviation; None with one seed."""
    return stdev(values) if len(values) > 1 else None


def relative(comparison: Comparison) -> float | None:
    return comparison.difference / abs(comparison.baseline_mean) if comparison.baseline_mean else None


def speed_words(comparison: Comparison) -> str:
    """Write the throughput relative to the baseline's: with its spread over seeds, or with its verdict."""
    change, spread = percent(relative(comparison)), spread_of(comparison.differences)
    if comparison.verdict == "measured" and spread is not None and comparison.baseline_mean:
        return f"{change} ± {percent(spread / comparison.baseline_mean).lstrip('+')}"
    return change if comparison.verdict in ("measured", "sketch") else f"{change} ({comparison.words})"


def step_words(results: StudyResults, arm: Arm) -> str:
    """Write the cost of an arm's step, measured alone at one resolution; empty where it or the baseline's was not.

    Relative to the baseline's it is one number: it was measured once, so it has no interval.
    """
    usual = baseline_of(results).step_s
    if arm.step_s is None or usual is None:
        return ""
    change = [] if arm.role == "baseline" else [f"{percent(arm.step_s / usual - 1)} time"]
    return "; ".join(filter(None, [f"step alone {step_time(arm.step_s)}", *change, memory_words(arm)]))


def step_time(seconds: float | None) -> str:
    """Write the seconds of a step."""
    if seconds is None:
        return UNKNOWN
    return f"{numerals.significant(seconds)} s" if seconds >= 1 else f"{numerals.significant(1000 * seconds)} ms"


def memory_words(arm: Arm) -> str:
    """Write the peak of an arm's memory on its GPU; empty where it was not measured."""
    return gigabytes(arm.alone.peak_bytes) if arm.alone and arm.alone.peak_bytes else ""


def gigabytes(count: int) -> str:
    """Write a number of bytes; a dash for none."""
    return f"{fixed(count / 1e9, 1)} GB" if count else UNKNOWN


def cost_rows(results: StudyResults) -> list[dict[str, Any]]:
    """Return memory and step time of each arm that was measured alone, with the step over the baseline's."""
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
    """Return what was measured of an arm alone, under `COST_HEADS`."""
    usual, alone = baseline_of(results).step_s, arm.alone
    if alone is None:
        return [UNKNOWN] * len(COST_HEADS)
    relative = None if usual is None or alone.step_s is None or arm.role == "baseline" else alone.step_s / usual - 1
    memory = [gigabytes(alone.peak_bytes), gigabytes(alone.host_bytes)]
    return [step_time(alone.step_s), percent(relative), str(alone.steps or UNKNOWN), *memory]


def cost_note(results: StudyResults) -> str:
    """Say how steps were measured alone; empty where none was."""
    timed = [arm.alone for arm in results.arms if arm.alone is not None and arm.alone.step_s is not None]
    if not timed:
        return ""
    steps = sorted({alone.steps for alone in timed})
    counts = f"{steps[0]:,}" if len(steps) == 1 else f"{steps[0]:,} to {steps[-1]:,}"
    others = [arm.label for arm in results.arms if arm.step_s is None]
    left = f" Not measured so: {_listed(others)}." if others else ""
    factor = _uneven(results)
    logs = f" In the runs' logs, images/s differ up to {factor:.1f} times between runs of one plan: they are no cost."
    return (
        f"Cost: the time of a training step, measured alone on one {timed[0].device}, mean of {counts} steps. Each was "
        f"measured once, so there is no interval.{logs if factor else ''}{left}"
    )


def interval_words(results: StudyResults, comparison: Comparison) -> str:
    """Name the interval; empty where there is none."""
    return "" if comparison.low is None else f"simultaneous {100 * results.confidence:g}% interval"


def metric_decimals(results: StudyResults, metric: str) -> int:
    """Return one number of decimals for all of a metric's values, so that they can be read down a column.

    They show two digits of the intervals and, where few seeds make those wide, one of the baseline's spread.
    """
    compared = [arm.comparisons[metric] for arm in compared_arms(results) if metric in arm.comparisons]
    reaches = [(c.ends[1] - c.ends[0]) / 2 for c in compared if c.ends and c.ends[1] > c.ends[0]]
    values = metric_values(baseline_of(results), metric)
    if reaches:
        return decimals_showing(min(median(reaches), 10 * (spread_of(values) or math.inf)))
    mean = mean_of(values)
    return decimals_showing(abs(mean) / 10 if mean else 0)


def lost_runs(results: StudyResults) -> list[tuple[Arm, Run]]:
    return [(arm, run) for arm in results.arms for run in arm.runs if run.state != "done"]


def differing_controls(results: StudyResults) -> list[tuple[Arm, list[MetricInfo]]]:
    """Return control arms that look better or worse than the baseline, though only the seeds differ."""
    controls = _with_role(results, "control")
    found = [(arm, [metric for metric in results.metrics if verdict_of(arm, metric) in _FOUND]) for arm in controls]
    return [(arm, metrics) for arm, metrics in found if metrics]


class _Condition(BaseModel):
    name: str
    prompts: str
    method: object = None
    steps: object = None
    guidance: object = None


class SampledPrompts(BaseModel):
    """The part of a stored protocol that says on which prompts images are sampled. Other keys are ignored."""

    prompts: str = "long"
    """The prompts of the main sampling; older protocols do not have the key."""
    also: tuple[_Condition, ...] = ()

    def scored_on(self, metrics: Collection[str]) -> list[str]:
        """Return the prompts that any of the metrics is measured on, those of the main sampling first.

        A condition can be sampled and give no number: without distances, scenes or an encoder that reads text.
        """
        named = [one.prompts for one in self.also if any(metric.endswith(f"_{one.name}") for metric in metrics)]
        return list(dict.fromkeys([self.prompts, *named]))

    def comparable(self) -> dict[str, str]:
        """Return condition -> prompts of the conditions that differ from the main sampling in their prompts only."""
        return {
            one.name: one.prompts
            for one in self.also
            if one.prompts != self.prompts and one.method is one.steps is one.guidance is None
        }


def reads_other_captions(changed: Iterable[str]) -> bool:
    """Return whether an arm that changes these keys is trained on other captions; caption dropout does not count."""
    return any(key.partition(".")[0] == "captions" and key != "captions.dropout" for key in changed)


def kind_words(prompts: str) -> str:
    return f"{prompts} prompts" if is_caption(prompts) else f"prompts of {Path(prompts).name}"


def one_kind_note(arms: Sequence[str], protocol: Mapping[str, object], metrics: Collection[str]) -> str:
    """Return a warning where these arms read other captions and all are scored on one kind of prompt; else ''.

    A model does best on prompts like the captions that it was trained on. PRX trained an arm on short captions and
    scored it on long prompts only, which mixes the effect of the captions with that of unlike prompts.
    """
    sampled = SampledPrompts.model_validate(protocol)
    if not arms or len(sampled.scored_on(metrics)) > 1:
        return ""
    return (
        f"Scored on {kind_words(sampled.prompts)} only, though {', '.join(dict.fromkeys(arms))} "
        f"{'reads' if len(set(arms)) == 1 else 'read'} other captions than the baseline: a loss may come from prompts "
        "unlike their captions. Score short prompts too: "
        '--set "evaluation.also=[{name: short, prompts: short}]"'
    )


def caption_arms(results: StudyResults) -> list[Arm]:
    """Return the arms that were trained on other captions than the baseline."""
    return [arm for arm in results.arms if reads_other_captions(change.key for change in arm.changes)]


def one_kind_of_prompt(results: StudyResults) -> str:
    """Return the warning of a study of captions that is scored on one kind of prompt; else ''."""
    names = [arm.name for arm in caption_arms(results)]
    return one_kind_note(names, results.protocol, [metric.name for metric in results.metrics])


def metrics_by_prompts(results: StudyResults) -> list[list[tuple[str, MetricInfo]]]:
    """Return (prompts, metric) of each metric that was measured on several kinds of prompts, in a study of captions."""
    if not caption_arms(results):
        return []
    known = {metric.name: metric for metric in results.metrics}
    sampled = SampledPrompts.model_validate(results.protocol)
    kinds = {"": sampled.prompts, **{f"_{name}": prompts for name, prompts in sampled.comparable().items()}}
    groups = [
        [(kind_words(kind), known[metric + ending]) for ending, kind in kinds.items() if metric + ending in known]
        for metric in known
    ]
    return [group for group in groups if len(group) > 1]


def short_reason(of: Arm | Between, metric: str) -> str:
    """Return the first words of the reason why a metric is not compared."""
    return of.incomparable[metric].partition(":")[0]


def left_out(results: StudyResults, metric: str) -> str:
    """Name the arms that a figure leaves out because their scale differs; empty where there are none."""
    apart = [arm for arm in results.arms if metric in arm.incomparable]
    return f"Left out: {_names(apart)} ({short_reason(apart[0], metric)})." if apart else ""


def fallen_left_out(results: StudyResults, *metrics: str) -> str:
    """Name the runs that fell off in any of the metrics, which a figure's means leave out; empty where none did."""
    fell = {arm.name: seeds for arm in results.arms if (seeds := fallen_in(results, arm, *metrics))}
    said = [f"{name} (seed {_listed(list(map(str, sorted(seeds))))})" for name, seeds in fell.items()]
    return f"Runs that fell off, which no mean here counts: {', '.join(said)}." if said else ""


def fallen_in(results: StudyResults, arm: Arm, *metrics: str) -> set[int]:
    """Return the seeds of an arm's own runs that fell off in any of the metrics."""
    fell = {seed for metric in metrics for seed in results.fallen(arm, metric)}
    return fell & {run.seed for run in arm.runs}


def apart_notes(results: StudyResults) -> list[str]:
    """Return a sentence for each metric and reason for which arms are not compared."""
    arms: dict[tuple[str, str], list[Arm]] = {}
    for metric in results.metrics:
        for arm in compared_arms(results):
            if metric.name in arm.incomparable:
                arms.setdefault((metric.label, arm.incomparable[metric.name]), []).append(arm)
    return [f"Not compared: {label} of {_names(some)} ({reason})." for (label, reason), some in arms.items()]


def primary_interval(results: StudyResults) -> str:
    """Name the intervals of the arms' primary metrics; empty where there are none."""
    names = [metric.name for metric in primary_metrics(results)]
    rows = [arm.comparisons[name] for arm in _with_role(results, "arm") for name in names if name in arm.comparisons]
    return next((words for row in rows if (words := interval_words(results, row))), "")


PROMPTS_LEAD = (
    "Some arms read other captions than the baseline, and a model does best on prompts like the captions that it was "
    "trained on. Each kind of prompt is compared with the baseline by itself."
)


def lead(results: StudyResults) -> str:
    """Say how the arms are sorted and what their numbers are."""
    primary, interval = primary_metrics(results), primary_interval(results)
    order = f"Arms are sorted by {primary[0].label}, best first. " if primary else ""
    brackets = f"; in brackets, the {interval}" if interval else ""
    return f"{order}Numbers are differences from the baseline (arm minus baseline){brackets}."


def warnings(results: StudyResults) -> list[str]:
    """List what a reader must know before the answer."""
    found = ["Sketch: one seed, so the seed spread is unknown: no interval and no verdict."] if results.sketch else []
    found += filter(None, [control_warning(results)])
    if note := one_kind_of_prompt(results):
        found.append(f"{note}.")
    if contradicted(results):
        found.append(f"Fresh seeds contradict a verdict. {replication_note(results)}")
    for arm, run in lost_runs(results):
        why, again = f" – {run.error}" if run.error else "", try_again(run)
        found.append(f"Run {run.state}: {arm.label}, seed {run.seed}{why}" + (f" (again: `{again}`)" if again else ""))
    return found


def control_warning(results: StudyResults) -> str:
    """Warn of a control that looks better or worse than the baseline; empty where none does."""
    differs = "The control differs from the baseline: treat this study's verdicts with suspicion."
    return differs if differing_controls(results) else ""


def try_again(run: Run) -> str:
    """Return the command that runs a failed run again, for the study's folder DIR; empty for other runs."""
    return f"tintype work DIR --run {run.hash}" if run.state == "failed" else ""


def notes(results: StudyResults) -> list[str]:
    """Return the notes on the answer: which look it is, what the control shows, what this study cannot detect."""
    said: dict[str, list[str]] = {}
    views = results.by_resolution()
    for view in views:
        for note in _notes_at_one(view):
            said.setdefault(note, []).append(resolution_title(view))
    found = [note if len(where) == len(views) else f"At {_listed(where)}: {note}" for note, where in said.items()]
    return [*_study_notes(results), *found]


def _study_notes(results: StudyResults) -> list[str]:
    replication = [] if contradicted(results) else [replication_note(results)]
    crowded = crowded_words(results.crowded)
    first = filter(None, [few_seeds_note(results), *replication, crowded])
    return [*first, *look_notes(results), *bank_notes(results)]


def bank_notes(results: StudyResults) -> list[str]:
    """Say which stored runs serve, what the check of them shows, and which do not serve; empty without a bank."""
    if (bank := results.bank) is None:
        return []
    labels = {metric.name: metric.label for metric in results.metrics}
    level = f"{bank.level:.0%}"
    names = _listed([one.study for one in bank.sources])
    found = [
        f"Stored runs: {bank.served} of the baseline from {names} serve beside the study's own (same plan, protocol, "
        "NUMERICS, frozen networks and kind of device)."
        if bank.served
        else f"Stored runs: none of the baseline from {names} serve."
    ]
    apart = [one for one in bank.checks if not one.agrees]
    if bank.checks and not apart:
        found[0] += f" In each metric they agree with the study's own runs (the {level} interval holds zero)."
    elif apart:
        words = [
            arm_label(labels.get(one.metric, one.metric), one.resolution)
            + (
                " (own minus stored {:+.3g} [{:+.3g}, {:+.3g}])".format(one.difference.value, *ends)
                if (ends := one.difference.ends)
                else f" ({one.own} own, {one.stored} stored: not comparable)"
            )
            for one in apart
        ]
        found[0] += (
            f" In {len(apart)} of {len(bank.checks)} metrics they do not agree with the study's own runs by the "
            f"{level} interval, and do not serve: {'; '.join(words)}. One in five does so by chance."
        )
    collapsed = [f"{one.collapsed} in {labels.get(one.metric, one.metric)}" for one in bank.checks if one.collapsed]
    if collapsed:
        found.append(f"Stored runs that collapsed, and are left out like any other: {_listed(collapsed)}.")
    left = [*bank.left_out, *(f"of {one.study}, {words}" for one in bank.sources for words in one.left_out)]
    if left:
        found.append(f"Stored runs that do not serve: {'; '.join(left)}.")
    return found


def few_seeds_note(results: StudyResults) -> str:
    """Call verdicts from a few seeds a sketch, until they are replicated; empty where there are none such."""
    compared: list[Arm | Between] = [*_with_role(results, "arm"), *results.between]
    rows = [one for of in compared for one in of.comparisons.values() if one.verdict in _DECIDED]
    few = sorted({seeds for one in rows if (seeds := len(one.differences)) < _FEW_SEEDS})
    if not few or results.replication is not None:
        return ""
    return f"Verdicts from {_listed(list(map(str, few)))} seeds are a sketch: replicate them before you build on them."


def contradicted(results: StudyResults) -> bool:
    """Return whether fresh seeds contradict a verdict of the study; a warning then says so."""
    return results.replication is not None and any(row.outcome == "contradicted" for row in results.replication.rows)


def look_notes(results: StudyResults) -> list[str]:
    """Say which look at the study this is, and what planned looks saved; empty at the first look at fixed seeds."""
    made = [look for look in results.looks if look.made]
    if results.looks_planned:
        ahead = "" if len(made) == len(results.looks) or not _going_on(results) else ", and more are to come"
        most = len(results.looks[-1].seeds)
        whole, runs = most * len(results.arms), sum(len(arm.runs) for arm in results.arms)
        saved = f" With {most} seeds for every arm it would have been {whole}." if runs < whole and not ahead else ""
        return [
            f"{len(made)} of {len(results.looks)} planned looks were made{ahead}. The study has {runs} runs.{saved}"
        ]
    if len(made) < 2:
        return []
    before = _listed([str(len(look.seeds)) for look in made[:-1]])
    return [
        f"Look {len(made)} of this study: it was read before with {before} seeds, so this look has "
        f"{100 * made[-1].share:.3g}% of its error. Verdicts that an earlier look reached stay."
    ]


def replication_words(results: StudyResults, of: Arm | Between, metric: str) -> str:
    """Say what fresh seeds show of a verdict, or that none were run; empty where there is no verdict to replicate."""
    row, control = of.comparisons.get(metric), isinstance(of, Arm) and of.role != "arm"
    if row is None or control or row.verdict not in get_args(Replicated.model_fields["verdict"].annotation):
        return ""
    made = results.replication
    found = next((one for one in made.rows if (one.arm, one.metric) == (of.label, metric)), None) if made else None
    if made is None or found is None or found.verdict != row.verdict:
        return "not replicated"
    return f"replicated on {len(made.seeds)} fresh seeds{_source(made)}: {outcome_words(found)}"


def outcome_words(row: Replicated) -> str:
    """Return the outcome; of an open verdict also the fresh seeds that would settle it, or the runs that it lost."""
    if row.fresh is None or row.fresh.ends is None:
        told = row.outcome not in ("open", "incomplete") or row.words == row.outcome
        return row.outcome if told else f"{row.outcome} ({row.words})"
    settled: str = row.outcome
    if row.outcome == "open" and row.level is not None:
        needed = f"{row.seeds_needed:,}" if row.seeds_needed else f"more than {MOST_SEEDS:,}"
        settled = f"open, {needed} fresh seeds would settle it"
    return f"{settled} ({row.words})" if "collapsed" in row.words else settled


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
    """Say how to read the table of a replication."""
    rows = results.replication.rows if results.replication else []
    earlier = any(row.level is None and row.fresh is not None and row.fresh.ends is not None for row in rows)
    return _REPLICATION_LEAD + (_EARLIER if earlier else "")


def replication_rows(results: StudyResults) -> list[list[str]]:
    """Return the first, the fresh and the pooled estimate of each verdict side by side, as cells of a table."""
    labels = {metric.name: metric.label for metric in results.metrics}
    found = []
    for row in results.replication.rows if results.replication else ():
        decimals = metric_decimals(results, row.metric) if row.metric in labels else 3
        values = [_with_interval(one, decimals) for one in (row.first, row.fresh, row.pooled)]
        found.append([row.arm, labels.get(row.metric, row.metric), row.verdict, *values, outcome_words(row)])
    return found


def _with_interval(one: Interval | None, decimals: int) -> str:
    if one is None:
        return UNKNOWN
    return f"{fixed(one.value, decimals, signed=True)} {numerals.interval(one.low, one.high, decimals)}".strip()


_OUTCOMES: dict[Outcome, tuple[str, str]] = {
    "holds": ("holds", "hold"),
    "open": ("is open", "are open"),
    "contradicted": ("is contradicted", "are contradicted"),
    "incomplete": ("is incomplete", "are incomplete"),
}
"""Words for one verdict and for several."""


def replication_note(results: StudyResults) -> str:
    """Count the verdicts that held on fresh seeds, and name those that did not; empty where none were replicated."""
    if (made := results.replication) is None:
        return ""
    labels = {metric.name: metric.label for metric in results.metrics}
    counts = {kind: sum(row.outcome == kind for row in made.rows) for kind in get_args(Outcome)}
    counted = _listed([f"{count} {_OUTCOMES[kind][count > 1]}" for kind, count in counts.items() if count])
    others = [row for row in made.rows if row.outcome != "holds"]
    named = [f"{row.arm} in {labels.get(row.metric, row.metric)} ({_fresh_words(row)})" for row in others]
    beside = f" Not shown to hold: {'; '.join(named)}." if named else ""
    verdicts = "1 verdict was" if len(made.rows) == 1 else f"{len(made.rows)} verdicts were"
    return f"{verdicts} replicated on {len(made.seeds)} fresh seeds{_source(made)}: {counted}.{beside}"


def _source(made: Replication) -> str:
    """Name the finished study whose runs are the fresh ones; empty where they were run for this."""
    return f" of {made.source}" if made.source else ""


def _fresh_words(row: Replicated) -> str:
    """Write the first and the fresh difference of a verdict."""
    first = f"{row.verdict} by {row.first.value:+.3g}" if row.verdict != "same" else "same"
    if row.fresh is None:
        return f"{first}, then {outcome_words(row)}"
    interval = " [{:+.3g}, {:+.3g}]".format(*ends) if (ends := row.fresh.ends) else ""
    return f"{first}, then {row.fresh.value:+.3g}{interval}: {outcome_words(row)}"


def _going_on(results: StudyResults) -> bool:
    """Return whether an arm may get more seeds."""
    return any(not arm.stopped for arm in _with_role(results, "arm"))


def _notes_at_one(results: StudyResults) -> list[str]:
    every = (control_note(results), blind_note(results), *apart_notes(results), speed_note(results), cost_note(results))
    return [note for note in every if note]


def speed_note(results: StudyResults) -> str:
    """Warn of speeds that differ between runs of one plan, which is how runs look that share a GPU; empty otherwise.

    Nothing is to warn of where a step of every arm was measured alone: that is shown as the cost.
    """
    factor = _uneven(results)
    if not factor or results.timed_alone:
        return ""
    return (
        f"Runs of one plan differ up to {factor:.1f} times in throughput, as they do where several share a device or "
        "other work runs beside them: speeds here say nothing of the arms. Measure them by tintype bench."
    )


def _uneven(results: StudyResults) -> float:
    """Return the largest ratio of two speeds of one plan; 0 where all runs of each plan are about as fast."""
    speeds = [metric_values(arm, SPEED) for arm in results.arms]
    factor = max((max(of) / min(of) for of in speeds if of and min(of) > 0), default=1.0)
    return factor if factor >= _UNEVEN else 0.0


def control_note(results: StudyResults) -> str:
    """Say what the control shows where it could have shown a difference; empty in a sketch, or where it differs."""
    controls = _with_role(results, "control")
    if results.sketch or differing_controls(results):
        return ""
    if not controls:
        return (
            "No control (the baseline with other seeds) was run, so this study cannot show how often it would find a "
            "difference where there is none."
        )
    verdicts = [(metric, verdict_of(arm, metric)) for arm in controls for metric in results.metrics]
    lost = {verdict for _, verdict in verdicts}.intersection(_LOST)
    if worst := next((verdict for verdict in _LOST if verdict in lost), ""):
        what = "is incomplete" if worst == "incomplete" else f"has runs that {worst}"
        return f"The control (the baseline with other seeds) {what}."
    blind = [*_blind(results, controls), *(metric.label for metric, verdict in verdicts if verdict == "no spread")]
    if len(blind) == sum(metric.name != SPEED for metric, _ in verdicts):
        return (
            f"The control (the baseline with other seeds) shows nothing: with {len(results.seeds)} seeds it could not "
            "detect a difference in any metric."
        )
    beyond = f" With {len(results.seeds)} seeds it could not detect one in {_some(blind, results)}." if blind else ""
    if fell := [metric.label for metric, verdict in verdicts if verdict == "unstable"]:
        return (
            f"The control (the baseline with other seeds) is unstable in {_some(fell, results)}: runs of it or of the "
            f"baseline fell off, so it shows neither a difference there nor that there is none.{beyond}"
        )
    return f"The control (the baseline with other seeds) shows no difference, as it should.{beyond}"


def verdict_of(arm: Arm, metric: MetricInfo) -> str:
    """Return an arm's verdict on a metric, also where there is no comparison."""
    if metric.name in arm.incomparable:
        return NOT_COMPARABLE
    comparison = arm.comparisons.get(metric.name)
    return comparison.verdict if comparison else "incomplete"


def _with_role(results: StudyResults, role: str) -> list[Arm]:
    return [arm for arm in results.arms if arm.role == role]


def _names(arms: list[Arm]) -> str:
    return ", ".join(arm.name for arm in arms)


def _listed(words: list[str]) -> str:
    return " and ".join([", ".join(words[:-1]), words[-1]]) if len(words) > 1 else "".join(words)


def compared_trends(results: StudyResults) -> list[tuple[Trend, MetricInfo]]:
    """Return the trends by metric, without the control's, which has no pairs."""
    controls = {arm.name for arm in _with_role(results, "control")}
    return [
        (trend, metric)
        for metric in results.metrics
        for trend in results.trends
        if trend.metric == metric.name and trend.arm not in controls
    ]


def trend_verdict(trend: Trend) -> str:
    if trend.comparison:
        return trend.comparison.verdict
    return "not defined" if trend.undefined.startswith((NOT_POSITIVE, ANOTHER_SPACE)) else "incomplete"


def trend_words(trend: Trend, metric: MetricInfo) -> str:
    """Say whether an arm helps or hurts (by its mean) more or less with more tokens, or the verdict."""
    comparison = trend.comparison
    if comparison is None:
        return trend_verdict(trend)
    if comparison.verdict not in _FOUND:
        return comparison.words
    at_fewest, at_most = (improvement(metric, one) for one in (comparison.baseline_mean, comparison.mean))
    if comparison.verdict == "better":
        return "helps more" if at_most > 0 else "hurts less"
    return "helps less" if at_fewest > 0 else "hurts more"


def log_percent(logarithm: float | None) -> str:
    """Write a logarithm of a ratio as a signed percentage."""
    return percent(None if logarithm is None else math.expm1(min(logarithm, _LARGEST_LOG)))


def log_interval(comparison: Comparison | None) -> str:
    ends = comparison.ends if comparison else None
    return f"[{log_percent(ends[0])}, {log_percent(ends[1])}]" if ends else ""


def log_detectable(comparison: Comparison | None) -> str:
    """Write the smallest detectable change of an effect; where it would double the effect, the seeds are too few."""
    if comparison is None:
        return UNKNOWN
    if comparison.p is None or comparison.verdict in _FOUND or (comparison.detectable or math.inf) <= math.log(2):
        return log_percent(comparison.detectable)
    return TOO_FEW_SEEDS


def undefined_trends(results: StudyResults) -> list[str]:
    """Return why some arms have no relative effect."""
    undefined = [one.undefined for one, _ in compared_trends(results) if trend_verdict(one) == "not defined"]
    return list(dict.fromkeys(undefined))


def effects_at_ends(trend: Trend) -> tuple[str, str]:
    """Write the relative effect at the fewest and at the most tokens, over the seeds of the comparison."""
    one = trend.comparison
    return (log_percent(one.baseline_mean), log_percent(one.mean)) if one else (UNKNOWN, UNKNOWN)


def distinct_arms(results: StudyResults) -> list[tuple[Arm, str]]:
    """Return each compared arm once; where its changes differ between resolutions, once for each with their names."""
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
"""Smaller shares would be written as 0.0 % and are left out: some parts of a step are timed and do nothing."""


def time_parts(results: StudyResults) -> list[str]:
    """Return the parts that took time, in the order of a training step."""
    taken = {part for arm in results.arms for part, share in time_shares(arm).items() if share > _LEAST_SHARE}
    return [*(part for part in TIME_PARTS if part in taken), *sorted(taken.difference(TIME_PARTS))]


def time_shares(arm: Arm) -> dict[str, float]:
    """Return the shares of an arm's training time by part, averaged over its runs; empty where no run was timed."""
    runs = [run.time_split for run in arm.runs if sum(run.time_split.values()) > 0]
    parts = dict.fromkeys(part for split in runs for part in split)
    return {part: fmean(split.get(part, 0.0) / sum(split.values()) for split in runs) for part in parts}


def time_words(arm: Arm) -> str:
    """Return a warning of a part that takes too much of a step; empty where there is none."""
    tuned = any(run.tokenizer is not None and run.tokenizer.tuned for run in arm.runs)
    return tokenizer_words(time_shares(arm).get("tokenizer"), tuned)


@dataclass(frozen=True)
class LatentsRow:
    """One tokenizer of a study, the arms that use it, and the statistics of its latents, averaged over runs."""

    tokenizer: TokenizerInfo
    arms: list[Arm]
    images: list[int]
    """Distinct numbers of images of the runs."""
    mean_C: list[float]
    std_C: list[float]

    @property
    def ratio(self) -> float:
        """Return the number of values of an image over that of its latents."""
        return 3 * self.tokenizer.stride_px**2 / self.tokenizer.channels

    @property
    def kind_words(self) -> str:
        """Name the kind; a tokenizer that is trained is described before training."""
        return f"{self.tokenizer.kind}, before it is trained" if self.tokenizer.tuned else self.tokenizer.kind

    @property
    def mean(self) -> float | None:
        return mean_of(self.mean_C)

    @property
    def std(self) -> float | None:
        """Return the standard deviation of all latents together, the spread of channel means included."""
        middle = self.mean
        if middle is None:
            return None
        return math.sqrt(fmean(s * s + (m - middle) ** 2 for m, s in zip(self.mean_C, self.std_C, strict=True)))

    def words(self, kind: Literal["mean", "std"]) -> str:
        """Write the value over all latents, and its range over channels."""
        whole, channels = (self.mean, self.mean_C) if kind == "mean" else (self.std, self.std_C)
        if whole is None:
            return UNKNOWN
        return f"{fixed(whole, 2)} ({fixed(min(channels), 2)} to {fixed(max(channels), 2)})"


def latents_rows(results: StudyResults) -> list[LatentsRow]:
    """Return a row for each tokenizer in the order of the arms; none where all arms work on pixels."""
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
    """Return the command, versions and devices of the results. Older results lack some."""
    known = environment(results)
    facts = {
        "command": "\n".join(shlex.join(command.argv) for command in results.commands),
        "date": ", ".join(dict.fromkeys(command.date[:10] for command in results.commands)),
        **{key: "; ".join(known.get(key, [])) for key in ("tintype", "commit", "torch", "device")},
    }
    return {key: words for key, words in facts.items() if words or key == "command"}


def repeatability(results: StudyResults) -> str:
    """Say which of the study's results the same plan gives again to the bit; empty where the device is not known."""
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
    """Say what holds of runs on a GPU. Runs of earlier versions do not say whether they were exact."""
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
    """Return why runs of an arm may differ in their bits from others of the same seed."""
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
    """Return each part of a metric, averaged over the seeds but for those `without`."""
    values: dict[str, list[float]] = {}
    for run in (run for run in arm.runs if run.seed not in without):
        for part, value in run.details.get(metric, {}).items():
            if math.isfinite(value):
                values.setdefault(part, []).append(value)
    return {part: fmean(of_seeds) for part, of_seeds in values.items()}


def plain(value: object) -> str:
    """Write a setting's value in one line."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
