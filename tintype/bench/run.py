"""`tintype bench`: images per second of training, sampling and rendering, measured in one process.

`compare` measures training alone: the plan as it is and with each technique, at several numbers of image tokens and
sizes of the batch. Its point are the ratios, which carry over to other machines better than the speeds do. Muon's
optimizer stands beside the time that its matrix products need at the least.
"""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from itertools import groupby, pairwise
from statistics import median
from typing import Any

import torch
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from torch._dynamo.utils import counters

from tintype.config.strict import Document
from tintype.data.captions import captions_of
from tintype.data.scenes.render import render
from tintype.data.scenes.scene import STYLES, draw_scenes
from tintype.data.scenes.settings import ScenesSettings
from tintype.data.sources import forget_sources
from tintype.errors import UserError
from tintype.metrics.throughput import tokenizer_words
from tintype.optim.muon import MuonSettings, newton_schulz_flops
from tintype.plan import Plan, plan_from_document
from tintype.runtime.machine import environment
from tintype.sampling.generate import SamplerSettings, generate
from tintype.seams import Draws
from tintype.settings import plain
from tintype.techniques.apply import apply_techniques
from tintype.train.clock import PARTS, Clock
from tintype.train.parts import Parts, build_parts, choose_device, exact_fp32
from tintype.train.prepare import prepare_ids
from tintype.train.state import TrainState, new_state
from tintype.train.update import update

_WARM_UP_STEPS = 3
_MOST_WARM_UP_STEPS = 10
_RENDER_PX, _RENDER_COUNT = 64, 1024
_CEILING_TRIES = 20
_SHOWN_PARTS = ("forward", "backward", "optimizer", "tokenizer", "data")
_SIZE_RULES = ScenesSettings.model_fields["size_px"].metadata
DENSE, AGAIN = "dense", "dense again"
"""The plan as it is, measured before the techniques and once more after them."""


OnPart = Callable[[str, int, int], None]
"""Progress passed to the callback: the part that is measured next, how many are done, and of how many. After the last
one the name is empty."""


@exact_fp32()
def measure(plan: Plan, steps: int, on_part: OnPart = lambda part, done, total: None) -> dict[str, Any]:
    refuse_stages(plan)
    names = ["preparing", f"training, {steps} steps", "sampling", *(f"rendering {style}" for style in STYLES)]
    begin = _count_parts(names, on_part)
    begin()
    parts = build_parts(plan)
    parts.ready()
    state = new_state(parts)
    clock = Clock(parts.device)
    images = min(len(parts.source), (_WARM_UP_STEPS + steps) * plan.train.batch)
    prepare_ids(parts, parts.order.ids(0, images), parts.source)
    for _ in range(_WARM_UP_STEPS):
        update(parts, state, clock)
    clock.read()
    begin()
    for _ in range(steps):
        update(parts, state, clock)
    seconds, split = clock.read()
    begin()
    images = steps * plan.train.batch
    total = max(seconds, sum(split.values()))  # a host's time can run beside a GPU's
    sampler = SamplerSettings(steps=10)
    captions = _some_captions(parts, sampler.batch)
    sampling_s = _seconds(lambda: generate(parts, captions, sampler, seed=0, size_px=plan.data.size_px), parts.device)
    rendering = {}
    for style in STYLES:
        begin()
        rendering[style] = _render_rate(style, parts.device)
    on_part("", len(names), len(names))
    return {
        "environment": environment(parts.device),
        "plan": plan.hash,
        "parameters": sum(parameter.numel() for parameter in parts.modules.parameters()),
        "train_images_per_s": images / seconds,
        "time_split": {name: value / total for name, value in split.items()},
        "sample_images_per_s_at_10_steps": len(captions) / sampling_s,
        "render_images_per_s_at_64_px": rendering,
    }


def _count_parts(names: Sequence[str], on_part: OnPart) -> Callable[[], None]:
    """Return a function that reports the next part each time it is called."""
    numbered = iter(enumerate(names))

    def begin() -> None:
        done, name = next(numbered)
        on_part(name, done, len(names))

    return begin


def _some_captions(parts: Parts, count: int) -> list[str]:
    """Of the data, as training reads them; again from the first on where it has fewer."""
    records = parts.source.records([index % len(parts.source) for index in range(count)])
    settings = parts.plan.captions.model_copy(update={"dropout": 0.0})
    draws = Draws(parts.plan.seed, torch.arange(count))
    return captions_of(records, parts.captions, settings, draws, 0, parts.text).texts


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
    """The training speed of one plan. What follows `tuned` is None where it did not run, and `failed` says why."""

    tokens: int
    """Image tokens of a sample."""
    size_px: int
    batch: int
    technique: str
    tuned: bool = False
    """Whether the plan trains its tokenizer, whose time is then that of its training too."""
    images_per_s: float | None = None
    """By the median of the timed steps, without the time that the device waited for data."""
    slowest_images_per_s: float | None = None
    fastest_images_per_s: float | None = None
    times_dense: float | None = None
    """Its images per second over those of the plan as it is, at the same number of tokens and size of the batch."""
    time_split: dict[str, float] | None = None
    """Of the whole steps, the wait for data included."""
    data_share: float | None = None
    """Of the whole steps, the wait for data: on a GPU what of the host's work did not run beside its own."""
    step_s: float | None = None
    """Median, without the wait for data."""
    optimizer_s: float | None = None
    """Median of a step's, with clipping and the weight average."""
    optimizer_share: float | None = None
    """Of `step_s`."""
    tokenizer_s: float | None = None
    """Median of a step's encoding of pixels to latents; of a tokenizer that is trained, of all that trains it."""
    tokenizer_share: float | None = None
    """Of `step_s`."""
    newton_schulz_tflop: float | None = None
    """Of Muon's matrix products in a step; None, as all that follows from it, for other optimizers."""
    ceiling_tflop_per_s: float | None = None
    """Of one large matrix product in the iteration's type, the best of several, right behind the timed steps."""
    floor_s: float | None = None
    """What Newton and Schulz's iteration needs at the least: its products at the ceiling."""
    times_floor: float | None = None
    """The whole optimizer over the floor."""
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
    batches: Sequence[int],
    steps: int,
    on_row: OnPart = lambda part, done, total: None,
) -> dict[str, Any]:
    """Training speed of the plan and of the plan with each technique, at each number of image tokens and each batch.

    With techniques the plan itself is measured first and last: its second ratio says how far one can trust the others.
    """
    refuse_stages(plan)
    _refuse_twice("--technique", techniques)
    _refuse_twice("--tokens", tokens)
    _refuse_twice("--batch", batches)
    wanted: list[int | None] = [*batches] or [None]
    sizes = [(count, batch) for count in tokens or [_tokens(plan)] for batch in wanted]
    cases = [
        (name, apply_techniques(sized, specs))
        for sized in [at_size(plan, *size) for size in sizes]
        for name, specs in [(DENSE, []), *((one, [one]) for one in techniques), *([(AGAIN, [])] if techniques else [])]
    ]
    for _, case in cases:
        refuse_stages(case)
    rows = []
    for done, (name, case) in enumerate(cases):
        row = Row(_tokens(case), case.data.size_px, case.train.batch, name, case.tuning is not None)
        on_row(_title(row), done, len(cases))
        rows.append(_measured(row, case, steps))
    on_row("", len(cases), len(cases))
    _free()
    return {
        "environment": environment(choose_device(plan.run.device)),
        "plan": plan.hash,
        "steps": steps,
        "rows": [asdict(row) for row in _with_ratios(rows)],
    }


def at_size(plan: Plan, tokens: int, batch: int | None = None) -> Plan:
    """The plan with images of so many tokens, and so many of them that a micro-batch has no more tokens than before.

    A step is one micro-batch, or as many as make up the `batch`. It has no more images than one batch: all are
    rendered in the first step, and the data is not what is measured.
    """
    size_px = plan.data.size_px if tokens == _tokens(plan) else _size_px(plan, tokens)
    most = max(1, plan.train.batch // plan.train.accumulate * _tokens(plan) // tokens)
    batch = batch or most
    accumulate = next(n for n in range(-(-batch // most), batch + 1) if batch % n == 0)
    counts = {f"data.{key}": count for key, count in plan.data.at_most(batch).items()}
    sizes = {"data.size_px": size_px, **counts, "train.batch": batch}
    changes = [f"{key}={value}" for key, value in {**sizes, "train.accumulate": accumulate}.items()]
    return plan_from_document(Document(f"the plan at {tokens} tokens", plain(plan)), changes)


def _tokens(plan: Plan) -> int:
    return math.prod(plan.token_grid)


def _size_px(plan: Plan, tokens: int) -> int:
    """The image size that gives so many tokens, or an error that names the numbers near it that can be had."""
    unit = plan.tokenizer.compression.stride_px * plan.model.patch
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


def refuse_stages(plan: Plan) -> None:
    """The first steps would be measured, and stand for all of them."""
    if plan.train.stages:
        raise UserError(
            "train.stages: steps on images of several sizes have no one speed; measure each size by itself, with "
            '--set "train.stages=[]" --set data.size_px=… and without resolution-stages'
        )


def _refuse_twice(option: str, values: Sequence[object]) -> None:
    for value in values:
        if values.count(value) > 1:
            raise UserError(f"{option}: {value} is given twice; give it once")


def _title(row: Row) -> str:
    return f"{row.tokens} tokens, batch {row.batch}, {row.technique}"


def _measured(row: Row, plan: Plan, steps: int) -> Row:
    _free()
    try:
        return replace(row, **_train_speed(plan, steps))
    except torch.OutOfMemoryError:
        return replace(row, failed="out of memory")


def _train_speed(plan: Plan, steps: int) -> dict[str, Any]:
    parts = build_parts(plan)
    parts.ready()
    state, clock = new_state(parts), StepClock(parts.device)
    began = _compiled()
    _warm_up(parts, state, clock)
    warm = _compiled()
    if parts.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(parts.device)
    clock.start()
    for _ in range(steps):
        _first_step(parts, state, clock)
        clock.end_step()
    done, timed = _compiled(), clock.steps()
    peak_gib = torch.cuda.max_memory_allocated(parts.device) / 2**30 if parts.device.type == "cuda" else None
    return {
        **_speeds(timed, plan.train.batch),
        "peak_gib": peak_gib,
        "graphs": warm[0] - began[0],
        "recompiled": done[0] - warm[0],
        "graph_breaks": done[1] - began[1],
        **_beside_floor(parts, median(step.parts_s["optimizer"] for step in timed)),
    }


@dataclass(frozen=True)
class Step:
    whole_s: float
    parts_s: dict[str, float]


def _speeds(timed: Sequence[Step], batch: int) -> dict[str, Any]:
    """The fields of a Row that follow from the times of its steps alone."""
    total_s = sum(step.whole_s for step in timed)
    steps_s = [step.whole_s - step.parts_s["data"] for step in timed]
    step_s = median(steps_s)
    optimizer_s, tokenizer_s = (median(step.parts_s[part] for step in timed) for part in ("optimizer", "tokenizer"))
    split = {part: sum(step.parts_s[part] for step in timed) / total_s for part in PARTS}
    return {
        "images_per_s": batch / step_s,
        "slowest_images_per_s": batch / max(steps_s),
        "fastest_images_per_s": batch / min(steps_s),
        "time_split": split,
        "data_share": split["data"],
        "step_s": step_s,
        "optimizer_s": optimizer_s,
        "optimizer_share": optimizer_s / step_s,
        "tokenizer_s": tokenizer_s,
        "tokenizer_share": tokenizer_s / step_s,
    }


def _beside_floor(parts: Parts, optimizer_s: float) -> dict[str, float]:
    """Muon's optimizer beside what its iteration needs at the least; nothing for other optimizers."""
    settings = parts.plan.optimizer
    if not isinstance(settings, MuonSettings):
        return {}
    flop = newton_schulz_flops(settings, dict(parts.modules.named_parameters()))
    ceiling = matmul_flop_per_s(parts.device, torch.bfloat16 if settings.compute == "bf16" else torch.float32)
    return {
        "newton_schulz_tflop": flop / 1e12,
        "ceiling_tflop_per_s": ceiling / 1e12,
        "floor_s": flop / ceiling,
        "times_floor": optimizer_s / (flop / ceiling),
    }


def matmul_flop_per_s(device: torch.device, dtype: torch.dtype) -> float:
    """Of the fastest of several large square matrix products of random numbers (zeros are faster: they need less
    power)."""
    side = 8192 if device.type == "cuda" else 512
    generator = torch.Generator(device).manual_seed(0)
    first, second = (torch.randn(side, side, device=device, generator=generator).to(dtype) for _ in range(2))
    product = first @ second
    clock = StepClock(device)
    for _ in range(_CEILING_TRIES):
        torch.mm(first, second, out=product)
        clock.end_step()
    return 2 * side**3 / min(step.whole_s for step in clock.steps())


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


class StepClock(Clock):
    """Seconds of each step and of its parts. On a GPU they are marks in its own queue, so that nothing waits, and the
    time between the two around `data` is what the GPU waited for it."""

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self._stream = torch.cuda.current_stream(device) if device.type == "cuda" else None
        self.start()

    def start(self) -> None:
        """What is timed begins here."""
        self._spans: list[list[tuple[str, Any, Any]]] = [[]]
        self._ends = [self._mark()]

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        began = self._mark()
        yield
        self._spans[-1].append((name, began, self._mark()))

    def end_step(self) -> None:
        self._ends.append(self._mark())
        self._spans.append([])

    def steps(self) -> list[Step]:
        """Those that have ended."""
        if self._stream:
            self._stream.synchronize()
        return [
            Step(self._between_s(*ends), self._parts_s(spans))
            for ends, spans in zip(pairwise(self._ends), self._spans[:-1], strict=True)
        ]

    def _parts_s(self, spans: Sequence[tuple[str, Any, Any]]) -> dict[str, float]:
        found = dict.fromkeys(PARTS, 0.0)
        for name, began, ended in spans:
            found[name] += self._between_s(began, ended)
        return found

    def _mark(self) -> Any:
        if self._stream:
            return self._stream.record_event(torch.cuda.Event(enable_timing=True))
        return time.perf_counter()

    def _between_s(self, began: Any, ended: Any) -> float:
        return float(began.elapsed_time(ended) / 1000 if self._stream else ended - began)


def _free() -> None:
    """Lets go of what the row before has left: images, graphs (there is a limit to their number) and GPU memory."""
    forget_sources()
    torch._dynamo.reset()
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def _with_ratios(rows: Sequence[Row]) -> list[Row]:
    dense = {_size(row): row.images_per_s for row in rows if row.technique == DENSE}
    return [
        replace(row, times_dense=row.images_per_s / base) if row.images_per_s and (base := dense[_size(row)]) else row
        for row in rows
    ]


def _size(row: Row) -> tuple[int, int]:
    return row.tokens, row.batch


def show(result: dict[str, Any], console: Console) -> None:
    """The rows as a table, Muon beside its floor, and a note for each that is not to be trusted."""
    title = f"{result['environment']['device']}, median (slowest–fastest) of {result['steps']} steps"
    table = Table(title=escape(title), title_justify="left", box=None, padding=(0, 2, 0, 0))
    for name in ("tokens", "px", "batch", "technique", "images/s", "× dense", "/\n".join(_SHOWN_PARTS) + " %", "GiB"):
        if name == "technique":  # its options can be long, and must not push the numbers out of sight
            table.add_column(name, justify="left", overflow="fold")
        else:
            table.add_column(name, justify="right", no_wrap=True)
    rows = [Row(**row) for row in result["rows"]]
    for _, same_size in groupby(rows, key=_size):
        for row in same_size:
            table.add_row(f"{row.tokens}", f"{row.size_px}", f"{row.batch}", escape(row.technique), *_numbers(row))
        table.add_row()
    console.print(table)
    for row in rows:
        if row.floor_s is not None:
            console.print(_floor_line(row), soft_wrap=True, highlight=False, markup=False)
    for row in rows:
        if words := tokenizer_words(row.tokenizer_share, row.tuned):
            console.print(
                f"note: {_title(row)}: {words}", style="yellow", soft_wrap=True, highlight=False, markup=False
            )
    for row in rows:
        if row.recompiled or row.graph_breaks:
            console.print(
                f"note: {_title(row)}: {row.recompiled} graphs compiled in the timed steps, "
                f"{row.graph_breaks} graph breaks; it could be faster",
                style="yellow",
                soft_wrap=True,
                highlight=False,
                markup=False,
            )


def _floor_line(row: Row) -> str:
    assert row.optimizer_s and row.optimizer_share and row.floor_s
    return (
        f"{_title(row)}: the optimizer takes {1000 * row.optimizer_s:.3g} ms, {100 * row.optimizer_share:.3g}% of a "
        f"step; Newton–Schulz is {row.newton_schulz_tflop:.3g} TFLOP, {1000 * row.floor_s:.3g} ms at the "
        f"{row.ceiling_tflop_per_s:.3g} TFLOP/s of a large matrix product: {row.times_floor:.2f} × that floor"
    )


def _numbers(row: Row) -> list[str]:
    if row.images_per_s is None or row.time_split is None:
        return [row.failed or ""]
    spread = f" ({row.slowest_images_per_s:.4g}–{row.fastest_images_per_s:.4g})"
    ratio = "" if row.times_dense is None else f"{row.times_dense:.3f}"
    shares = "/".join(f"{100 * row.time_split[part]:.0f}" for part in _SHOWN_PARTS)
    return [f"{row.images_per_s:.4g}" + spread, ratio, shares, "" if row.peak_gib is None else f"{row.peak_gib:.1f}"]
