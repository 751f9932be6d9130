"""Runs that are stopped by a signal and taken up again."""

from __future__ import annotations

from pathlib import Path

from tintype.contract.technique import train_to
from tintype.plan import Plan
from tintype.runtime.interrupt import Interrupt
from tintype.train.loop import train

__all__ = ["stop_and_go_on", "train_to"]


def stop_and_go_on(plan: Plan, folder: Path, step: int) -> None:
    train_to(plan, folder, step)
    assert train(plan, folder, Interrupt()).finished
