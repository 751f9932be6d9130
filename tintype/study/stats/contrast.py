"""Contrasts are weighted sums of the arms' means. Each contrast has a typed key."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

from tintype.study.stats.cells import Cells

Kind = Literal["arm", "control", "between", "trend", "main effect", "interaction"]


OF_ARMS: tuple[Kind, ...] = ("arm", "control")
"""Comparisons of one arm or the control with the baseline of its resolution."""
OF_TWO: tuple[Kind, ...] = (*OF_ARMS, "between")
"""Comparisons of two plans of one resolution, either with the baseline or between two arms."""


class Key(NamedTuple):
    """The name of a comparison in a study."""

    arm: str
    """The arm's name. For two arms, both names; for a main effect, the factor; for an interaction, its parts."""
    metric: str
    resolution: str = ""
    """The resolution; empty in a study with one resolution, and for a trend, which is over all resolutions."""
    kind: Kind = "arm"


@dataclass(frozen=True)
class Contrast:
    """A weighted sum of arms' means that is zero if the arms do not differ, and the reference of this sum."""

    weights: Mapping[str, float]
    """Weights by arm; the arm under test comes first."""
    reference: Mapping[str, float]
    """Weights of the sum of means to which the contrast is a change."""

    def over_plans(self, cells: Cells) -> Contrast:
        """Return the contrast with each arm's weight divided among all runs of its plan.

        The control has the baseline's plan. Arms without runs get no weight.
        """

        def shared(weights: Mapping[str, float]) -> dict[str, float]:
            found: dict[str, float] = {}
            for arm, weight in weights.items():
                alike = [arm, *(one for one, plan in cells.plans.items() if plan == arm and one not in self.weights)]
                runs = sum(map(cells.seeds, alike))
                found |= {one: weight * cells.seeds(one) / runs for one in alike if cells.seeds(one)}
            return found

        return Contrast(shared(self.weights), shared(self.reference))

    def times(self, factor: float) -> Contrast:
        return Contrast({arm: factor * weight for arm, weight in self.weights.items()}, self.reference)


def against(arm: str, baseline: str) -> Contrast:
    """Return an arm minus the baseline."""
    return Contrast({arm: 1.0, baseline: -1.0}, {baseline: 1.0})
