"""Run workers by `ssh` on machines that share the study's folder. Workers keep running after the connection ends."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from tintype.study.launch.launcher import Crew, run_program


class Ssh:
    """A launcher that starts the workers of a study on each of several machines."""

    def __init__(self, hosts: Sequence[str]) -> None:
        self.hosts = tuple(hosts)

    def launch(self, crew: Crew) -> list[str]:
        crew.folder.mkdir(exist_ok=True)
        return [self._start(host, number, crew) for host in self.hosts for number in range(crew.workers)]

    def _start(self, host: str, number: int, crew: Crew) -> str:
        log = crew.log(f"{host}-{number}")
        process = run_program(["ssh", "-n", "-o", "BatchMode=yes", "--", host, remote_command(number, crew, log)])
        return f"{host}: worker {number} is process {process}; log: {log}"


def remote_command(number: int, crew: Crew, log: Path) -> str:
    """Return the shell command for a machine, which starts a persistent worker and prints its process id."""
    first = number * crew.gpus_per_worker
    gpus = ",".join(str(gpu) for gpu in range(first, first + crew.gpus_per_worker))
    chosen = f"CUDA_VISIBLE_DEVICES={gpus} " if crew.gpus_per_worker else ""
    inner = f"{chosen}nohup {crew.command} >> {shlex.quote(str(log))} 2>&1 < /dev/null & echo $!"
    return f"cd {shlex.quote(str(Path.cwd()))} && {{ {inner}; }}"
