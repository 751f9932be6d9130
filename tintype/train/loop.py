"""The training loop resumes a run, then updates, logs and saves until the plan's last step."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from tintype.plan import Plan
from tintype.runtime import activity, fault
from tintype.runtime.clock import Clock
from tintype.runtime.dist import current
from tintype.runtime.fence import OPEN, Fence
from tintype.runtime.interrupt import Interrupt
from tintype.runtime.locks import wait_for_lock
from tintype.runtime.watchdog import watch_ranks
from tintype.train import checkpoint
from tintype.train.agreement import agree_on_plan, log_stuck_rank
from tintype.train.divergence import check_weights, count_step
from tintype.train.exact import exact_steps, take_step
from tintype.train.folder import RunFolder
from tintype.train.load import keep_weights
from tintype.train.prepare import check_latents, get_ready, prepare_images
from tintype.train.reconstruct import take_snapshot
from tintype.train.saving import Saver
from tintype.train.session import Session, build_session
from tintype.train.start import begin, resume
from tintype.train.state import TrainState, new_state
from tintype.train.steps import Cadence, Progress, run_steps
from tintype.train.trackers.mirror import mirror_run
from tintype.train.update import StepResult
from tintype.train.window import window_line


@dataclass(frozen=True)
class Outcome:
    step: int
    finished: bool
    already_done: bool = False


KeepAt = Collection[int]
"""Steps whose weights are stored for scoring (`train.load`). Storing these weights does not change the training."""
Probe = Callable[[Session, int], dict[str, float]]
"""Function that measures numbers to log at each save, outside of the training time."""


def train(
    plan: Plan,
    path: Path,
    interrupt: Interrupt,
    on_progress: Callable[[Progress], None] = lambda progress: None,
    probe: Probe = lambda parts, step: {},
    on_wait: Callable[[str], None] = lambda text: None,
    keep_at: KeepAt = (),
    fence: Fence = OPEN,
    label: str = "",
) -> Outcome:
    """Train the plan in a folder; resume if the run has begun. Return before the last step if a signal came.

    While another process works in the folder, this function waits, and calls `on_wait` with a sentence for the user.
    `fence` stops writes after the lease is lost. Trackers display the run under the name `label`.
    """
    world = current()
    folder = RunFolder(path, world, fence, label)
    agree_on_plan(plan, world)
    free = not folder.writes or wait_for_lock(path, lambda: interrupt.signal is not None, on_wait, fence.passed)
    if world.any(not free):
        return Outcome(folder.record.saved_step, finished=False)
    with (
        folder.claim(plan),
        folder.note_divergence(),
        exact_steps(plan, world),
        watch_ranks(world, plan.run.watchdog, partial(log_stuck_rank, folder)) as begin_step,
        mirror_run(folder, plan),
    ):
        if checkpoint.tidy(folder.checkpoints, world, fence) == plan.train.steps:
            with world.fail_together():
                folder.restore_files()
            return Outcome(plan.train.steps, finished=True, already_done=True)
        parts = build_session(plan)
        state = new_state(parts)
        resume(folder, state)
        state = begin(folder, parts, state)
        identities = get_ready(parts, state.step)
        world.agree({**identities, "step": state.step})
        folder.note_start(parts, parts.identities | identities, state.step)
        begun = partial(on_progress, Progress(state.step, plan.train.steps, None, None))
        prepare_images(parts, state.images_seen, interrupt, begun)
        if not interrupt.on_any_rank(world):
            with world.fail_together():
                check_latents(folder, parts, state.step)
        return RunTraining(folder, parts, state, interrupt, probe, keep_at).run(on_progress, begin_step)


class RunTraining:
    def __init__(
        self, folder: RunFolder, parts: Session, state: TrainState, interrupt: Interrupt, probe: Probe, keep_at: KeepAt
    ) -> None:
        self.folder, self.parts, self.state, self.interrupt, self.probe = folder, parts, state, interrupt, probe
        self.keep_at = frozenset(keep_at)
        run = parts.plan.run
        self.cadence = Cadence(parts.plan.train.steps, run.log_every_steps, run.save_every_steps)
        self.clock = Clock(parts.device)

    def run(self, on_progress: Callable[[Progress], None], begin_step: Callable[[], None]) -> Outcome:
        with Saver(self.parts.plan.run.save, self.folder.world, self.folder.fence) as self.saver:
            run_steps(self, on_progress, begin_step)
        return Outcome(self.state.step, finished=self.state.step >= self.cadence.steps)

    def interrupted(self) -> bool:
        return self.interrupt.on_any_rank(self.folder.world)

    def take_step(self) -> StepResult:
        return take_step(self.folder, self.parts, self.state, self.clock)

    def check_step(self, result: StepResult) -> None:
        count_step(self.folder, self.parts, self.state, result)

    def finish_step(self) -> None:
        for loss in self.parts.release_losses(self.state.step):
            self.folder.log_event("loss-over", self.state.step, loss=loss)
        fault.point("step.done")
        activity.mark("snapshot")
        take_snapshot(self.folder.snapshots, self.parts.plan, self.state, self.saver)  # before the step's checkpoint
        if self.state.step in self.keep_at:
            keep_weights(self.folder.kept, self.parts.plan, self.state, self.saver)

    def log(self, window: Sequence[StepResult], saving: bool) -> dict[str, Any]:
        check_weights(self.parts, self.state)
        line = window_line(self.parts, self.state, window, self.clock) | self.saver.read()
        if saving:
            activity.mark("evaluation")
            line |= self.probe(self.parts, self.state.step)
        self.folder.log_metrics(line)
        self.clock.read()
        self.saver.check()
        return line

    def save(self, now: bool) -> None:
        """Save the state, in the background unless `now`."""
        state, folder, kept = self.state, self.folder, self.parts.plan.run.keep_checkpoints
        commit = partial(checkpoint.commit, folder.checkpoints, state.step, scalars=state.scalars(), keep=kept)
        self.saver.write(state.step, state.tensors(), partial(commit, records=folder.records()), now=now)
