"""Print the cost of plans and studies before they are trained."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from tintype.cost.memory import EXACT, Peak, reserved
from tintype.cost.plan import GPUS, PlanCost
from tintype.page import numerals
from tintype.runtime.pools import CONTEXT_BYTES
from tintype.study.estimate import ArmEstimate, StudyEstimate
from tintype.terminal import documents
from tintype.terminal.lines import say, say_note
from tintype.terminal.progress import Progress
from tintype.terminal.view import View

if TYPE_CHECKING:
    from tintype.library.plans import PlanEstimate

_GIB = 2**30
_ESTIMATED = ("copies", "activations")
_OWNERS = {"text": "text encoder"}
_HOST_S = 0.005
"""Below this estimated step time in seconds, the host is the limit, since it must launch the step's kernels."""


class Estimate(View["PlanEstimate"]):
    """View of `plan cost`, which shows the cost of a plan by component, with estimates marked as such."""

    @contextmanager
    def calls(self) -> Iterator[dict[str, Any]]:
        with ExitStack() as stack:
            yield {
                "on_measure": lambda: stack.enter_context(
                    Progress("measuring", kept="nothing was measured; run the same command again")
                )
            }

    def show(self, result: PlanEstimate) -> None:
        show_plan_cost(result.cost, result.peak, self.console, result.gpu)

    def document(self, result: PlanEstimate) -> documents.Cost:
        return documents.Cost.model_validate(_as_json(result.cost, result.peak))


def _as_json(cost: PlanCost, peak: Peak) -> dict[str, Any]:
    """Return the cost as plain data. The keys of estimated values contain the word "estimated"."""
    exact = {key: value for key, value in vars(cost.memory).items() if key not in _ESTIMATED}
    return {
        "plan": cost.plan,
        "trained_parameters": dict(cost.parameters),
        "frozen_parameters": {name: tower.parameters for name, tower in cost.towers.items()},
        "flop_per_step": cost.step_flops,
        "flop_per_run": cost.run_flops,
        "optimizer_flop_per_step": cost.optimizer_flops,
        "caption_tokens_at_most": cost.caption_tokens,
        "phases": [
            {
                "first": one.first,
                "end": one.end,
                "size_px": one.size_px,
                "images_per_step": one.batch,
                "flop_per_image": dict(one.flops),
            }
            for one in cost.phases
        ],
        "gpus": cost.gpus,
        "images_per_gpu": cost.largest_micro_batch,
        "memory_bytes": exact,
        "memory_bytes_estimated": {key: getattr(cost.memory, key) for key in _ESTIMATED},
        "peak_bytes": {"training": peak.training_bytes, "scoring": peak.scoring_bytes, "known": peak.known},
        "peak_bytes_by_part": {"training": dict(peak.training), "scoring": dict(peak.scoring)},
        "host_bytes": peak.host_bytes,
        "shared_host_bytes": dict(peak.shared_host),
        "memory_not_counted": list(peak.missing),
        "speed": {"flop_per_s": cost.speed.flop_per_s, "measured": cost.speed.measured, "words": cost.speed.words},
        "images_per_s": cost.images_per_s,
        "gpu_hours": cost.gpu_hours,
        "days": cost.days,
        "not_counted": list(cost.missing),
    }


def show_plan_cost(cost: PlanCost, peak: Peak, console: Console, gpu: str | None = None) -> None:
    """Print parameters, operations, memory by part, and time. Estimates are marked as estimates."""
    trained = {_OWNERS.get(name, name): count for name, count in cost.parameters.items()}
    say(console, f"trained parameters: {cost.trained:,} ({_counts(trained)})")
    if cost.towers:
        frozen = {name: tower.parameters for name, tower in cost.towers.items()}
        say(console, f"frozen parameters: {sum(frozen.values()):,} ({_counts(frozen)})")
    for phase in cost.phases:
        parts = ", ".join(f"{name} {_flop(flop)}" for name, flop in phase.flops.items())
        steps = f"steps {phase.first:,} to {phase.end:,} of {phase.batch:,} images, {phase.size_px} px"
        say(console, f"an image, {steps}: {_flop(phase.image_flops)} ({parts})")
    products = f", {_flop(cost.optimizer_flops)} of it the optimizer's products" if cost.optimizer_flops else ""
    step = "a step" if len({phase.batch for phase in cost.phases}) == 1 else "a step, the mean"
    say(console, f"{step}: {_flop(cost.step_flops)}{products}; the run: {_flop(cost.run_flops)}")
    say(console, f"a caption counts as {cost.caption_tokens} tokens (text.max_tokens), an upper bound")
    _show_peak(peak, console, gpu, cost.largest_micro_batch)
    gpus = f"{cost.gpus} GPU{'s' if cost.gpus > 1 else ''}"
    say(console, f"speed of a GPU: {cost.speed.flop_per_s / 1e12:,.3g} TFLOP/s, {cost.speed.words}")
    say(
        console,
        f"so {gpus}: {numerals.significant(cost.images_per_s)} images/s, {_gpu_time(cost.gpu_hours)}, "
        f"{_days(cost.days)}; without scoring, saves, and waits for data or for each other",
    )
    if not cost.speed.measured and cost.phases[0].batch / cost.images_per_s < _HOST_S:
        say_note(
            console,
            "steps this short wait for the CPU, so the run takes longer than estimated; `tintype "
            "bench` measures the real time",
        )
    for text in cost.missing:
        say_note(console, f"not counted: {text}")


def _show_peak(peak: Peak, console: Console, gpu: str | None, images: int, head: str = "memory of a GPU") -> None:
    """Print the peak memory of training by component, the sums for training and scoring, and the host's memory."""
    table = Table(Column(escape(head), no_wrap=True), Column("GiB", justify="right"), "", title_justify="left")
    for name, count in peak.training.items():
        table.add_row(name, f"{count / _GIB:,.2f}", "exact" if name in EXACT else "estimate")
    table.add_row("allocator", _gib(reserved(peak.training) - sum(peak.training.values())), "estimate")
    table.add_row("CUDA context", _gib(CONTEXT_BYTES), "estimate")
    table.add_section()
    what = f"{images} image{'s' if images > 1 else ''} at a time"
    table.add_row("training, together", _gib(peak.training_bytes), f"estimate, {what}")
    if peak.scoring:
        largest = max(peak.scoring, key=lambda name: peak.scoring[name])
        table.add_row("scoring, together", _gib(peak.scoring_bytes), f"estimate, at most in: {largest}")
    console.print(table)
    _show_host(peak.shared_host, console)
    for text in peak.missing:
        say_note(console, f"the memory estimate does not include: {text}")
    if gpu is not None and peak.bytes > GPUS[gpu].memory_gb * 1e9:
        say_note(
            console,
            f"the {gpu} has {GPUS[gpu].memory_gb:g} GB; use more GPUs, a larger train.accumulate, "
            "model.activation_checkpointing, or run.distribution.kind=fsdp",
        )


def _show_host(shared: Mapping[str, int], console: Console) -> None:
    if shared:
        names = ", ".join(f"{name} {_gib(size)} GiB" for name, size in shared.items())
        say(console, f"memory of the host that all runs of a machine share: {_gib(sum(shared.values()))} GiB ({names})")


def _gib(count: int) -> str:
    return f"{count / _GIB:,.2f}"


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in counts.items())


def _flop(flop: float) -> str:
    for size, unit in ((1e18, "EFLOP"), (1e15, "PFLOP"), (1e12, "TFLOP"), (1e9, "GFLOP")):
        if flop >= size:
            return f"{flop / size:,.4g} {unit}"
    return f"{flop / 1e6:,.4g} MFLOP"


def _days(days: float) -> str:
    return f"{days:,.3g} days" if days >= 1 else numerals.duration(days * 86_400)


def show_study_cost(found: StudyEstimate, console: Console) -> None:
    """Print the cost of a run of each arm on one GPU, and of all runs. Print the first arm's memory by component.

    Each arm has a separate memory peak. A study for the CPU gets one line without time, and notes on costs that are not
    counted.
    """
    missing = [text for one in found.arms for text in one.cost.missing]
    if not found.for_gpu:
        for one in found.arms:
            count, step = numerals.count(one.cost.trained), _flop(one.cost.step_flops)
            say(console, f"a run of the baseline: {count} trained parameters, {step} a step")
        missing += found.uncounted
    else:
        _show_arms(found, console)
        missing += [f"{', '.join(arms)}: {reason}" for reason, arms in found.uncounted.items()]
    for text in dict.fromkeys(missing):
        say_note(console, f"not counted: {text}")


def _show_arms(found: StudyEstimate, console: Console) -> None:
    """Print a row for each arm, and the memory of the first arm by part."""
    heads = ("trained", "a step", "images/s", "train\nGiB", "score\nGiB", "GPU\ntime")
    numbers = [Column(head, justify="right", no_wrap=True) for head in heads]
    table = Table(Column("arm", min_width=10), *numbers, title=escape(f"Estimated cost of a run on one {found.gpu}"))
    unknown: dict[str, list[str]] = {}
    shared: dict[str, int] = {}
    first: tuple[Peak, ArmEstimate] | None = None
    for one in found.arms:
        cost, peak = one.cost, one.peak
        if peak is None:
            continue
        first = first or (peak, one)
        row = (numerals.count(cost.trained), _flop(cost.step_flops), numerals.significant(cost.images_per_s))
        shared |= peak.shared_host
        unknown.update({text: [*unknown.get(text, []), one.arm] for text in peak.missing})
        gib = [f"{size / _GIB:,.1f}" for size in (peak.training_bytes, peak.scoring_bytes)]
        table.add_row(
            escape(one.arm), *row, *(gib if peak.known else [f"> {size}" for size in gib]), _days(cost.gpu_hours / 24)
        )
    if first is None:
        return
    console.print(table)
    which = "these" if found.uncounted else "all"
    runs, hours = sum(one.runs for one in found.arms), sum(one.runs * one.cost.gpu_hours for one in found.arms)
    say(console, f"{which} {runs} runs: {_gpu_time(hours)}, {found.speed.words}; without scoring")
    say(console, "a caption counts as text.max_tokens tokens, an upper bound")
    peak, one = first
    alone = replace(peak, shared_host={}, missing=())
    _show_peak(alone, console, found.gpu, one.cost.largest_micro_batch, f"memory of a GPU, {one.arm}")
    _show_host(shared, console)
    for text, arms in unknown.items():
        say_note(console, f"the memory estimate does not include: {text} ({', '.join(arms)})")


def _gpu_time(hours: float) -> str:
    if hours >= 100:
        return f"{hours:,.0f} GPU-hours"
    return f"{hours:,.3g} GPU-hours" if hours >= 1 else f"{60 * hours:,.2g} GPU-minutes"
