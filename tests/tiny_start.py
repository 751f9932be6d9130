"""Small trained runs to start others from, one for each plan in a process."""

from __future__ import annotations

import tempfile
from pathlib import Path

from tintype.model import fp8
from tintype.plan import Plan
from tintype.runtime.interrupt import Interrupt
from tintype.runtime.machine import choose_device
from tintype.train.loop import train

_FOLDER = tempfile.TemporaryDirectory(prefix="tintype-start-")


def trained(plan: Plan) -> Path:
    """The folder of a run of the plan; there is none in it where the plan cannot be trained here."""
    folder = Path(_FOLDER.name) / plan.hash
    runs_here = plan.precision.matmul == "plain" or fp8.runs_on(choose_device("auto"))
    if runs_here and not folder.exists():
        train(plan, folder, Interrupt())
    return folder
