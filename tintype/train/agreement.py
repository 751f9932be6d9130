"""Check that all ranks start with the same inputs, and log the rank for which the others wait."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path
from typing import Any

import torch

import tintype
from tintype.plan import Plan, parts_of, settings_by_key
from tintype.plugins.record import record_of
from tintype.runtime.dist import World
from tintype.runtime.watchdog import Finding
from tintype.train.folder import RunFolder


def agree_on_plan(plan: Plan, world: World, **more: Any) -> None:
    """Raise on every rank if any rank has a different plan, code, plugins or values in `more`."""
    if world.size > 1:
        versions = {"tintype": tintype.__version__, "torch": torch.__version__}
        code = {"the code of tintype": code_digest(), "plugins": record_of(parts_of(plan))}
        world.agree({**settings_by_key(plan), **versions, **code, **more})


@cache
def code_digest() -> str:
    """Return the SHA-256 over the package's Python files, since an installed package may have no commit."""
    package = Path(tintype.__file__).parent
    digest = hashlib.sha256()
    for file in sorted(package.rglob("*.py")):
        digest.update(f"{file.relative_to(package)}\n".encode())
        digest.update(hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()


def log_stuck_rank(folder: RunFolder, finding: Finding, text: str) -> str:
    """Log the rank for which the others wait, and return the message. Any rank may call this function.

    The event has the step of the newest checkpoint, since events of later steps are dropped when the run resumes.
    """
    saved = folder.record.saved_step
    RunFolder(folder.path).log_event("stuck-rank", saved, text=text, **finding.details)
    kept = f"the run is saved at step {saved}" if saved else "no checkpoint was saved yet"
    return f"{text}. All ranks are ended; {kept}, and the same command resumes it"
