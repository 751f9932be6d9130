"""Device, threads, fp32 precision, package versions and code commit of the machine of a run."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import torch

import tintype
from tintype.errors import UserError
from tintype.runtime.dist import current
from tintype.runtime.parent import command_with_parent
from tintype.wording import setting


@contextmanager
def exact_fp32(exact: bool = True) -> Iterator[None]:
    """Compute fp32 convolutions without TF32, since cuDNN uses TF32 by default."""
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = not exact
    try:
        yield
    finally:
        torch.backends.cudnn.allow_tf32 = before


@contextmanager
def cpu_threads(device: str, threads: int) -> Iterator[None]:
    """Set torch's number of CPU threads, which decides the order of summation and thereby the last bits.

    On a GPU, leave the number unchanged, since the GPU computes the sums.
    """
    before = torch.get_num_threads()
    if choose_device(device).type == "cpu":
        torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def cores() -> int:
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def choose_device(name: str) -> torch.device:
    """Return the torch device for a name. Under torchrun, each rank gets its own GPU."""
    if name in ("auto", "cuda") and torch.cuda.is_available():
        return torch.device("cuda", current().local_rank) if current().joined else torch.device("cuda")
    if name == "auto":
        return torch.device("cpu")
    if name.startswith("cuda:") and current().size > 1:
        raise UserError(f"run.device is {name}, but torchrun started several ranks, each with its own GPU", "use auto")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise UserError(f"run.device: '{name}' is not a valid device", "valid: auto, cpu, cuda, cuda:N") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise UserError(
            f"run.device is {name}, but no CUDA device is available here", f"use {setting('run.device', 'cpu')}"
        )
    return device


def environment(device: torch.device) -> dict[str, Any]:
    """Return the software versions and the hardware, which can change the numerical results of a run."""
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
    """Return the git commit of the package's checkout, and whether files differ from that commit.

    Return an empty value outside of the package's own checkout, since an installed package can lie inside another
    project's repository.
    """
    package = Path(tintype.__file__).parent
    git = ["git", "-c", "core.fsmonitor=false", "-C", str(package)]
    found = _output([*git, "rev-parse", "--show-toplevel", "HEAD"]).splitlines()
    if len(found) != 2 or Path(found[0]) != package.parent.resolve():
        return ""
    changed = _output([*git, "status", "--porcelain", "--untracked-files=no", "--", "."])
    return f"{found[1]} with uncommitted changes" if changed else found[1]


def _output(command: Sequence[str]) -> str:
    """Return the output of a command; empty if the command is not installed, fails or times out."""
    try:
        done = subprocess.run(command_with_parent(command), capture_output=True, text=True, check=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout


def _processor() -> str:
    file = Path("/proc/cpuinfo")
    lines = file.read_text().splitlines() if file.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if "model name" in line]
    return f"{names[0]} × {len(names)}" if names else platform.processor() or platform.machine()
