"""The training loop, top to bottom: resume, then update, log, save, until the plan's last step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tintype.errors import DivergedError
from tintype.plan import Plan
from tintype.train import checkpoint, fault
from tintype.train.clock import Clock
from tintype.train.folder import RunFolder
from tintype.train.interrupt import Interrupt
from tintype.train.latents import check_latents
from tintype.train.parts import Parts, build_parts, cpu_threads, exact_fp32
from tintype.train.prepare import get_ready, prepare_images
from tintype.train.resume import resume
from tintype.train.snapshots import take_snapshot
from tintype.train.start import begin
from tintype.train.state import TrainState, new_state
from tintype.train.update import StepResult, update
from tintype.train.window import window_line
from tintype.train.writers import open_writer
from tintype.world import current


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
) -> Outcome:
    """Trains the plan in a folder from wherever it stopped. Returns unfinished when a signal came."""
    world = current()
    folder = RunFolder(path, world)
    with folder.claim(plan), exact_fp32(), cpu_threads(plan.run):
        if checkpoint.tidy(folder.checkpoints, world) == plan.train.steps:
            with world.together():
                folder.restore_files()
            return Outcome(plan.train.steps, finished=True, already_done=True)
        parts = build_parts(plan)
        state = new_state(parts)
        resume(folder, state)
        state = begin(folder, parts, state)
        identities = get_ready(parts, state.step)
        with world.together():
            folder.keep_identities(parts.identities | identities, state.step)
            folder.write_about(parts)
            folder.log_warnings(plan, state.step)
        here = Progress(state.step, plan.train.steps, None, None)
        prepare_images(parts, state.images_seen, interrupt, lambda: on_progress(here))
        if not interrupt.of_any(world):
            with world.together():
                check_latents(folder, parts, state.step)
        return _run(folder, parts, state, interrupt, on_progress, probe)


def _run(
    folder: RunFolder,
    parts: Parts,
    state: TrainState,
    interrupt: Interrupt,
    on_progress: Callable[[Progress], None],
    probe: Probe,
) -> Outcome:
    plan, steps, run = parts.plan, parts.plan.train.steps, parts.plan.run
    saved = state.step
    window: list[StepResult] = []
    line: dict[str, Any] = {}
    clock = Clock(parts.device)
    on_progress(Progress(state.step, steps, None, None))
    with open_writer(folder.path, run.tensorboard and folder.writes) as write:
        while (working := state.step < steps and not interrupt.of_any(folder.world)) or state.step > saved:
            if working:
                window.append(update(parts, state, clock))
                if len(window) > 1:  # the step before: by now it is done, and the GPU has work
                    _check_finite(folder, plan, state, window[-2])
                _release(folder, parts, state.step)
                fault.point("step.done")
                take_snapshot(
                    folder.snapshots, plan, state, folder.world
                )  # before the checkpoint, which vouches for it
            saving = not working or state.step % run.save_every_steps == 0 or state.step == steps
            if window and (saving or state.step % run.log_every_steps == 0):
                _check_finite(folder, plan, state, window[-1])
                line = window_line(parts, state, window, clock) | (probe(parts) if saving else {})
                clock.read()
                folder.log_metrics(line)
                write(line)
                window = []
            if saving:
                checkpoint.save(folder.checkpoints, state, run.keep_checkpoints, folder.world, folder.records())
                saved = state.step
            on_progress(Progress(state.step, steps, line.get("loss"), line.get("images_per_s")))
    return Outcome(state.step, finished=state.step >= steps)


def _release(folder: RunFolder, parts: Parts, step: int) -> None:
    """Lets go of what the losses that are just over had loaded: a teacher leaves memory here."""
    for term in parts.terms:
        over = term.settings.schedule.over
        if over(step) and not over(step - 1):
            term.part.release()
            folder.log_event("loss-over", step, loss=term.name)


def _check_finite(folder: RunFolder, plan: Plan, state: TrainState, result: StepResult) -> None:
    """Counts and notes a step that was skipped, and ends the run when there are too many in a row."""
    if result.finite:
        state.skips_in_a_row = 0
        return
    state.skips_in_a_row += 1
    folder.log_event(
        "non-finite-step",
        result.step,
        loss=str(float(result.losses["loss"])),
        grad_norm=str(result.grad_norm),
        first_position=result.first_position,
        last_position=result.first_position + plan.train.batch - 1,
    )
    if state.skips_in_a_row >= plan.train.most_skips:
        raise DivergedError(
            f"{state.skips_in_a_row} steps in a row (to step {result.step}) had a gradient that is not finite; none of "
            f"them reached the weights. Lower optimizer.lr, with another --out; {folder.events_file} has the details"
        )
