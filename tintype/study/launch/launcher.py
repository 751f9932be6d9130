"""The protocol of launchers, and functions that all launchers share."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from tintype.errors import UserError
from tintype.plugins.load import given_files
from tintype.runtime.parent import command_with_parent

FOLDER = "launch"
"""The subfolder of a study's folder with the scripts and the logs of its workers."""


@dataclass(frozen=True)
class Crew:
    """The workers to start for a study."""

    study: Path
    """The study's folder, which has the same path on every machine."""
    workers: int
    gpus_per_worker: int = 1
    time_s: float | None = None
    """Seconds after which a worker saves and goes back into the queue; None for the queue's own limit."""
    partition: str = ""
    jobs: str = ""
    """Number of concurrent runs of a worker, in the format of `--jobs`; empty for the default of `tintype work`."""

    @property
    def folder(self) -> Path:
        return self.study / FOLDER

    @property
    def command(self) -> str:
        """Return the command line of a worker with the present Python interpreter."""
        packed = ["--jobs", self.jobs] if self.jobs else []
        plugins = [word for file in given_files() for word in ("--plugin", str(file))]
        return shlex.join([sys.executable, "-m", "tintype", *plugins, "work", str(self.study), *packed])

    def log(self, worker: str) -> Path:
        return self.folder / f"worker-{worker}.log"


class Launcher(Protocol):
    """Starts workers somewhere."""

    def launch(self, crew: Crew) -> Iterable[str]:
        """Start the workers. Yield a line for each started worker, and for each ended worker if the launcher waits."""


def run_program(command: Sequence[str]) -> str:
    """Run a system program and return its output; raise with the program's own message if it fails."""
    try:
        done = subprocess.run(command_with_parent(command), capture_output=True, text=True, check=False)
    except OSError as error:
        raise UserError(
            f"cannot run {command[0]}: {error.strerror}", "check that the program is installed on this machine"
        ) from None
    if done.returncode:
        words = " ".join(done.stderr.split()) or f"exit code {done.returncode}"
        raise UserError(f"`{shlex.join(command)}` failed: {words}")
    return done.stdout.strip()
