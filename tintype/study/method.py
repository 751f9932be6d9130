"""Describe in words how a study compares its arms."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from markupsafe import Markup

from tintype.evaluation.protocol import definitions
from tintype.metrics.metric import MARGIN
from tintype.page.template import template
from tintype.study.analysis import AnalysisSettings
from tintype.study.contrasts import factors_of, incomparable, is_tested
from tintype.study.results import Bank, MetricInfo, arm_label
from tintype.study.stats.contrast import Key
from tintype.study.stats.estimate import CONFIDENCE
from tintype.study.stats.family import PRIMARY_SHARE, Counts, counts_of
from tintype.study.study import Study


def describe_method(
    study: Study, family: Sequence[Key], planned: Collection[Key], metrics: Mapping[str, MetricInfo]
) -> str:
    """Describe for the report how verdicts were computed; comparisons in `family` share the study's error."""
    settings, resolutions = study.settings, study.by_resolution()
    control = any(arm.role == "control" for arm in study.arms)
    tested = [key for key in family if is_tested(key.metric)]
    dropped = sum(key not in planned for key in tested)
    counts = counts_of(tested, settings.primary)
    tokens = [arms[0].tokens for arms in resolutions] if len(resolutions) > 1 else []
    most, fewest = len(study.arms[0].plans), min(len(arm.plans) for arm in study.arms if arm.role != "control")
    text = method_words(
        most, counts, control, settings.primary, margin_list(settings.analysis, metrics), tokens, fewest
    )
    kept = [f"{dropped} of them were dropped after a look, and still count."] if dropped else []
    return " ".join([text, *kept, *_between_words(study), *_factor_words(study), *_not_compared(study)])


def margin_list(analysis: AnalysisSettings, metrics: Mapping[str, MetricInfo]) -> str:
    """Describe the margins of a study's metrics, beginning with the default margin."""
    sizes = {name: analysis.margin_words(name, info.margin) for name, info in metrics.items() if is_tested(name)}
    usual = analysis.margin or Counter(sizes.values()).most_common(1)[0][0]
    return ", ".join([usual, *(f"{size} of {name}" for name, size in sizes.items() if size != usual)])


def _between_words(study: Study) -> list[str]:
    """Describe which arms are compared with each other; empty if the study declares no such pairs."""
    if not (declared := study.settings.compare):
        return []
    pairs = "; ".join(f"{first} against {second}" for first, second in declared)
    return [f"Arms compared with each other, by the same method and out of the same error: {pairs}."]


def describe_bank(bank: Bank | None) -> str:
    """Describe how stored runs of the baseline are used; empty if none are used."""
    if bank is None or not bank.served:
        return ""
    apart, names = [one for one in bank.checks if not one.agrees], ", ".join(one.study for one in bank.sources)
    return (
        f"{bank.served} stored runs of the baseline from other studies ({names}) "
        "count as its runs, and the seed spread leans on them, in each metric in which they agree with the study's own "
        f"(an interval of their difference with a confidence of {bank.level:.0%} holds zero)"
        + (f": in all but {len(apart)} of {len(bank.checks)}." if apart else ": in all.")
    )


def _factor_words(study: Study) -> list[str]:
    """Describe how main effects and interactions are compared; empty in a study without factors."""
    if not (count := len(factors_of(study))):
        return []
    return [
        f"{count} of the comparisons on primary metrics are main effects and interactions of the factors: weighted "
        "sums of the means of arms, compared with zero by the same method."
    ]


def _not_compared(study: Study) -> list[str]:
    """Return one sentence for each pair of reason and metric."""
    meanings = definitions(study.settings.evaluation)
    arms: dict[tuple[str, str], list[str]] = {}
    for key, reason in incomparable(study).items():
        arms.setdefault((key.metric, reason), []).append(arm_label(key.arm, key.resolution))
    return [
        f"The {meanings[metric].label} of {', '.join(labels)} is not compared, nor corrected for ({reason})."
        for (metric, reason), labels in arms.items()
    ]


def method_words(
    seeds: int,
    counts: Counts,
    control: bool,
    primary: Sequence[str],
    margins: str = MARGIN,
    tokens: Sequence[int] = (),
    fewest: int | None = None,
) -> str:
    """Return the sentences that describe the method.

    `tokens` has the token counts of several resolutions. `fewest` is the smallest number of seeds of an arm.
    """
    level = 1 - CONFIDENCE
    text = template("tintype.study", "method.j2", finalize=_as_it_is).render(
        seeds=seeds,
        fewest=seeds if fewest is None else fewest,
        counts=counts,
        control=control,
        primary=primary,
        tokens=tokens,
        margins=margins,
        primary_percent=f"{100 * level * PRIMARY_SHARE:.0f}",
        other_percent=f"{100 * level * (1 - PRIMARY_SHARE):.0f}",
    )
    return " ".join(text.split())


def _as_it_is(value: object) -> Markup:
    """Return plain text unchanged, since reports escape it themselves."""
    return Markup(str(value))
