"""Count a run's operations up to each step, in the way of `tintype plan cost`, for the x axis of curves.

Counting builds the networks without weights, which takes seconds for a large model. So operations are counted in a
separate thread, and only after a user of the page asks for them. Plans that differ only in their seeds are counted only
once.
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
"""Lock that is held while a plan is counted, so that two pages never count at the same time."""


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
    def __init__(self) -> None:
        self.costs: dict[str, PlanCost] = {}
        self.missing: dict[str, list[str]] = {}
        """By arm: the parts that are not counted, or the reason why the whole plan is not counted."""
        self._asked: frozenset[str] = frozenset()

    def ask(self, plans: Mapping[str, Plan], on_counted: Callable[[str], None]) -> None:
        """Count the operations of new plans in a thread, and call `on_counted` with each finished arm."""
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
