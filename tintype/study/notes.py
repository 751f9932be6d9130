"""Make notes on a study's results that a reader should know before relying on a verdict.

All output formats show the notes that `notes_of` returns, and each format escapes the text in its own way.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any, get_args

from tintype.metrics import validation
from tintype.metrics.throughput import tokenizer_words
from tintype.study.numbers import (
    DECIDED,
    FOUND,
    LOST,
    compared_arms,
    is_log,
    lost_runs,
    metric_values,
    primary_metrics,
    resolution_title,
    time_shares,
    too_few_seeds,
    verdict_of,
    with_role,
)
from tintype.study.prompts import caption_arms, one_kind_note
from tintype.study.results import (
    SPEED,
    Arm,
    Between,
    Interval,
    MetricInfo,
    Outcome,
    Replicated,
    Replication,
    Run,
    StudyResults,
    arm_label,
)
from tintype.study.stats.estimate import MOST_SEEDS

DECIDE = "decide by what you need"
FEW_SEEDS = 5
"""If a study has fewer seeds, a note calls its verdicts a sketch."""
_UNEVEN = 1.5
"""Speeds are not compared if the fastest run of a plan is this many times as fast as the plan's slowest run."""
_CONTROL = "The control (the baseline with other seeds)"
_OUTCOMES: dict[Outcome, tuple[str, str]] = {
    "holds": ("holds", "hold"),
    "open": ("is open", "are open"),
    "contradicted": ("is contradicted", "are contradicted"),
    "incomplete": ("is incomplete", "are incomplete"),
}


@dataclass(frozen=True)
class Note:
    kind: str
    text: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """The numbers and names in the text, as plain data."""
    where: tuple[str, ...] = ()
    """The resolutions to which the note applies; empty for all."""
    warns: bool = False
    """Whether the note must be shown before the verdicts."""

    @property
    def data(self) -> dict[str, Any]:
        return {"kind": self.kind, "text": self.text, "warns": self.warns, "where": list(self.where), **self.arguments}


def notes_of(results: StudyResults) -> list[Note]:
    """Return warnings, then notes on trust in the verdicts, then notes on how to decide open verdicts."""
    return [*_warnings(results), *_on_the_study(results), *_at_resolutions(results), *_on_verdicts(results)]


def listed(words: Iterable[object]) -> str:
    """Return the items as "a, b and c"."""
    *first, last = list(map(str, words)) or [""]
    return f"{', '.join(first)} and {last}" if first else last


def some_metrics(labels: Sequence[str], results: StudyResults) -> str:
    """Name the metrics if they are few; otherwise return their number."""
    return listed(labels) if len(labels) <= 2 else f"{len(labels)} of {len(results.metrics)} metrics"


# Warnings


def _warnings(results: StudyResults) -> Iterator[Note]:
    if results.sketch:
        text = "Sketch: one seed, so the seed spread is unknown: no interval and no verdict."
        yield Note("sketch", text, warns=True)
    for arm in differing_controls(results):
        text = "The control differs from the baseline: treat this study's verdicts with suspicion."
        labels = [metric.label for metric in results.metrics if verdict_of(arm, metric) in FOUND]
        yield Note("control_differs", text, {"control": arm.label, "metrics": labels}, warns=True)
    arms = [arm.name for arm in caption_arms(results)]
    if text := one_kind_note(arms, results.protocol, [metric.name for metric in results.metrics]):
        yield Note("one_kind_of_prompt", f"{text}.", {"arms": arms}, warns=True)
    if contradicted(results) and (note := _replicated(results)):
        yield replace(note, kind="contradicted", text=f"Fresh seeds contradict a verdict. {note.text}", warns=True)
    for arm, run in lost_runs(results):
        command = try_again(run)
        why, again = f" – {run.error}" if run.error else "", f" (again: `{command}`)" if command else ""
        facts = {"arm": arm.label, "seed": run.seed, "state": run.state, "error": run.error or "", "command": command}
        yield Note("lost_run", f"{arm.label}, seed {run.seed}: {run.state}{why}{again}", facts, warns=True)


def differing_controls(results: StudyResults) -> list[Arm]:
    """Describe control arms that differ from the baseline, although only the seeds differ."""
    controls = with_role(results, "control")
    return [arm for arm in controls if any(verdict_of(arm, metric) in FOUND for metric in results.metrics)]


def contradicted(results: StudyResults) -> bool:
    """Return whether fresh seeds contradict a verdict of the study."""
    return results.replication is not None and any(row.outcome == "contradicted" for row in results.replication.rows)


def try_again(run: Run) -> str:
    """Return the command that repeats a failed run in the study's folder DIR; empty for other runs."""
    return f"tintype work DIR --run {run.hash}" if run.state == "failed" else ""


# The whole study: seeds, replication, looks, stored runs


def _on_the_study(results: StudyResults) -> Iterator[Note]:
    compared: list[Arm | Between] = [*with_role(results, "arm"), *results.between]
    rows = [one for of in compared for one in of.comparisons.values() if one.verdict in DECIDED]
    few = sorted({seeds for one in rows if (seeds := len(one.differences)) < FEW_SEEDS})
    if few and results.replication is None:
        text = f"Verdicts from {listed(few)} seeds are a sketch: replicate them before you build on them."
        yield Note("few_seeds", text, {"seeds": few})
    if not contradicted(results) and (note := _replicated(results)):
        yield note
    if results.crowded:
        yield _crowded(results)
    yield from _looks(results)
    yield from _bank(results)


def _replicated(results: StudyResults) -> Note | None:
    """Count the verdicts that held on fresh seeds, and name the other verdicts."""
    if (made := results.replication) is None:
        return None
    labels = {metric.name: metric.label for metric in results.metrics}
    counts = {kind: sum(row.outcome == kind for row in made.rows) for kind in get_args(Outcome)}
    counted = listed(f"{count} {_OUTCOMES[kind][count > 1]}" for kind, count in counts.items() if count)
    others = [row for row in made.rows if row.outcome != "holds"]
    named = "; ".join(f"{row.arm} in {labels.get(row.metric, row.metric)} ({_fresh(row)})" for row in others)
    beside = f" Not shown to hold: {named}." if named else ""
    verdicts = "1 verdict was" if len(made.rows) == 1 else f"{len(made.rows)} verdicts were"
    text = f"{verdicts} replicated on {len(made.seeds)} fresh seeds{source_words(made)}: {counted}.{beside}"
    return Note("replicated", text, {"seeds": len(made.seeds), "source": made.source, "outcomes": counts})


def source_words(made: Replication) -> str:
    """Name the finished study whose runs are used as fresh runs; empty if the runs were made for the replication."""
    return f" of {made.source}" if made.source else ""


def _fresh(row: Replicated) -> str:
    first = f"{row.verdict} by {row.first.value:+.3g}" if row.verdict != "same" else "same"
    fresh = "" if row.fresh is None else f"{interval_words(row.fresh)}: "
    return f"{first}, then {fresh}{outcome_words(row)}"


def interval_words(one: Interval) -> str:
    """Format a difference with its interval, in three digits."""
    return f"{one.value:+.3g}" + (" [{:+.3g}, {:+.3g}]".format(*one.ends) if one.ends else "")


def outcome_words(row: Replicated) -> str:
    """Return the outcome. For an open verdict, add the number of fresh seeds that would decide it, or the lost runs."""
    if row.fresh is None or row.fresh.ends is None:
        told = row.outcome not in ("open", "incomplete") or row.words == row.outcome
        return row.outcome if told else f"{row.outcome} ({row.words})"
    settled: str = row.outcome
    if row.outcome == "open" and row.level is not None:
        needed = f"{row.seeds_needed:,}" if row.seeds_needed else f"more than {MOST_SEEDS:,}"
        settled = f"open, {needed} fresh seeds would settle it"
    return f"{settled} ({row.words})" if "collapsed" in row.words else settled


def _crowded(results: StudyResults) -> Note:
    runs = results.crowded
    named = ", ".join(
        f"{run.arm} seed {run.seed}" + (f" {times_words(run.times)}" if run.times > 1 else "") for run in runs
    )
    times, them = sum(run.times for run in runs), "this run" if len(runs) == 1 else "these runs"
    return Note(
        "crowded",
        f"Memory ran out, or the GPU failed, {times_words(times)} while runs shared a GPU ({named}); {them} went back "
        "to the queue and resumed from the last checkpoint.",
        {"times": times, "runs": [run.model_dump() for run in runs]},
    )


def times_words(times: int) -> str:
    """Format a number of repetitions, such as "twice"."""
    return {1: "once", 2: "twice"}.get(times, f"{times} times")


def _looks(results: StudyResults) -> Iterator[Note]:
    """State the number of this interim analysis, and the saved runs; nothing at a first look with fixed seeds."""
    made = [look for look in results.looks if look.made]
    if results.looks_planned:
        open_ = len(made) < len(results.looks) and any(not arm.stopped for arm in with_role(results, "arm"))
        most, runs = len(results.looks[-1].seeds), sum(len(arm.runs) for arm in results.arms)
        whole = most * len(results.arms)
        saved = f" With {most} seeds for every arm it would have been {whole}." if runs < whole and not open_ else ""
        ahead = ", and more are to come" if open_ else ""
        text = f"{len(made)} of {len(results.looks)} planned looks were made{ahead}. The study has {runs} runs.{saved}"
        yield Note("planned_looks", text, {"made": len(made), "planned": len(results.looks), "runs": runs})
    elif len(made) > 1:
        before = [len(look.seeds) for look in made[:-1]]
        yield Note(
            "read_again",
            f"Look {len(made)} of this study: it was read before with {listed(before)} seeds, so this look has "
            f"{100 * made[-1].share:.3g}% of its error. Verdicts that an earlier look reached stay.",
            {"look": len(made), "before": before, "share": made[-1].share},
        )


def _bank(results: StudyResults) -> Iterator[Note]:
    """Name the stored runs that are used, the result of their check, and the stored runs that are not used."""
    if (bank := results.bank) is None:
        return
    labels, level = {metric.name: metric.label for metric in results.metrics}, f"{bank.level:.0%}"
    names, apart = [one.study for one in bank.sources], [one for one in bank.checks if not one.agrees]
    text = f"Stored runs: none of the baseline from {listed(names)} serve."
    if bank.served:
        text = (
            f"Stored runs: {bank.served} of the baseline from {listed(names)} serve beside the study's own (same plan, "
            "protocol, NUMERICS, frozen networks and kind of device)."
        )
    if bank.checks and not apart:
        text += f" In each metric they agree with the study's own runs (the {level} interval holds zero)."
    elif apart:
        differ = [
            arm_label(labels.get(one.metric, one.metric), one.resolution)
            + (
                f" (own minus stored {interval_words(one.difference)})"
                if one.difference.ends
                else f" ({one.own} own, {one.stored} stored: not comparable)"
            )
            for one in apart
        ]
        text += (
            f" In {len(apart)} of {len(bank.checks)} metrics they do not agree with the study's own runs by the "
            f"{level} interval, and do not serve: {'; '.join(differ)}. One in five does so by chance."
        )
    yield Note("bank", text, {"studies": names, "served": bank.served, "apart": [one.metric for one in apart]})
    if runs := [f"{one.collapsed} in {labels.get(one.metric, one.metric)}" for one in bank.checks if one.collapsed]:
        text = f"Stored runs that collapsed, and are left out like any other: {listed(runs)}."
        yield Note("bank_collapsed", text, {"runs": runs})
    if left := [*bank.left_out, *(f"of {one.study}, {words}" for one in bank.sources for words in one.left_out)]:
        yield Note("bank_left_out", f"Stored runs that do not serve: {'; '.join(left)}.", {"reasons": left})


# Each resolution: the control, what the seeds cannot show, speed and cost


def _at_resolutions(results: StudyResults) -> Iterator[Note]:
    """Yield the notes of each resolution; a note on all of them comes once, before the first of its position."""
    views, said = results.by_resolution(), dict[str, list[Note]]()
    for view in views:
        for note in (*_control(view), *_blind(view), *_not_compared(view), *_speed(view), *_cost(view)):
            said.setdefault(note.text, []).append(replace(note, where=(resolution_title(view),)))
    for text, notes in said.items():
        where = tuple(one.where[0] for one in notes)
        everywhere = len(where) == len(views)
        text = text if everywhere else f"At {listed(where)}: {text}"
        yield replace(notes[0], text=text, where=() if everywhere else where)
    yield from _tuning(results)


def _control(view: StudyResults) -> Iterator[Note]:
    """State that the control does not differ; yield nothing if the study could not have detected a difference."""
    controls, seeds = with_role(view, "control"), len(view.seeds)
    if view.sketch or differing_controls(view):
        return
    if not controls:
        text = (
            "No control (the baseline with other seeds) was run, so this study cannot show how often it would find a "
            "difference where there is none."
        )
        yield Note("no_control", text)
        return
    verdicts = [(metric, verdict_of(arm, metric)) for arm in controls for metric in view.metrics]
    lost = {verdict for _, verdict in verdicts}.intersection(LOST)
    if worst := next((verdict for verdict in LOST if verdict in lost), ""):
        what = "is incomplete" if worst == "incomplete" else f"has runs that {worst}"
        yield Note("control_lost", f"{_CONTROL} {what}.", {"state": worst})
        return
    blind = [*_blind_metrics(view, controls), *(one.label for one, verdict in verdicts if verdict == "no spread")]
    if len(blind) == sum(metric.name != SPEED for metric, _ in verdicts):
        text = f"{_CONTROL} shows nothing: with {seeds} seeds it could not detect a difference in any metric."
        yield Note("control_blind", text, {"seeds": seeds})
        return
    beyond = f" With {seeds} seeds it could not detect one in {some_metrics(blind, view)}." if blind else ""
    if fell := [metric.label for metric, verdict in verdicts if verdict == "unstable"]:
        text = (
            f"{_CONTROL} is unstable in {some_metrics(fell, view)}: runs of it or of the baseline collapsed, so it "
            f"shows neither a difference there nor that there is none.{beyond}"
        )
        yield Note("control_unstable", text, {"metrics": fell, "blind": blind})
        return
    yield Note("control", f"{_CONTROL} shows no difference, as it should.{beyond}", {"blind": blind})


def _blind(view: StudyResults) -> Iterator[Note]:
    if blind := _blind_metrics(view, with_role(view, "arm")):
        text = (
            f"{len(view.seeds)} seeds are too few to see a change in {some_metrics(blind, view)}: the smallest "
            "detectable difference is larger than the baseline's own value, or than half of the metric's range."
        )
        yield Note("blind", text, {"seeds": len(view.seeds), "metrics": blind})


def _blind_metrics(results: StudyResults, arms: list[Arm]) -> list[str]:
    """Return the labels of the metrics in which no arm could have shown a change."""
    found = []
    for metric in results.metrics:
        known = [arm.comparisons[metric.name] for arm in arms if metric.name in arm.comparisons]
        if known and all(too_few_seeds(metric, comparison) for comparison in known):
            found.append(metric.label)
    return found


def _not_compared(view: StudyResults) -> Iterator[Note]:
    arms: dict[tuple[str, str], list[str]] = {}
    for metric in view.metrics:
        for arm in compared_arms(view):
            if metric.name in arm.incomparable:
                arms.setdefault((metric.label, arm.incomparable[metric.name]), []).append(arm.name)
    for (label, reason), names in arms.items():
        text = f"Not compared: {label} of {', '.join(names)} ({reason})."
        yield Note("not_compared", text, {"metric": label, "arms": names, "reason": reason})


def _speed(view: StudyResults) -> Iterator[Note]:
    """Warn if speeds differ between runs of one plan, unless a step of every arm was measured alone."""
    if (factor := uneven_speed(view)) and not view.timed_alone:
        text = (
            f"Runs of one plan differ up to {factor:.1f} times in throughput, as they do where several share a device "
            "or other work runs beside them: speeds here say nothing of the arms. Measure them by tintype bench."
        )
        yield Note("speed", text, {"factor": factor})


def uneven_speed(results: StudyResults) -> float:
    """Return the largest ratio between two speeds of one plan; 0 if the runs of each plan are about equally fast."""
    speeds = [metric_values(arm, SPEED) for arm in results.arms]
    factor = max((max(of) / min(of) for of in speeds if of and min(of) > 0), default=1.0)
    return factor if factor >= _UNEVEN else 0.0


def _cost(view: StudyResults) -> Iterator[Note]:
    """Describe how training steps were measured alone on the GPU."""
    timed = [arm.alone for arm in view.arms if arm.alone is not None and arm.alone.step_s is not None]
    if not timed:
        return
    steps, others = sorted({alone.steps for alone in timed}), [arm.label for arm in view.arms if arm.step_s is None]
    counts = f"{steps[0]:,}" if len(steps) == 1 else f"{steps[0]:,} to {steps[-1]:,}"
    left = f" Not measured so: {listed(others)}." if others else ""
    factor = uneven_speed(view)
    logs = f" In the runs' logs, images/s differ up to {factor:.1f} times between runs of one plan: they are no cost."
    text = (
        f"Cost: the time of a training step, measured alone on one {timed[0].device}, mean of {counts} steps. Each was "
        f"measured once, so there is no interval.{logs if factor else ''}{left}"
    )
    yield Note("cost", text, {"device": timed[0].device, "steps": steps, "not_timed": others})


def _tuning(results: StudyResults) -> Iterator[Note]:
    """Name the tuned values at the edge of their grid, and the settings for which every value lost runs."""
    found: dict[tuple[str, str], list[str]] = {}
    for sweep in results.tuning.sweeps if results.tuning else ():
        chosen = sweep.points[sweep.chosen]
        if len(chosen.known) < len(chosen.runs):
            key = "untuned", f"no value of {' and '.join(chosen.values)} kept all its tuning runs"
            found.setdefault(key, []).append(arm_label(sweep.arm, sweep.resolution))
        elif sweep.edges:
            where = "grid" if results.tuning and results.tuning.method == "grid" else "range"
            widen = f"the best value lies at the edge of its {where}; widen the {where}: {' and '.join(sweep.edges)}"
            found.setdefault(("edge_of_tuning", widen), []).append(arm_label(sweep.arm, sweep.resolution))
    for (kind, words), names in found.items():
        yield Note(kind, f"{', '.join(names)}: {words}.", {"arms": names})


# The verdicts: what they do not mean, and what would decide


def _on_verdicts(results: StudyResults) -> Iterator[Note]:
    yield from _mixed(results)
    yield from _undecided(results)
    yield from _margins(results)
    yield from _collapsed(results)
    yield from _remarks(results)
    yield from _means(results)
    for arm in results.arms:
        if arm.stopped:
            yield Note("stopped", f"{arm.label}: {arm.stopped}", {"arm": arm.label})
        if words := costly_part(arm):
            yield Note("costly_part", f"{arm.label}: {words}", {"arm": arm.label})


def costly_part(arm: Arm) -> str:
    """Return a warning if a component of an arm takes too large a fraction of the step time; otherwise empty."""
    tuned = any(run.tokenizer is not None and run.tokenizer.tuned for run in arm.runs)
    return tokenizer_words(time_shares(arm).get("tokenizer"), tuned)


def _mixed(results: StudyResults) -> Iterator[Note]:
    """Name arms, and pairs of arms, whose verdicts on the primary metrics contradict each other."""
    compared: list[Arm | Between] = [*with_role(results, "arm"), *results.between]
    for one in compared:
        rows = [(metric, one.comparisons.get(metric.name)) for metric in primary_metrics(results)]
        better, worse = ([metric for metric, row in rows if row and row.verdict == verdict] for verdict in FOUND)
        if better and worse:
            labels = [listed(metric.label for metric in some) for some in (better, worse)]
            text = f"{one.label} is better in {labels[0]}, but worse in {labels[1]}: {DECIDE}."
            facts = {"better": [metric.name for metric in better], "worse": [metric.name for metric in worse]}
            yield Note("mixed", text, {"arm": one.label, **facts})


def _undecided(results: StudyResults) -> Iterator[Note]:
    needed = {
        metric.label: {
            arm.label: arm.comparisons[metric.name].seeds_needed
            for arm in with_role(results, "arm")
            if metric.name in arm.comparisons and arm.comparisons[metric.name].verdict == "undecided"
        }
        for metric in primary_metrics(results)
    }
    known = [count for of_arms in needed.values() for count in of_arms.values()]
    if not known:
        return
    text = "Undecided: these seeds show neither a difference nor that there is none."
    if any(known):
        counts = {
            label: listed(f"{f'{count:,}' if count else 'more than a thousand'} for {arm}" for arm, count in of.items())
            for label, of in needed.items()
            if of
        }
        said = "; ".join(f"in {label}, {words}" for label, words in counts.items())
        text = f"Undecided. Seeds that would decide, if means and spreads stay as they are: {said}."
    yield Note("undecided", text, {"seeds_needed": needed})


def _margins(results: StudyResults) -> Iterator[Note]:
    """Name the margins that were too small for the number of seeds, and the number of seeds that would suffice."""
    said: dict[tuple[str, str], list[str]] = {}
    for metric in primary_metrics(results):
        rows = [arm.comparisons[metric.name] for arm in with_role(results, "arm") if metric.name in arm.comparisons]
        undecided = [one for one in rows if one.verdict == "undecided"]
        needed = [one.margin_seeds or math.inf for one in undecided]
        if metric.margin and needed and (middle := median(needed)) > len(results.seeds):
            words = f"about {middle:,.0f}" if math.isfinite(middle) else f"more than {MOST_SEEDS:,}"
            wide = all(one.ends and one.margin and one.ends[1] - one.ends[0] > 2 * one.margin for one in undecided)
            how = "could not be reached" if wide else "is missed by many arms without a difference"
            said.setdefault((metric.margin, how), []).append(f"{words} in {metric.label}")
    sentences = [
        f"The margin of {margin} {how} with {len(results.seeds)} seeds: it needs {listed(words)}."
        for (margin, how), words in said.items()
    ]
    if sentences:
        yield Note("margins", " ".join(sentences), {"margins": [margin for margin, _ in said]})


def _collapsed(results: StudyResults) -> Iterator[Note]:
    """Describe the runs known as collapsed at the deciding interim analysis, then collapsed runs detected later."""
    early, late = list[str](), list[str]()
    for arm in compared_arms(results):
        labels: dict[tuple[frozenset[int], int], list[str]] = {}
        for metric in results.metrics:
            row = arm.comparisons.get(metric.name)
            if row is not None and row.collapsed:
                labels.setdefault((frozenset(row.collapsed), len(row.differences)), []).append(metric.label)
        early += [_collapses(arm, seeds, f"{read} runs", some, results) for (seeds, read), some in labels.items()]
    for arm in results.arms:
        by_seeds: dict[frozenset[int], list[str]] = {}
        for metric in results.metrics:
            if seeds := _collapsed_by_now(results, arm, metric):
                by_seeds.setdefault(seeds, []).append(metric.label)
        late += [_collapses(arm, seeds, f"all {len(arm.runs)} runs", some, results) for seeds, some in by_seeds.items()]
    if early:
        text = f"Collapsed runs (the numbers are of the others): {'; '.join(early)}."
        yield Note("collapsed", text, {"runs": early})
    if late:
        text = f"Runs collapsed after the look that decided, and the verdict does not count them: {'; '.join(late)}."
        yield Note("collapsed_later", text, {"runs": late})


def _collapsed_by_now(results: StudyResults, arm: Arm, metric: MetricInfo) -> frozenset[int]:
    """Return the seeds of all collapsed runs of an arm, if any of them collapsed after a deciding interim analysis."""
    if arm.role == "baseline":
        rows = [one.comparisons[metric.name] for one in _compared_in(results, metric)]
        later = {seed for row in rows for seed in row.baseline_collapsed_later}
        known = {seed for row in rows for seed in row.baseline_collapsed}
        own = {run.seed for run in arm.runs}
        return frozenset((later | known) & own if later & own else ())
    row = arm.comparisons.get(metric.name)
    return frozenset([*row.collapsed, *row.collapsed_later] if row and row.collapsed_later else ())


def _collapses(arm: Arm, seeds: Collection[int], whole: str, labels: list[str], results: StudyResults) -> str:
    """Count and name the collapsed runs of an arm out of `whole` runs, for metrics with these labels."""
    collapsed = {seed for metric in results.metrics for seed in results.collapsed(arm, metric.name)}
    healthy = [run for run in arm.runs if run.seed not in collapsed and run.state == "done"]
    at = listed(_collapse_words(run, healthy) for run in arm.runs if run.seed in seeds)
    return f"{arm.label}: {len(seeds)} of {whole} in {some_metrics(labels, results)} ({at})"


def _collapse_words(run: Run, healthy: list[Run]) -> str:
    """Name a collapsed run, and the step after which its loss stays above the others' losses, if it was logged."""
    for name in (validation.METRIC.name, "flow"):
        curves = [one.curves[name] for one in healthy if name in one.curves]
        if name not in run.curves or not curves or len(run.curves[name].step) < 2:
            continue
        if (step := run.curves[name].stays_above(curves)) is not None:
            return f"seed {run.seed} from step {step:,} on"
    return f"seed {run.seed}"


def _remarks(results: StudyResults) -> Iterator[Note]:
    """Collect remarks on single comparisons, for example that an arm's spread is large."""
    labels: dict[str, list[str]] = {}
    for metric in results.metrics:
        for note in dict.fromkeys(arm.comparisons[metric.name].note for arm in _compared_in(results, metric)):
            labels.setdefault(note, []).append(metric.label)
    said = [f"in {some_metrics(some, results)}, {note}" for note, some in labels.items() if note]
    if said:
        yield Note("remarks", f"Note: {'; '.join(said)}.", {"remarks": said})


def _compared_in(results: StudyResults, metric: MetricInfo) -> list[Arm]:
    return [arm for arm in compared_arms(results) if metric.name in arm.comparisons]


def _means(results: StudyResults) -> Iterator[Note]:
    """Explain which mean is shown if it is not the plain mean of an arm's runs."""
    views = results.by_resolution()
    scales = {row.scale for arm in results.arms for row in arm.comparisons.values()}
    said = [
        "Means of distances and losses are geometric, as they are compared as logarithms."
        if any(is_log(view, metric.name) for view in views for metric in results.metrics)
        else "",
        "Means of shares, KID and MMD are taken on the scale on which they are compared."
        if scales & {"logit", "asinh"}
        else "",
        "The baseline's mean is over its own runs and the control's, as the arms are compared with both."
        if any(len(view.like_baseline(metric.name)) > 1 for view in views for metric in results.metrics)
        else "",
    ]
    if text := " ".join(filter(None, said)):
        yield Note("means", text)
