"""Compute verdicts on interactions of factorial arms, which show whether the effects of two parts add up.

A contrast is compared with zero like any other difference of the study, on the metric's scale. Distances and losses are
compared as logarithms, so their effects add up if their ratios multiply. Fractions are compared as logits.
"""

from __future__ import annotations

from collections.abc import Mapping

from tintype.seams import Direction
from tintype.study.factorial import FactorContrast
from tintype.study.results import Comparison, FactorVerdict
from tintype.study.stats.cells import Scale

_VERDICTS: dict[str, FactorVerdict] = {"better": "reinforces", "same": "adds up", "identical": "adds up"}
"""Verdict on an interaction, by the verdict on the difference. All other verdicts except `worse` keep their names."""


def expected_mean(contrast: FactorContrast, means: Mapping[str, float], scale: Scale) -> float | None:
    """Return the combination's expected mean if its parts added up; None for a main effect, or without means."""
    if not contrast.is_interaction or any(name not in means for name in contrast.weights):
        return None
    first, second, base = means[contrast.parts[0]], means[contrast.parts[1]], means[""]
    return scale.value(scale.place(first) + scale.place(second) - scale.place(base))


def factor_verdict(
    contrast: FactorContrast, row: Comparison, means: Mapping[str, float], direction: Direction
) -> FactorVerdict:
    """Return the verdict on a contrast. For an interaction, the verdict states whether the parts add up.

    If a combination is worse than the sum of its parts, the verdict is *cancels* or *overlaps*. The verdict is
    *cancels* if the combination's mean does not beat the best part or the baseline.
    """
    if not contrast.is_interaction:
        return row.verdict
    if row.verdict != "worse":
        return _VERDICTS.get(row.verdict, row.verdict)
    sign = 1.0 if direction == "higher" else -1.0
    both = next(iter(contrast.weights))
    best = max(sign * means[name] for name in contrast.weights if name != both)
    return "overlaps" if sign * means[both] > best else "cancels"
