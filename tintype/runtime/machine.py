"""The environment of a run: packages, processor, device, and the commit of the code."""

from __future__ import annotations

import platform
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch

import tintype
from tintype.runtime.parent import command_with_parent


def environment(device: torch.device) -> dict[str, Any]:
    """Return the versions and the hardware that numbers depend on."""
    return {
        "tintype": tintype.__version__,
        **({"commit": commit} if (commit := code_commit()) else {}),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "system": platform.platform(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else _processor(),
        "threads": torch.get_num_threads(),
    }


@cache
def code_commit() -> str:
    """Return the git commit that the package runs from, and whether its files were changed since.

    Empty where the package is not its own checkout: an installed one can lie within another project's repository.
    """
    package = Path(tintype.__file__).parent
    git = ["git", "-c", "core.fsmonitor=false", "-C", str(package)]
    found = _output([*git, "rev-parse", "--show-toplevel", "HEAD"]).splitlines()
    if len(found) != 2 or Path(found[0]) != package.parent.resolve():
        return ""
    changed = _output([*git, "status", "--porcelain", "--untracked-files=no", "--", "."])
    return f"{found[1]} with uncommitted changes" if changed else found[1]


def _output(command: Sequence[str]) -> str:
    """Return what a command printed; empty where it is not installed, fails or does not end."""
    try:
        done = subprocess.run(command_with_parent(command), capture_output=True, text=True, check=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = [line.split(":", 1)[1].strip() for line in cpuinfo.read_text().splitlines() if "model name" in line]
        if names:
            return f"{names[0]} × {len(names)}"
    return platform.processor() or platform.machine()
