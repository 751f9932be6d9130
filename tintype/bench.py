"""`tintype bench`: images per second of training, sampling and rendering, measured in one process.

`compare` measures training alone: the plan as it is and with each technique, at several numbers of image tokens. Its
point are the ratios, which carry over to other machines better than the speeds do.
"""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import groupby, pairwise
from statistics import median
from typing import Any

import torch
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from torch._dynamo.utils import counters

from tintype.data.order import ids_at
from tintype.data.scenes.render import render
from tintype.data.scenes.scene import STYLES, draw_scenes
from tintype.data.scenes.source import scene_source
from tintype.errors import UserError
from tintype.generate import SamplerSettings, generate
from tintype.plan import Plan, apply_techniques, plan_from_document
from tintype.settings import DataSettings, plain
from tintype.strict import Document
from tintype.train.clock import Clock
from tintype.train.folder import environment
from tintype.train.parts import Parts, build_parts, choose_device, exact_fp32
from tintype.train.state import TrainState, new_state
from tintype.train.update import update

_WARM_UP_STEPS = 3
_MOST_WARM_UP_STEPS = 10
_RENDER_PX, _RENDER_COUNT = 64, 1024
_SHOWN_PARTS = ("forward", "backward", "optimizer", "data")
_SIZE_RULES = DataSettings.model_fields["size_px"].metadata
DENSE, AGAIN = "dense", "dense again"
"""The plan as it is, measured before the techniques and once more after them."""


@exact_fp32()
def measure(plan: Plan, steps: int) -> dict[str, Any]:
    parts = build_parts(plan)
    for term in parts.terms:
        term.part.ready()
    state = new_state(parts)
    clock = Clock(parts.device)
    images = min(len(parts.source), (_WARM_UP_STEPS + steps) * plan.train.batch)
    parts.source.prepare(ids_at(plan.seed, 0, images, len(parts.source)).tolist())
    for _ in range(_WARM_UP_STEPS):
        update(parts, state, clock)
    clock.read()
    for _ in range(steps):
        update(parts, state, clock)
    seconds, split = clock.read()
    images = steps * plan.train.batch
    total = max(seconds, sum(split.values()))  # a host's time can run beside a GPU's
    sampler = SamplerSettings(steps=10)
    captions = [record.captions["long"] for record in parts.source.records(range(sampler.batch))]
    sampling_s = _seconds(lambda: generate(parts, captions, sampler, seed=0, size_px=plan.data.size_px), parts.device)
    return {
        "environment": environment(parts.device),
        "plan": plan.hash,
        "parameters": sum(parameter.numel() for parameter in parts.modules.parameters()),
        "train_images_per_s": images / seconds,
        "time_split": {name: value / total for name, value in split.items()},
        "sample_images_per_s_at_10_steps": len(captions) / sampling_s,
        "render_images_per_s_at_64_px": {style: _render_rate(style, parts.device) for style in STYLES},
    }


def _render_rate(style: Any, device: torch.device) -> float:
    indices = list(range(_RENDER_COUNT))

    def work() -> None:
        render(draw_scenes(0, indices, "train", style), _RENDER_PX, 0, indices, device)

    return _RENDER_COUNT / _seconds(work, device)


def _seconds(work: Callable[[], Any], device: torch.device) -> float:
    """Time of the second call."""
    work()
    _wait(device)
    began = time.perf_counter()
    work()
    _wait(device)
    return time.perf_counter() - began


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


@dataclass(frozen=True)
class Row:
    """The training speed of one plan. What follows `technique` is None where it did not run, and `failed` says why."""

    tokens: int
    """Image tokens of a sample."""
    size_px: int
    batch: int
    technique: str
    images_per_s: float | None = None
    """By the median of the timed steps."""
    slowest_images_per_s: float | None = None
    fastest_images_per_s: float | None = None
    times_dense: float | None = None
    """Its images per second over those of the plan as it is, at the same number of tokens."""
    time_split: dict[str, float] | None = None
    data_share: float | None = None
    """Of the time, what the host spent on data: on a GPU it runs beside the rest."""
    peak_gib: float | None = None
    """Most GPU memory in use in the timed steps; None on a CPU."""
    graphs: int | None = None
    """Graphs compiled before the timed steps."""
    recompiled: int | None = None
    """Graphs compiled in the timed steps: if there are any, the speed is not to be trusted."""
    graph_breaks: int | None = None
    """How often the compiler had to leave something out."""
    failed: str | None = None


@exact_fp32()
def compare(
    plan: Plan,
    techniques: Sequence[str],
    tokens: Sequence[int],
    steps: int,
    on_row: Callable[[str], None] = lambda name: None,
) -> dict[str, Any]:
    """Training speed of the plan and of the plan with each technique, at each number of image tokens.

    With techniques the plan itself is measured first and last: its second ratio says how far one can trust the others.
    """
    _refuse_twice("--technique", techniques)
    _refuse_twice("--tokens", tokens)
    cases = [
        (name, apply_techniques(sized, specs))
        for sized in [at_tokens(plan, count) for count in tokens or [_tokens(plan)]]
        for name, specs in [(DENSE, []), *((one, [one]) for one in techniques), *([(AGAIN, [])] if techniques else [])]
    ]
    rows = []
    for name, case in cases:
        on_row(f"{_tokens(case)} tokens, {name}")
        rows.append(_row(name, case, steps))
    _free()
    return {
        "environment": environment(choose_device(plan.run.device)),
        "plan": plan.hash,
        "steps": steps,
        "rows": [asdict(row) for row in _with_ratios(rows)],
    }


def at_tokens(plan: Plan, tokens: int) -> Plan:
    """The plan with images of so many tokens, and so many of them that a micro-batch has no more tokens than before.

    It has no more images than one batch: all are rendered in the first step, and the data is not what is measured.
    """
    size_px = plan.data.size_px if tokens == _tokens(plan) else _size_px(plan, tokens)
    batch = max(1, plan.train.batch // plan.train.accumulate * _tokens(plan) // tokens)
    count = min(batch, plan.data.count)
    changes = [f"data.size_px={size_px}", f"data.count={count}", f"train.batch={batch}", "train.accumulate=1"]
    return plan_from_document(Document(f"the plan at {tokens} tokens", plain(plan)), changes)


def _tokens(plan: Plan) -> int:
    return math.prod(plan.token_grid)


def _size_px(plan: Plan, tokens: int) -> int:
    """The image size that gives so many tokens, or an error that names the numbers near it that can be had."""
    unit = plan.tokenizer.build().stride_px * plan.model.patch
    lowest, highest = (next(getattr(rule, key) for rule in _SIZE_RULES if hasattr(rule, key)) for key in ("ge", "le"))
    sizes = {side**2: side * unit for side in range(-(-lowest // unit), highest // unit + 1)}
    if tokens in sizes:
        return sizes[tokens]
    below, above = [n for n in sizes if n < tokens][-1:], [n for n in sizes if n > tokens][:1]
    shown = " and ".join(f"{n} ({sizes[n]} px)" for n in below + above) or "none"
    raise UserError(
        f"--tokens: {tokens} cannot be had: images are square, of {lowest} to {highest} px, and a token covers "
        f"{unit} × {unit} px (tokenizer stride × model.patch). Nearest: {shown}; another model.patch gives others"
    )


def _refuse_twice(option: str, values: Sequence[object]) -> None:
    for value in values:
        if values.count(value) > 1:
            raise UserError(f"{option}: {value} is given twice; give it once")


def _row(name: str, plan: Plan, steps: int) -> Row:
    _free()
    row = Row(_tokens(plan), plan.data.size_px, plan.train.batch, name)
    try:
        return replace(row, **_train_speed(plan, steps))
    except torch.OutOfMemoryError:
        return replace(row, failed="out of memory")


def _train_speed(plan: Plan, steps: int) -> dict[str, Any]:
    parts = build_parts(plan)
    for term in parts.terms:
        term.part.ready()
    state, clock = new_state(parts), Clock(parts.device)
    began = _compiled()
    _warm_up(parts, state, clock)
    warm = _compiled()
    if parts.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(parts.device)
    clock.read()
    laps = _Laps(parts.device)
    for _ in range(steps):
        _first_step(parts, state, clock)
        laps.mark()
    seconds, split = clock.read()
    done = _compiled()
    total = max(seconds, sum(split.values()))
    batch, steps_s = plan.train.batch, laps.read()
    return {
        "images_per_s": batch / median(steps_s),
        "slowest_images_per_s": batch / max(steps_s),
        "fastest_images_per_s": batch / min(steps_s),
        "time_split": {part: value / total for part, value in split.items()},
        "data_share": split["data"] / total,
        "peak_gib": torch.cuda.max_memory_allocated(parts.device) / 2**30 if parts.device.type == "cuda" else None,
        "graphs": warm[0] - began[0],
        "recompiled": done[0] - warm[0],
        "graph_breaks": done[1] - began[1],
    }


def _warm_up(parts: Parts, state: TrainState, clock: Clock) -> None:
    """Goes on until a step has compiled nothing."""
    for step in range(1, _MOST_WARM_UP_STEPS + 1):
        before = _compiled()
        _first_step(parts, state, clock)
        if step >= _WARM_UP_STEPS and _compiled() == before:
            return


def _first_step(parts: Parts, state: TrainState, clock: Clock) -> None:
    """Each step is the plan's first, so that no schedule ends in the midst of the measurement."""
    state.step = 0
    update(parts, state, clock)


def _compiled() -> tuple[int, int]:
    """Graphs that this process has compiled, and how often the compiler had to leave something out."""
    return counters["stats"]["unique_graphs"], sum((counters["graph_break"] + counters["unimplemented"]).values())


class _Laps:
    """Seconds of each step. On a GPU they are marks in its own queue, so that nothing waits."""

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.current_stream(device) if device.type == "cuda" else None
        self._events: list[torch.cuda.Event] = []
        self._times_s: list[float] = []
        self.mark()

    def mark(self) -> None:
        if self._stream:
            self._events.append(self._stream.record_event(torch.cuda.Event(enable_timing=True)))
        else:
            self._times_s.append(time.perf_counter())

    def read(self) -> list[float]:
        if self._stream:
            self._stream.synchronize()
            return [before.elapsed_time(after) / 1000 for before, after in pairwise(self._events)]
        return [after - before for before, after in pairwise(self._times_s)]


def _free() -> None:
    """Lets go of what the row before has left: images, graphs (there is a limit to their number) and GPU memory."""
    scene_source.cache_clear()
    torch._dynamo.reset()
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def _with_ratios(rows: Sequence[Row]) -> list[Row]:
    dense = {row.tokens: row.images_per_s for row in rows if row.technique == DENSE}
    return [
        replace(row, times_dense=row.images_per_s / base) if row.images_per_s and (base := dense[row.tokens]) else row
        for row in rows
    ]


def show(result: dict[str, Any], console: Console) -> None:
    """The rows as a table, and a note for each that is not to be trusted."""
    title = f"{result['environment']['device']}, median (slowest–fastest) of {result['steps']} steps"
    table = Table(title=escape(title), title_justify="left", box=None, padding=(0, 2, 0, 0))
    for name in ("tokens", "px", "batch", "technique", "images/s", "× dense", "/\n".join(_SHOWN_PARTS) + " %", "GiB"):
        table.add_column(name, justify="left" if name == "technique" else "right", no_wrap=True)
    rows = [Row(**row) for row in result["rows"]]
    for _, same_tokens in groupby(rows, key=lambda row: row.tokens):
        for row in same_tokens:
            table.add_row(f"{row.tokens}", f"{row.size_px}", f"{row.batch}", escape(row.technique), *_numbers(row))
        table.add_row()
    console.print(table)
    for row in rows:
        if row.recompiled or row.graph_breaks:
            console.print(
                f"note: {row.tokens} tokens, {row.technique}: {row.recompiled} graphs compiled in the timed steps, "
                f"{row.graph_breaks} graph breaks; it could be faster",
                style="yellow",
                soft_wrap=True,
                highlight=False,
                markup=False,
            )


def _numbers(row: Row) -> list[str]:
    if row.images_per_s is None or row.time_split is None:
        return [row.failed or ""]
    spread = f" ({row.slowest_images_per_s:.4g}–{row.fastest_images_per_s:.4g})"
    ratio = "" if row.times_dense is None else f"{row.times_dense:.3f}"
    shares = "/".join(f"{100 * row.time_split[part]:.0f}" for part in _SHOWN_PARTS)
    return [f"{row.images_per_s:.4g}" + spread, ratio, shares, "" if row.peak_gib is None else f"{row.peak_gib:.1f}"]
