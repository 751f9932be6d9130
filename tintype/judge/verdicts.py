"""Verdicts on runs by arm, seed and metric, with the contrasts, the estimates and the shared error of a study."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from html import escape
from typing import Any, Literal

from tintype.config.strict import nearest
from tintype.errors import UserError
from tintype.judge.metrics import Kind, Metric
from tintype.judge.table import Runs, Values
from tintype.study.effect import Effect
from tintype.study.stats.cells import Cells, scale_for, with_alike
from tintype.study.stats.collapse import collapse_p, collapsed_runs
from tintype.study.stats.contrast import Key
from tintype.study.stats.estimate import CONFIDENCE, Estimate
from tintype.study.stats.family import UNSTABLE, confidence_of, weights_of
from tintype.study.stats.pairing import Correlation, correlations, estimate_arm
from tintype.wording import option

Verdict = Literal[
    "better",
    "worse",
    "same",
    "undecided",
    "unstable",
    "identical",
    "no spread",
    "sketch",
    "diverged",
    "incomplete",
]
BASELINE = "baseline"
DECIDED: tuple[Verdict, ...] = ("better", "worse", "same", "unstable")
_FEW_SEEDS = 5
"""With fewer seeds than this, verdicts count as sketches."""
_SCALES: Mapping[Kind, Literal["raw", "log", "logit"]] = {
    "share": "logit",
    "distance": "log",
    "loss": "log",
    "raw": "raw",
}


@dataclass(frozen=True)
class Row:
    """The comparison of one arm with the baseline on one metric.

    Differences are arm minus baseline in the metric's unit. Means are NaN without values, and geometric on a log scale.
    """

    arm: str
    metric: str
    verdict: Verdict
    mean: float = math.nan
    baseline_mean: float = math.nan
    difference: float = math.nan
    low: float | None = None
    high: float | None = None
    """Upper end of the interval at the confidence `level`; None with one run per arm, or if all runs are equal."""
    p: float | None = None
    level: float = CONFIDENCE
    margin: float | None = None
    """Differences up to this size count as *same*."""
    corrected: float | None = None
    """The difference after a correction for selection; None except for the verdicts better and worse."""
    seeds_needed: int | None = None
    """Number of seeds per arm that would decide, with the same means and spreads; None if it is decided."""
    detectable: float | None = None
    """The smallest true difference that this number of seeds finds with a power of 80%."""
    seeds: int = 0
    """Number of the arm's runs that are included in these numbers."""
    lost: str = ""
    """Runs without a value, such as "diverged 1 of 5"; empty if all have one."""
    collapsed: tuple[str, ...] = ()
    """Seeds of the arm's collapsed runs. The numbers do not include these runs."""
    baseline_collapsed: tuple[str, ...] = ()
    scale: str = "raw"
    offsets: tuple[float, ...] = ()
    """The differences from the baseline's mean of all runs of the arm that did not collapse."""
    collapsed_offsets: tuple[float, ...] = ()
    """The differences from the baseline's mean of all collapsed runs of the arm."""
    note: str = ""

    @property
    def words(self) -> str:
        """Return the verdict, followed by the number of runs that diverged, collapsed or are missing, if any."""
        if self.verdict == "unstable":
            return f"unstable: {len(self.collapsed)} of {len(self.offsets) + len(self.collapsed)} runs collapsed"
        return self.lost or self.verdict


@dataclass(frozen=True, repr=False)
class Judgement:
    """Verdicts on the arms of a table, one for each arm and metric."""

    baseline: str
    runs: Runs
    verdicts: tuple[Row, ...]
    margin: str
    source: str = ""
    """The file from which the values were read; empty for values given in Python."""

    def __getitem__(self, key: str | tuple[str, str]) -> Row:
        """Return the row of an arm. If there are several metrics, the key is a pair of arm and metric."""
        arm, metric = (key, self.metrics[0].name) if isinstance(key, str) else key
        if isinstance(key, str) and len(self.metrics) > 1:
            raise UserError("the comparison has several metrics, so name one", f"write ['{arm}', '{metric}']")
        for row in self.verdicts:
            if (row.arm, row.metric) == (arm, metric):
                return row
        raise UserError(f"there is no comparison of an arm '{arm}' in the metric '{metric}'", nearest(arm, self.arms))

    def __iter__(self) -> Iterator[Row]:
        return iter(self.verdicts)

    @property
    def arms(self) -> list[str]:
        """Return the arms except the baseline."""
        return [arm for arm in self.runs.values if arm != self.baseline]

    @property
    def metrics(self) -> Sequence[Metric]:
        return self.runs.metrics

    @property
    def sketch(self) -> bool:
        """Return whether every arm has only one run. Nothing can then be tested."""
        return all(len(by_seed) == 1 for by_seed in self.runs.values.values())

    def rows(self) -> list[dict[str, Any]]:
        """Return one dictionary for each arm and metric, as `pandas.DataFrame` and `polars.DataFrame` take it."""
        better = {metric.name: metric for metric in self.metrics}
        return [
            {"arm": row.arm, "metric": row.metric, "better": better[row.metric].direction}
            | {"primary": better[row.metric].primary}
            | {key: value for key, value in asdict(row).items() if not isinstance(value, tuple)}
            | {"words": row.words, "collapsed": " ".join(row.collapsed)}
            for row in self.verdicts
        ]

    def baseline_mean(self, metric: str) -> float:
        return next((row.baseline_mean for row in self.verdicts if row.metric == metric), math.nan)

    @property
    def notes(self) -> list[str]:
        """Return the notes that readers should know before they rely on the verdicts."""
        found = [
            self._guesses(),
            self._error(),
            self._few(),
            self._within(),
            self._undecided(),
            self._collapsed(),
            *self._seeds(),
        ]
        if self.runs.left_out:
            found.append(f"Columns that were not read: {', '.join(self.runs.left_out)}.")
        return list(filter(None, found))

    def _guesses(self) -> str:
        guessed = [one for one in self.metrics if one.guessed]
        said = [
            f"{way} is better in {', '.join(_kinds(some))}"
            for way in ("lower", "higher")
            if (some := [one for one in guessed if one.direction == way])
        ]
        fix = "If that is wrong, declare the direction or unit of the metric: NAME:lower or NAME:higher:share"
        return f"Guessed from the names: {'; '.join(said)}. {fix}." if said else ""

    def _error(self) -> str:
        if self.sketch:
            return "One run for each arm: the spread over seeds is unknown, so there is no interval and no verdict."
        primary = [one for one in self.metrics if one.primary]
        shares = "equally"
        if primary and len(primary) < len(self.metrics):
            shares = "four fifths of it those on primary metrics"
        count = len(self.verdicts)
        whole = f"{count} comparisons share it, {shares}" if count > 1 else "the one comparison has all of it"
        return (
            f"These runs are read once, so the reading spends the whole error of {1 - CONFIDENCE:.0%}: {whole}. If "
            "seeds are added because of the verdicts, those of a second reading are wrong more often than that."
        )

    def _few(self) -> str:
        few = sorted({row.seeds for row in self.verdicts if row.verdict in DECIDED and row.seeds < _FEW_SEEDS})
        words = " and ".join(map(str, few))
        return f"Verdicts from {words} seeds are a sketch: replicate them before you build on them." if few else ""

    def _within(self) -> str:
        """List the arms with a significant difference within the margin, whose default may be too wide."""
        rows = [row for row in self.verdicts if row.verdict == "same" and row.low is not None and row.high is not None]
        said = [f"{row.arm} in {row.metric}" for row in rows if row.low and row.high and row.low * row.high > 0]
        words = (
            f"a difference is shown, and it is within the margin of {self.margin}. Choose the margin before you look."
        )
        return f"Same, {'; '.join(said)}: {words}" if said else ""

    def _undecided(self) -> str:
        asked = [one.name for one in self.metrics if one.primary] or [one.name for one in self.metrics]
        rows = [row for row in self.verdicts if row.verdict == "undecided" and row.metric in asked]
        said = [f"{_count(row.seeds_needed)} for {row.arm} in {row.metric}" for row in rows]
        return f"Undecided. Seeds that would decide, if means and spreads stay: {'; '.join(said)}." if said else ""

    def _collapsed(self) -> str:
        said = [f"{row.arm} in {row.metric}, seed {', '.join(row.collapsed)}" for row in self.verdicts if row.collapsed]
        fell = {row.metric: row.baseline_collapsed for row in self.verdicts if row.baseline_collapsed}
        said += [f"{self.baseline} in {metric}, seed {', '.join(seeds)}" for metric, seeds in fell.items()]
        return f"Collapsed runs, which the numbers leave out: {'; '.join(said)}." if said else ""

    def _seeds(self) -> Iterator[str]:
        own = self.runs.values[self.baseline]
        other = [arm for arm in self.arms if set(self.runs.values[arm]) != set(own)]
        if other and not self.sketch:
            yield f"Not the seeds of the baseline: {', '.join(other)}. Their runs are compared all the same."
        yield from dict.fromkeys(row.note for row in self.verdicts if row.note)

    def __repr__(self) -> str:
        count = f"{len(self.arms)} arm{'s' if len(self.arms) > 1 else ''}"
        return f"<Judgement of {count} against {self.baseline}>"

    def __str__(self) -> str:
        heads, *rows = self.shown()
        widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
        lines = [
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in (heads, *rows)
        ]
        return "\n".join([*map(str.rstrip, lines), *self.notes])

    def _repr_html_(self) -> str:
        """Return the verdicts as an HTML table for notebooks."""
        heads, *rows = self.shown()
        head = "".join(f"<th>{escape(cell)}</th>" for cell in heads)
        body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in cells)}</tr>" for cells in rows)
        return f"<table><tr>{head}</tr>{body}</table>{''.join(f'<p>{escape(note)}</p>' for note in self.notes)}"

    def shown(self) -> list[list[str]]:
        """Return the header and the rows of the table of verdicts."""
        found = [["arm", "metric", "verdict", self.baseline, "arm's mean", "difference", "p"]]
        better = {metric.name: metric.direction for metric in self.metrics}
        for row in self.verdicts:
            means = [_number(row.baseline_mean, ".4g"), _number(row.mean, ".4g")]
            metric = f"{row.metric} ({better[row.metric]} is better)"
            found.append([row.arm, metric, row.words, *means, difference_words(row), _number(row.p, ".2g")])
        return found


def difference_words(row: Row) -> str:
    interval = "" if row.low is None or row.high is None else f" [{row.low:+.3g}, {row.high:+.3g}]"
    return _number(row.difference, "+.3g") + interval


def _number(value: float | None, form: str) -> str:
    return "–" if value is None or not math.isfinite(value) else format(value, form)


def _count(seeds: int | None) -> str:
    return f"{seeds:,}" if seeds else "more than a thousand"


def _kinds(metrics: Iterable[Metric]) -> list[str]:
    return [f"{one.name} ({one.kind})" if one.kind != "raw" else one.name for one in metrics]


def choose_baseline(arms: Collection[str], given: str | None, where: str) -> str:
    """Return the baseline, which is the given arm, or an arm called `baseline`."""
    if given is None and BASELINE not in arms:
        raise UserError(
            f"{where}: no arm is called 'baseline'",
            f"name the baseline with {option('baseline')}. The arms are: {', '.join(arms)}",
        )
    baseline = BASELINE if given is None else given
    if baseline not in arms:
        raise UserError(
            f"{where}: no arm has the name '{baseline}', which {option('baseline')} gives", nearest(baseline, arms)
        )
    if len(arms) < 2:
        raise UserError(
            f"{where}: '{baseline}' is the only arm", "add the runs of another arm, which is compared with the baseline"
        )
    return baseline


def judge_runs(runs: Runs, baseline: str, margin: Effect, source: str = "") -> Judgement:
    """Compare every arm with the baseline on every metric. All comparisons share the error of one study."""
    arms = [arm for arm in runs.values if arm != baseline]
    primary = [metric.name for metric in runs.metrics if metric.primary]
    weights = weights_of([Key(arm, metric.name) for metric in runs.metrics for arm in arms], primary)
    numbers = _seed_numbers(runs.values)
    made = {metric.name: cells_of(runs.values, numbers, metric, baseline) for metric in runs.metrics}
    sheets, rows = with_alike(made), list[Row]()
    pairs = {arm: correlations(sheets, arm, baseline) for arm in arms}
    unstable = _unstable(sheets, primary or list(sheets), arms, baseline)
    for metric in runs.metrics:
        for arm in arms:
            level, pair = confidence_of(weights[Key(arm, metric.name)]), pairs[arm].get(metric.name)
            rows.append(_row(runs.values, sheets, numbers, metric, arm, baseline, level, margin, pair, arm in unstable))
    return Judgement(baseline, runs, tuple(rows), str(margin), source)


def _seed_numbers(values: Values) -> dict[str, int]:
    """Return a number for each seed label: its own if all labels are whole numbers, else a running number."""
    labels = dict.fromkeys(seed for by_seed in values.values() for seed in by_seed)
    whole = all(label.removeprefix("-").isdecimal() for label in labels)
    return {label: int(label) if whole else place for place, label in enumerate(labels)}


def cells_of(values: Values, numbers: Mapping[str, int], metric: Metric, baseline: str) -> Cells:
    """Return the cells of a metric without collapsed runs. The baseline comes first."""
    known = {
        arm: {numbers[seed]: one for seed, of in values[arm].items() if math.isfinite(one := _value(of, metric.name))}
        for arm in dict.fromkeys([baseline, *values])
    }
    scale = scale_for(_SCALES[metric.kind], [list(of.values()) for of in known.values()])
    cells = Cells({arm: {seed: scale.place(one) for seed, one in of.items()} for arm, of in known.items() if of}, scale)
    collapsed = {arm: some for arm in cells.values if (some := collapsed_runs(cells, arm, metric.direction))}
    return replace(cells.without(collapsed), collapsed=collapsed)


def _unstable(sheets: Mapping[str, Cells], primary: Collection[str], arms: Sequence[str], baseline: str) -> set[str]:
    """Return the arms whose runs collapse more often than the baseline's runs, on any primary metric."""

    def counts(arm: str) -> tuple[int, int]:
        collapsed = {seed for metric in primary for seed in sheets[metric].collapsed.get(arm, ())}
        runs = collapsed | {seed for metric in primary for seed in sheets[metric].values.get(arm, ())}
        return len(collapsed), len(runs)

    of_baseline = counts(baseline)
    return {arm for arm in arms if collapse_p(*counts(arm), *of_baseline) < UNSTABLE / len(arms)}


def _value(of_run: Mapping[str, float | None], metric: str) -> float:
    value = of_run.get(metric)
    return math.nan if value is None else value


def _row(
    values: Values,
    sheets: Mapping[str, Cells],
    numbers: Mapping[str, int],
    metric: Metric,
    arm: str,
    baseline: str,
    level: float,
    margin: Effect,
    pair: Correlation | None,
    unstable: bool,
) -> Row:
    cells, seeds = sheets[metric.name], {number: seed for seed, number in numbers.items()}
    lost, loss = _lost({"": values[arm], baseline: values[baseline]}, metric.name)
    if arm not in cells.values or baseline not in cells.values:
        return Row(arm, metric.name, loss or "incomplete", level=level, lost=lost)
    found, scale = estimate_arm(cells, arm, baseline, level, pair), cells.scale
    old = found.old
    reach = scale.margin(old, margin.on(scale.value(old)))
    verdict = loss or _verdict(found, reach, metric, cells.rounding([arm, baseline]))
    if unstable and cells.collapsed.get(arm) and not loss:
        verdict = "unstable"

    def units(change: float | None) -> float | None:
        return None if change is None else scale.difference(old, change)

    def size(change: float | None) -> float | None:
        """Return the size of a change in the metric's unit. Of the changes up and down, return the larger one."""
        return None if change is None else max(abs(scale.difference(old, way * change)) for way in (-1, 1))

    low, high = found.interval or (None, None)
    apart = sorted(set(found.stands_out))
    collapsed = tuple(seeds[one] for one in cells.collapsed.get(arm, ()))
    runs = {seed: _value(of, metric.name) for seed, of in values[arm].items()}
    offsets = {seed: value - scale.value(old) for seed, value in runs.items() if math.isfinite(value)}
    return Row(
        arm,
        metric.name,
        verdict,
        mean=scale.value(old + found.value),
        baseline_mean=scale.value(old),
        difference=scale.difference(old, found.value),
        low=units(low),
        high=units(high),
        p=found.p,
        level=level,
        margin=size(reach),
        corrected=units(found.corrected[0]) if found.corrected and verdict in ("better", "worse") else None,
        seeds_needed=found.seeds_needed(reach) if verdict == "undecided" else None,
        detectable=size(found.detectable),
        seeds=cells.seeds(arm),
        lost=lost,
        collapsed=collapsed,
        baseline_collapsed=tuple(seeds[one] for one in cells.collapsed.get(baseline, ())),
        scale=scale.kind,
        offsets=tuple(value for seed, value in offsets.items() if seed not in collapsed),
        collapsed_offsets=tuple(offsets[seed] for seed in collapsed),
        note=f"The seed spread of {', '.join(apart)} in {metric.name} stands out, so mostly its own is used."
        if apart
        else "",
    )


def _verdict(found: Estimate, reach: float, metric: Metric, rounding: float) -> Verdict:
    if found.error is None:
        return "sketch"
    if found.interval is None:
        return "identical" if abs(found.value) <= rounding else "no spread"
    said = found.says(reach)
    if said == "same" or said == "undecided":
        return said
    return "better" if (said == "above") == (metric.direction == "higher") else "worse"


def _lost(
    sets: Mapping[str, Mapping[str, Mapping[str, float | None]]], metric: str
) -> tuple[str, Literal["diverged", "incomplete"] | None]:
    """Return how many runs have no finite value, by the groups in `sets`, and the most serious reason."""
    said, reasons = list[str](), set[str]()
    for name, by_seed in sets.items():
        values = [of.get(metric) for of in by_seed.values()]
        counts = {"diverged": sum(one is not None and not math.isfinite(one) for one in values)}
        counts["no value"] = values.count(None)
        said += [f"{name} {why} {count} of {len(values)}".strip() for why, count in counts.items() if count]
        reasons |= {why for why, count in counts.items() if count}
    loss: Literal["diverged", "incomplete"] | None = "diverged" if "diverged" in reasons else None
    return ", ".join(said), loss or ("incomplete" if reasons else None)
