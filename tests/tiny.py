"""The smallest real plan: every part is the real one, a step takes milliseconds."""

from __future__ import annotations

from collections.abc import Sequence

from tintype.plan import Plan, plan_from_yaml
from tintype.techniques.apply import apply_techniques

TINY = """
data: {size_px: 16, count: 24, max_objects: 2}
text: {width: 16, depth: 1, heads: 2, buckets: 64, max_tokens: 24}
model: {depth: 3, width: 32, heads: 2, mlp_ratio: 2.0, patch: 4}
optimizer: {lr: 1e-3, eps: 1e-8}
train: {steps: 6, batch: 4, warmup_steps: 2, clip_norm: 1.0}
precision: {compute: fp32}
run: {save_every_steps: 2, log_every_steps: 1, device: cpu}
"""


def tiny_plan(*assignments: str, techniques: Sequence[str] = ()) -> Plan:
    return apply_techniques(plan_from_yaml(TINY, "tiny", assignments), techniques)
