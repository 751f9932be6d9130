"""Check whether two plans measure velocity errors in the same latents.

The validation loss is taken in the latents of a run's own tokenizer. Those of another tokenizer have another scale and
another share of noise in them, so a difference between the two says nothing of the denoisers, however small its p.
"""

from __future__ import annotations

from tintype.plan import Plan
from tintype.settings import plain

ANOTHER_SPACE = "another space"
_OF_NO_SPACE = ("compute", "sha256")
"""Settings of a tokenizer that change its latents by rounding, or not at all."""


def another_space(new: Plan, old: Plan) -> str:
    """Return why an error in the latents of one plan cannot be compared with that of the other; empty where it can.

    It is known from the plans alone, so that a study knows before its first run what it will compare.
    """
    own = "measured in the latents of the run's own tokenizer"
    if new.tuning is not None or old.tuning is not None:
        return f"{ANOTHER_SPACE}: it is {own}, and a tokenizer that is trained with the run is like no other"
    if _space(new) == _space(old):
        return ""
    here, there = new.tokenizer.kind, old.tokenizer.kind
    which = f"{here} here and {there}" if here != there else f"{here} here and with other settings or weights"
    return f"{ANOTHER_SPACE}: it is {own}, {which} in the baseline"


def _space(plan: Plan) -> dict[str, object]:
    return {key: value for key, value in plain(plan.tokenizer).items() if key not in _OF_NO_SPACE}
