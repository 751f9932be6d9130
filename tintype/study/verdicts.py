"""Verdicts of a study: each arm's difference from the baseline, its interval, and what the two say.

A study makes many comparisons, and the chance of any false verdict in the whole study is kept to 5%. The comparisons
on the primary metrics share four fifths of that equally, those on all other metrics one fifth. Each comparison keeps
its share, so its interval is its test: one that excludes zero says better or worse, one within the margin says that
there is no difference worth having, and any other is undecided. Both kinds of claim fit into one share, since no true
difference makes both false.

The shares count the comparisons that the study planned, measured or not. Where all seeds differ by the same amount the
seed spread is not measurable: there is no p, no interval and no verdict but "no spread", or "identical" where the
amount is zero. The throughput is measured and not tested.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from markupsafe import Markup

from tintype.evaluation.protocol import Definition
from tintype.page.template import template
from tintype.study import results, stats
from tintype.study.analysis import DEFAULT, AnalysisSettings
from tintype.study.pairs import Key, Pair, without_seeds
from tintype.study.shared import measured_row, shared_row
from tintype.study.shares import PRIMARY_SHARE, Counts, confidence_of, is_tested, weights_of


def compare(
    pairs: Mapping[Key, Pair],
    meanings: Mapping[str, Definition | results.MetricInfo],
    primary: Collection[str] = (),
    analysis: AnalysisSettings = DEFAULT,
    planned: Collection[Key] | None = None,
    share: float = 1.0,
) -> dict[Key, results.Comparison]:
    """Compare all (arm, metric) pairs of a study.

    `planned` are all comparisons that the study is to make; by default those that are given. `share` is the part of
    the study's 5% that this look at it may spend.
    """
    family = dict.fromkeys(pairs if planned is None else planned)
    weights = weights_of([key for key in family if is_tested(key[1])], primary)
    rows = {}
    for key, pair in pairs.items():
        if not pair.new:
            rows[key] = without_seeds(pair)
        elif not is_tested(key[1]):
            rows[key] = measured_row(pair)
        else:
            confidence = confidence_of(share * weights[key])
            rows[key] = shared_row(pair, meanings[key[1]], confidence, analysis.margin_of(key[1]))
    return rows


def describe_method(
    seeds: int,
    counts: Counts,
    control: bool,
    primary: Sequence[str],
    analysis: AnalysisSettings,
    tokens: Sequence[int] = (),
    fewest: int | None = None,
) -> str:
    """Return how intervals and verdicts were computed, for the report. `tokens` are those of several resolutions.

    Planned looks stop some arms early: `fewest` are the seeds of the arm with the fewest.
    """
    level = 1 - stats.CONFIDENCE
    text = template("tintype.study", "method.j2", finalize=_as_it_is).render(
        seeds=seeds,
        fewest=seeds if fewest is None else fewest,
        counts=counts,
        control=control,
        primary=primary,
        tokens=tokens,
        margins=", ".join([analysis.margin, *(f"{size} of {name}" for name, size in analysis.margins.items())]),
        primary_percent=f"{100 * level * PRIMARY_SHARE:.0f}",
        other_percent=f"{100 * level * (1 - PRIMARY_SHARE):.0f}",
    )
    return " ".join(text.split())


def _as_it_is(value: object) -> Markup:
    """Keep plain text, which reports escape."""
    return Markup(str(value))
