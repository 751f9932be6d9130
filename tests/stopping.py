"""Runs that are stopped by a signal and taken up again."""

from __future__ import annotations

import signal
from pathlib import Path

from tintype.plan import Plan
from tintype.runtime.interrupt import Interrupt
from tintype.train.loop import train
from tintype.train.steps import Progress


def train_to(plan: Plan, folder: Path, step: int) -> None:
    """Trains until a signal comes after this step."""
    interrupt = Interrupt()

    def at(progress: Progress) -> None:
        if progress.step == step:
            interrupt.signal = signal.SIGTERM

    assert train(plan, folder, interrupt, at).step == step


def stop_and_go_on(plan: Plan, folder: Path, step: int) -> None:
    train_to(plan, folder, step)
    assert train(plan, folder, Interrupt()).finished
