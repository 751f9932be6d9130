"""The smallest real plan: every part is the real one, a step takes milliseconds."""

from tintype.contract.ground import TINY, tiny_plan

__all__ = ["TINY", "tiny_plan"]
