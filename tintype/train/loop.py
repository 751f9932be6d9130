"""The training loop, top to bottom: resume, then update, log, save, until the plan's last step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from tintype.plan import Plan
from tintype.runtime import activity as standing
from tintype.runtime import fault
from tintype.runtime.dist import current
from tintype.runtime.interrupt import Interrupt
from tintype.runtime.locks import wait_for_lock
from tintype.runtime.watchdog import watch_ranks
from tintype.train import checkpoint
from tintype.train.agreement import agree_on_plan, log_stuck_rank
from tintype.train.clock import Clock
from tintype.train.divergence import check_weights, count_step
from tintype.train.folder import RunFolder
from tintype.train.latents import check_latents
from tintype.train.parts import Parts, build_parts, cpu_threads, exact_fp32
from tintype.train.prepare import get_ready, prepare_images
from tintype.train.resume import resume
from tintype.train.saving import Saver, save_state
from tintype.train.snapshots import take_snapshot
from tintype.train.start import begin
from tintype.train.state import TrainState, new_state
from tintype.train.update import StepResult, update
from tintype.train.window import window_line
from tintype.train.writers import open_writer


@dataclass(frozen=True)
class Progress:
    """What a watcher is told at the start, after each step, and at the end."""

    step: int
    steps: int
    loss: float | None
    images_per_s: float | None


@dataclass(frozen=True)
class Outcome:
    step: int
    finished: bool
    already_done: bool = False


Probe = Callable[[Parts], dict[str, float]]
"""Numbers taken of the model at each save, logged beside the loss; its time is not the training's."""


def train(
    plan: Plan,
    path: Path,
    interrupt: Interrupt,
    on_progress: Callable[[Progress], None] = lambda progress: None,
    probe: Probe = lambda parts: {},
    on_wait: Callable[[str], None] = lambda text: None,
) -> Outcome:
    """Train the plan in a folder from wherever it stopped. Return unfinished when a signal came.

    Where another process still works in the folder, `on_wait` gets a sentence, and the training waits for it.
    """
    world = current()
    folder = RunFolder(path, world)
    agree_on_plan(plan, world)
    free = not folder.writes or wait_for_lock(path, lambda: interrupt.signal is not None, on_wait)
    if world.any(not free):
        return Outcome(max(checkpoint.steps(folder.checkpoints), default=0), finished=False)
    with (
        folder.claim(plan),
        folder.note_divergence(),
        exact_fp32(),
        cpu_threads(plan.run),
        watch_ranks(world, plan.run.watchdog, partial(log_stuck_rank, folder)) as begin_step,
    ):
        if checkpoint.tidy(folder.checkpoints, world) == plan.train.steps:
            with world.together():
                folder.restore_files()
            return Outcome(plan.train.steps, finished=True, already_done=True)
        parts = build_parts(plan)
        state = new_state(parts)
        resume(folder, state)
        state = begin(folder, parts, state)
        identities = get_ready(parts, state.step)
        world.agree({**identities, "step": state.step})
        with world.together():
            folder.keep_identities(parts.identities | identities, state.step)
            folder.write_about(parts)
            folder.log_warnings(plan, state.step)
        begun = partial(on_progress, Progress(state.step, plan.train.steps, None, None))
        prepare_images(parts, state.images_seen, interrupt, begun)
        if not interrupt.of_any(world):
            with world.together():
                check_latents(folder, parts, state.step)
        return _run(folder, parts, state, interrupt, on_progress, probe, begin_step)


def _run(
    folder: RunFolder,
    parts: Parts,
    state: TrainState,
    interrupt: Interrupt,
    on_progress: Callable[[Progress], None],
    probe: Probe,
    begin_step: Callable[[], None],
) -> Outcome:
    plan, steps, run, saved = parts.plan, parts.plan.train.steps, parts.plan.run, state.step
    window: list[StepResult] = []
    line: dict[str, Any] = {}
    clock = Clock(parts.device)
    on_progress(Progress(state.step, steps, None, None))
    with open_writer(folder.path, run.tensorboard and folder.writes) as write, Saver(run.save, folder.world) as saver:
        while (working := state.step < steps and not interrupt.of_any(folder.world)) or state.step > saved:
            begin_step()
            standing.mark("step", state.step + working)
            if working:
                window.append(update(parts, state, clock))
                if len(window) > 1:  # the step before: by now it is done, and the GPU has work
                    count_step(folder, parts, state, window[-2])
                for loss in parts.release_losses(state.step):
                    folder.log_event("loss-over", state.step, loss=loss)
                fault.point("step.done")
                standing.mark("snapshot")
                take_snapshot(folder.snapshots, plan, state, saver)  # before the checkpoint, which vouches for it
            saving = not working or state.step % run.save_every_steps == 0 or state.step == steps
            if window and (saving or state.step % run.log_every_steps == 0):
                standing.mark("log")
                count_step(folder, parts, state, window[-1])
                check_weights(parts, state)
                line = window_line(parts, state, window, clock) | saver.read()
                if saving:
                    standing.mark("evaluation")
                    line |= probe(parts)
                clock.read()
                folder.log_metrics(line)
                write(line)
                window = []
                saver.check()
            if saving:
                standing.mark("save")
                save_state(folder, run, state, saver, now=not working or state.step == steps)
                saved = state.step
            on_progress(Progress(state.step, steps, line.get("loss"), line.get("images_per_s")))
    return Outcome(state.step, finished=state.step >= steps)
