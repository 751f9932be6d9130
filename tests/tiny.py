"""The smallest real plan: every part is the real one, a step takes milliseconds. And the plan of the golden losses."""

from pathlib import Path

from tintype.contract.ground import TINY, tiny_plan

__all__ = ["GOLDEN_PLAN", "TINY", "tiny_plan"]

GOLDEN_PLAN = Path(__file__).with_name("golden") / "plan.yaml"
"""A plan that stays as it is, whatever becomes of the packaged recipes."""
