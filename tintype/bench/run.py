"""Implement `tintype bench`: measure the images per second of training, sampling and rendering in one process.

`compare` measures only training, with each technique, at several token counts and batch sizes. Compare ratios, since
speeds differ more between machines.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import median

import torch

from tintype.bench.clock import Step, StepClock
from tintype.config.strict import Document
from tintype.data.captions import captions_of
from tintype.data.scenes.render import render
from tintype.data.scenes.scene import STYLES, Style, draw_batch
from tintype.data.scenes.source import ScenesSettings
from tintype.data.sources import forget_sources
from tintype.errors import UserError
from tintype.plan import Plan, plan_from_document
from tintype.runtime.clock import PARTS, Clock, synchronized_s
from tintype.runtime.dist import current
from tintype.runtime.files import Json
from tintype.runtime.machine import choose_device, environment, exact_fp32
from tintype.runtime.notes import note_once
from tintype.sampling.generate import SamplerSettings, generate
from tintype.seams import Draws
from tintype.settings import plain
from tintype.techniques.apply import apply_techniques
from tintype.train.exact import deterministic_steps, exact_update
from tintype.train.prepare import prepare_ids, prepare_term
from tintype.train.session import Session, build_session
from tintype.train.state import TrainState, new_state
from tintype.wording import option, setting

_WARM_UP_STEPS = 3
_MOST_WARM_UP_STEPS = 10
_RENDER_PX, _RENDER_COUNT = 64, 1024
_CEILING_TRIES = 20
_SIZE_RULES = ScenesSettings.model_fields["size_px"].metadata
DENSE, AGAIN = "dense", "dense again"
"""The unchanged plan, measured before the techniques and once more after them."""


OnPart = Callable[[str, int, int], None]
"""Callback with the name of the next part (empty at the end), the number of finished parts, and the total."""


@dataclass(frozen=True)
class Speeds:
    environment: dict[str, Json]
    plan: str
    parameters: int
    train_images_per_s: float
    time_split: dict[str, float]
    sample_images_per_s_at_10_steps: float
    render_images_per_s_at_64_px: dict[str, float]


@exact_fp32()
def measure(plan: Plan, steps: int, on_part: OnPart = lambda part, done, total: None) -> Speeds:
    refuse_stages(plan)
    total = 3 + len(STYLES)
    on_part("preparing", 0, total)
    with deterministic_steps(plan, current()):
        parts = build_session(plan)
        parts.ready()
        state = new_state(parts)
        clock = Clock(parts.device)
        images = min(len(parts.source), (_WARM_UP_STEPS + steps) * plan.train.batch)
        ids = parts.order.ids(0, images)
        prepare_ids(parts, ids, parts.source)
        for term in filter(lambda term: term.part.caches, parts.terms_at(0)):
            prepare_term(parts, term, ids, 0)
        for _ in range(_WARM_UP_STEPS):
            update(parts, state, clock)
        clock.read()
        on_part(f"training, {steps} steps", 1, total)
        for _ in range(steps):
            update(parts, state, clock)
        seconds, split = clock.read()
    on_part("sampling", 2, total)
    images = steps * plan.train.batch
    whole_s = max(seconds, sum(split.values()))  # a host's time can run beside a GPU's
    sampler = SamplerSettings(steps=10)
    captions = some_captions(parts, sampler.batch)
    sampling_s = _seconds(lambda: generate(parts, captions, sampler, seed=0, size_px=plan.data.size_px), parts.device)
    rendering: dict[str, float] = {}
    for done, style in enumerate(STYLES, 3):
        on_part(f"rendering {style}", done, total)
        rendering[style] = _render_rate(style, parts.device)
    on_part("", total, total)
    return Speeds(
        environment=environment(parts.device),
        plan=plan.hash,
        parameters=sum(parameter.numel() for parameter in parts.modules.parameters()),
        train_images_per_s=images / seconds,
        time_split={name: value / whole_s for name, value in split.items()},
        sample_images_per_s_at_10_steps=len(captions) / sampling_s,
        render_images_per_s_at_64_px=rendering,
    )


def update(parts: Session, state: TrainState, clock: Clock) -> None:
    """Take a training step. If `run.deterministic` is set, record operations without a deterministic form."""

    def note_inexact(operation: str) -> None:
        note_once(f"not exact: {operation}", f"run.deterministic: the steps are not exact ({operation})")

    exact_update(parts, state, clock, note_inexact)


def some_captions(parts: Session, count: int) -> list[str]:
    """Return captions of the data, as training reads them. Repeat captions if there are too few."""
    records = parts.source.records([index % len(parts.source) for index in range(count)])
    settings = parts.plan.captions.model_copy(update={"dropout": 0.0})
    draws = Draws(parts.plan.seed, torch.arange(count))
    return captions_of(records, settings, draws, 0, parts.text).texts


def _render_rate(style: Style, device: torch.device) -> float:
    indices = list(range(_RENDER_COUNT))

    def work() -> None:
        render(draw_batch(0, indices, "train", style).to_scenes(), _RENDER_PX, 0, indices, device)

    return _RENDER_COUNT / _seconds(work, device)


def _seconds(work: Callable[[], object], device: torch.device) -> float:
    """Call the function twice, and return the seconds of the second call."""
    work()
    began = synchronized_s(device)
    work()
    return synchronized_s(device) - began


@dataclass(frozen=True)
class Row:
    """The training speed of one plan. If it did not run, fields after `tuned` are None, and `failed` says why."""

    tokens: int
    """Number of image tokens per sample."""
    size_px: int
    batch: int
    technique: str
    tuned: bool = False
    """Whether the plan trains its tokenizer. The tokenizer's time then includes the tokenizer's training."""
    images_per_s: float | None = None
    """Images per second, computed from the median of the timed steps, without the wait for data."""
    slowest_images_per_s: float | None = None
    fastest_images_per_s: float | None = None
    times_dense: float | None = None
    """Speed relative to the unchanged plan at the same number of tokens and batch size."""
    time_split: dict[str, float] | None = None
    """Fractions of the whole step time, which includes the wait for data."""
    data_share: float | None = None
    """Fraction of step time stalled on data."""
    step_s: float | None = None
    """Median seconds of a step, without the wait for data."""
    optimizer_s: float | None = None
    """Median optimizer seconds per step, including clipping and the weight average."""
    optimizer_share: float | None = None
    """Fraction of `step_s`."""
    tokenizer_s: float | None = None
    """Median seconds per step in which pixels become latents, with the training of the tokenizer, if any."""
    tokenizer_share: float | None = None
    """Fraction of `step_s`."""
    newton_schulz_tflop: float | None = None
    """Matrix products of the optimizer per step; without them, this field and the next three are None."""
    ceiling_tflop_per_s: float | None = None
    """Best measured rate of one large matrix product in the same dtype, taken right after the timed steps."""
    floor_s: float | None = None
    """Minimum seconds of the matrix products, which is their number of operations divided by the ceiling rate."""
    times_floor: float | None = None
    """Seconds of the whole optimizer divided by `floor_s`."""
    peak_gib: float | None = None
    """Peak GPU memory in use during the timed steps; None on a CPU."""
    graphs: int | None = None
    """Number of graphs compiled before the timed steps."""
    recompiled: int | None = None
    """Number of graphs compiled during the timed steps; if there are any, do not trust the speed."""
    graph_breaks: int | None = None
    """Number of the compiler's graph breaks."""
    failed: str | None = None

    @property
    def size(self) -> tuple[int, int]:
        return self.tokens, self.batch

    @property
    def title(self) -> str:
        return f"{self.tokens} tokens, batch {self.batch}, {self.technique}"


@dataclass(frozen=True)
class Comparison:
    """The training speed of a plan with and without techniques."""

    environment: dict[str, Json]
    plan: str
    steps: int
    rows: list[Row]


@exact_fp32()
def compare(
    plan: Plan,
    techniques: Sequence[str],
    tokens: Sequence[int],
    batches: Sequence[int],
    steps: int,
    on_row: OnPart = lambda part, done, total: None,
    on_measured: Callable[[Comparison], None] = lambda so_far: None,
) -> Comparison:
    """Measure the training speed of the plan, alone and with each technique, at each token count and batch size.

    With techniques, the plan alone is measured first and last. If its two speeds differ, the ratios are uncertain by as
    much. `on_measured` gets all rows so far after each new row.
    """
    refuse_stages(plan)
    _refuse_twice("technique", techniques)
    _refuse_twice("tokens", tokens)
    _refuse_twice("batch", batches)
    wanted: list[int | None] = [*batches] or [None]
    sizes = [(count, batch) for count in tokens or [_tokens(plan)] for batch in wanted]
    cases = [
        (name, apply_techniques(sized, specs))
        for sized in [at_size(plan, *size) for size in sizes]
        for name, specs in [(DENSE, []), *((one, [one]) for one in techniques), *([(AGAIN, [])] if techniques else [])]
    ]
    for _, case in cases:
        refuse_stages(case)
    rows: list[Row] = []
    found = Comparison(environment(choose_device(plan.run.device)), plan.hash, steps, rows)
    for done, (name, case) in enumerate(cases):
        row = Row(_tokens(case), case.data.size_px, case.train.batch, name, case.tuning is not None)
        on_row(row.title, done, len(cases))
        _free()
        try:
            with deterministic_steps(case, current()):
                rows.append(_timed(row, case, steps))
        except torch.OutOfMemoryError:
            rows.append(replace(row, failed="out of memory"))
        found = replace(found, rows=_with_ratios(rows))
        on_measured(found)
    on_row("", len(cases), len(cases))
    _free()
    return found


def at_size(plan: Plan, tokens: int, batch: int | None = None) -> Plan:
    """Return the plan with images of `tokens` tokens, and at most as many tokens per micro-batch as before.

    A step has as many micro-batches as `batch` needs. All images are one batch, rendered in the first step.
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
    """Return the image size that has `tokens` tokens; if there is none, raise with the nearest possible number."""
    unit = plan.tokenizer.compression.stride_px * plan.model.patch
    lowest, highest = (next(getattr(rule, key) for rule in _SIZE_RULES if hasattr(rule, key)) for key in ("ge", "le"))
    sizes = {side**2: side * unit for side in range(-(-lowest // unit), highest // unit + 1)}
    if tokens in sizes:
        return sizes[tokens]
    below, above = [n for n in sizes if n < tokens][-1:], [n for n in sizes if n > tokens][:1]
    shown = " and ".join(f"{n} ({sizes[n]} px)" for n in below + above) or "none"
    raise UserError(
        f"{option('tokens', tokens)} is not possible for square images of {lowest} to {highest} px, since a "
        f"token covers {unit} × {unit} px (tokenizer stride × model.patch)",
        f"nearest possible values: {shown}; another model.patch allows other values",
    )


def refuse_stages(plan: Plan) -> None:
    """Raise for a plan with resolution stages, since only steps of the first stage would be measured."""
    if plan.train.stages:
        raise UserError(
            "train.stages: the plan trains on images of several sizes, and each size has its own speed",
            f"measure each size separately, with {setting('train.stages', '[]')} {setting('data.size_px', '…')} "
            f"and without the technique resolution-stages",
        )


def _refuse_twice(name: str, values: Sequence[object]) -> None:
    for value in values:
        if values.count(value) > 1:
            raise UserError(f"{option(name, value)} is given twice", "give it once")


def _timed(row: Row, plan: Plan, steps: int) -> Row:
    parts = build_session(plan)
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
    row = replace(
        with_speeds(row, timed),
        peak_gib=peak_gib,
        graphs=warm[0] - began[0],
        recompiled=done[0] - warm[0],
        graph_breaks=done[1] - began[1],
    )
    return _with_floor(row, parts)


def with_speeds(row: Row, timed: Sequence[Step]) -> Row:
    """Fill in the fields that are computed from step times alone."""
    total_s = sum(step.whole_s for step in timed)
    steps_s = [step.whole_s - step.parts_s["data"] for step in timed]
    step_s = median(steps_s)
    optimizer_s, tokenizer_s = (median(step.parts_s[part] for step in timed) for part in ("optimizer", "tokenizer"))
    split = {part: sum(step.parts_s[part] for step in timed) / total_s for part in PARTS}
    return replace(
        row,
        images_per_s=row.batch / step_s,
        slowest_images_per_s=row.batch / max(steps_s),
        fastest_images_per_s=row.batch / min(steps_s),
        time_split=split,
        data_share=split["data"],
        step_s=step_s,
        optimizer_s=optimizer_s,
        optimizer_share=optimizer_s / step_s,
        tokenizer_s=tokenizer_s,
        tokenizer_share=tokenizer_s / step_s,
    )


def _with_floor(row: Row, parts: Session) -> Row:
    """Compare the optimizer's time with the minimum time of its matrix products, if it has any."""
    products = parts.plan.optimizer.matrix_products(dict(parts.modules.named_parameters()))
    if products is None or row.optimizer_s is None:
        return row
    flop, dtype = products
    ceiling = matmul_flop_per_s(parts.device, dtype)
    return replace(
        row,
        newton_schulz_tflop=flop / 1e12,
        ceiling_tflop_per_s=ceiling / 1e12,
        floor_s=flop / ceiling,
        times_floor=row.optimizer_s / (flop / ceiling),
    )


def matmul_flop_per_s(device: torch.device, dtype: torch.dtype) -> float:
    """Return the rate of the fastest of several large matrix products. Random values are slower than zeros."""
    side = 8192 if device.type == "cuda" else 512
    generator = torch.Generator(device).manual_seed(0)
    first, second = (torch.randn(side, side, device=device, generator=generator).to(dtype) for _ in range(2))
    product = first @ second
    clock = StepClock(device)
    for _ in range(_CEILING_TRIES):
        torch.mm(first, second, out=product)
        clock.end_step()
    return 2 * side**3 / min(step.whole_s for step in clock.steps())


def _warm_up(parts: Session, state: TrainState, clock: Clock) -> None:
    """Run steps until a step compiles nothing."""
    for step in range(1, _MOST_WARM_UP_STEPS + 1):
        before = _compiled()
        _first_step(parts, state, clock)
        if step >= _WARM_UP_STEPS and _compiled() == before:
            return


def _first_step(parts: Session, state: TrainState, clock: Clock) -> None:
    """Run the plan's first step repeatedly, so that no schedule ends during the measurement."""
    state.step = 0
    update(parts, state, clock)


def _compiled() -> tuple[int, int]:
    """Return how many graphs this process has compiled, and the number of graph breaks."""
    from torch._dynamo.utils import counters  # a second of every command that measures nothing

    return counters["stats"]["unique_graphs"], sum((counters["graph_break"] + counters["unimplemented"]).values())


def _free() -> None:
    """Free the images, the CUDA graphs (whose number is limited) and the GPU memory of the previous row."""
    forget_sources()
    torch._dynamo.reset()
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def _with_ratios(rows: Sequence[Row]) -> list[Row]:
    dense = {row.size: row.images_per_s for row in rows if row.technique == DENSE}
    return [
        replace(row, times_dense=row.images_per_s / base) if row.images_per_s and (base := dense[row.size]) else row
        for row in rows
    ]
