"""Operations of runs over steps, as `tintype plan cost` counts them, for the axis of curves.

Counting builds the networks without numbers, which takes seconds for a large model. So it is done once a reader asks
for it, in a thread of its own, and once for plans that differ in their seeds only.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

from tintype.cost.plan import USUAL_GPU, PlanCost, cost_of_plan, estimated_speed
from tintype.errors import UserError
from tintype.plan import Plan

_MOST = 256
_known: dict[str, PlanCost | str] = {}
_lock = threading.Lock()
"""Held while a plan is counted: two pages never count at once."""


def count(plan: Plan) -> PlanCost | str:
    """Return the cost of a plan, or the reason why it cannot be counted."""
    key = Plan(**{**dict(plan), "seed": 0}).hash
    with _lock:
        if key not in _known:
            if len(_known) >= _MOST:
                _known.clear()
            try:
                _known[key] = cost_of_plan(plan, estimated_speed(USUAL_GPU))
            except (UserError, OSError) as error:
                _known[key] = str(error).splitlines()[0]
        return _known[key]


class Flops:
    """The counted plans of a page, by arm."""

    def __init__(self) -> None:
        self.costs: dict[str, PlanCost] = {}
        self.missing: dict[str, list[str]] = {}
        """Parts that are not counted, or the reason why nothing is, by arm."""
        self._asked: frozenset[str] = frozenset()

    def ask(self, plans: Mapping[str, Plan], on_counted: Callable[[str], None]) -> None:
        """Count plans that nobody has asked for, in a thread; `on_counted` gets each arm."""
        new = {arm: plan for arm, plan in plans.items() if arm not in self._asked}
        if new:
            self._asked |= set(new)
            threading.Thread(target=self._count, args=(new, on_counted), name="flops", daemon=True).start()

    def _count(self, plans: Mapping[str, Plan], on_counted: Callable[[str], None]) -> None:
        for arm, plan in plans.items():
            found = count(plan)
            if isinstance(found, str):
                self.missing[arm] = [f"not counted: {found}"]
            else:
                self.costs[arm] = found
                self.missing[arm] = [f"without {words}" for words in found.missing]
            on_counted(arm)
