"""`python -m tools.speed.profile FILE`: where the milliseconds of a training step go, by torch's profiler.

The kernels of a step are summed by what they compute. Kernels that no part names are the rest, of which the longest are
listed. Captions are read by `words`, so no weights of others are needed.
"""

from __future__ import annotations

import argparse
import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from tintype.bench.run import at_size, update
from tintype.plan import Plan, read_plan
from tintype.runtime.clock import Clock
from tintype.runtime.files import Json, write_json
from tintype.runtime.machine import choose_device, environment
from tintype.train.session import build_session
from tintype.train.state import new_state
from tools.speed.__main__ import WORDS

_WARM_UP, _STEPS, _LISTED = 6, 4, 12
PARTS = {
    "products": ("nvjet", "gemm", "cutlass", "splitKreduce"),
    "attention forward": ("_attend",),
    "attention backward": ("_attend_back_keys", "_attend_back_queries"),
    "MLP's gate": ("_gelu_gate", "_gelu_gate_back"),
    "heads": ("_heads", "_heads_back"),
    "norms and residuals": ("_norm", "_norm_back", "_add_gated", "_add_gated_back"),
    "AdamW": ("_adamw", "LpNorm"),
}
"""Names of kernels by what they compute: our own whole, those of libraries by a part of the name."""
REST = "rest"


@dataclass(frozen=True)
class Work:
    recipe: str
    settings: tuple[str, ...]
    batch: int

    def plan(self) -> Plan:
        return at_size(read_plan(self.recipe, self.settings), 256, self.batch)


_LARGE = ("model.patch=2", "data.size_px=32", WORDS, "train.batch=128", "train.accumulate=1")
WORK = {
    "mini 128": Work("mini", (), 128),
    "mini 256": Work("mini", (), 256),
    "1.17B 32": Work("prx-jit-1024", _LARGE, 32),
    "1.17B 128": Work("prx-jit-1024", _LARGE, 128),
}


def part_of(kernel: str) -> str:
    """Return the part that a kernel belongs to."""
    for part, names in PARTS.items():
        if kernel in names or any(not name.startswith("_") and name in kernel for name in names):
            return part
    return REST


def measure(plan: Plan) -> dict[str, Json]:
    """Return the milliseconds of a step by part, and the longest kernels of the rest."""
    parts = build_session(plan)
    parts.ready()
    state, clock = new_state(parts), Clock(parts.device)
    on_gpu = parts.device.type == "cuda"

    def step() -> None:
        state.step = 0
        update(parts, state, clock)

    for _ in range(_WARM_UP):
        step()
    activities = [ProfilerActivity.CUDA if on_gpu else ProfilerActivity.CPU]
    with profile(activities=activities) as profiler:
        began_s = time.perf_counter()
        for _ in range(_STEPS):
            step()
        if on_gpu:
            torch.cuda.synchronize()
        wall_ms = 1000 * (time.perf_counter() - began_s) / _STEPS
    return {"wall": wall_ms, **by_part(_kernels_ms(profiler, on_gpu))}


def _kernels_ms(profiler: profile, on_gpu: bool) -> dict[str, float]:
    found: defaultdict[str, float] = defaultdict(float)
    wanted = "CUDA" if on_gpu else "CPU"
    for event in profiler.events() or ():
        if event.device_type.name == wanted:
            spent_us = event.self_device_time_total if on_gpu else event.self_cpu_time_total
            found[event.name] += spent_us / 1000 / _STEPS
    return found


def by_part(kernels_ms: Mapping[str, float]) -> dict[str, Json]:
    """Sum the kernels by part."""
    sums = dict.fromkeys((*PARTS, REST), 0.0)
    for kernel, spent_ms in kernels_ms.items():
        sums[part_of(kernel)] += spent_ms
    rest = [(spent_ms, kernel) for kernel, spent_ms in kernels_ms.items() if part_of(kernel) == REST]
    longest: dict[str, Json] = {kernel[:120]: spent_ms for spent_ms, kernel in sorted(rest, reverse=True)[:_LISTED]}
    return {"all kernels": sum(sums.values()), **sums, "longest of the rest": longest}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.speed.profile", description=__doc__)
    parser.add_argument("out", type=Path, help="the JSON file to write")
    parser.add_argument("--only", nargs="+", choices=WORK, default=list(WORK))
    options = parser.parse_args()
    found: dict[str, Json] = {}
    for name in options.only:
        found[name] = measure(WORK[name].plan())
        write_json(options.out, {"environment": environment(choose_device("auto")), "ms": found})
        print(name, found[name], flush=True)


if __name__ == "__main__":
    main()
